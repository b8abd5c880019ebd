"""What a session asked for: a topic pattern and how its messages are wanted. Values; pubsub.py routes by them."""

from typing import TYPE_CHECKING, Final, final

from headrace.core.address import is_read_address
from headrace.core.topics import check_filter, quoted
from headrace.errors import Refused

if TYPE_CHECKING:
    from headrace.core.session import Session

# How sure delivery is: of a message by its publisher's word, of a subscription by its subscriber's. The lower counts.
BEST_EFFORT: Final = 0
AT_LEAST_ONCE: Final = 1
EXACTLY_ONCE: Final = 2

# Whether a subscription begins with the retained messages that match it.
RETAINED_ALWAYS: Final = 0
RETAINED_IF_NEW: Final = 1
RETAINED_NEVER: Final = 2

SHARE_PREFIX: Final = "$share/"


@final
class Subscription:
    """One pattern of one session. Asking again for the same pattern replaces it."""

    __slots__ = (
        "assurance",
        "auto_commit",
        "group",
        "identifier",
        "keeps_retain",
        "no_echo",
        "pattern",
        "retained",
        "session",
    )

    def __init__(
        self,
        session: "Session",
        pattern: str,
        assurance: int = BEST_EFFORT,
        identifier: int = 0,
        no_echo: bool = False,
        keeps_retain: bool = False,
        retained: int = RETAINED_ALWAYS,
        group: str = "",
        auto_commit: bool = True,
    ) -> None:
        self.session = session
        self.pattern = pattern
        self.assurance = assurance
        self.identifier = identifier
        """What the subscriber calls it; 0 when it has no such name."""
        self.no_echo = no_echo
        """Whether what the session itself publishes stays out."""
        self.keeps_retain = keeps_retain
        """Whether a message that was published to be retained says so."""
        self.retained = retained
        self.group = group
        """For a queue's address: the group the subscriber is a member of."""
        self.auto_commit = auto_commit

    @property
    def is_shared(self) -> bool:
        return self.pattern.startswith(SHARE_PREFIX)

    @property
    def is_queue(self) -> bool:
        return is_read_address(self.pattern)

    def __repr__(self) -> str:
        return f"Subscription({self.pattern!r}, {self.assurance})"


@final
class Grant:
    """What a session gets of one topic: all of its subscriptions that match, put together."""

    __slots__ = ("assurance", "identifiers", "keeps_retain", "no_echo")

    def __init__(self, assurance: int, keeps_retain: bool, no_echo: bool, identifiers: tuple[int, ...]) -> None:
        self.assurance = assurance
        self.keeps_retain = keeps_retain
        self.no_echo = no_echo
        self.identifiers = identifiers

    @property
    def key(self) -> tuple[int, bool, bool, tuple[int, ...]]:
        """Equal for grants that are alike."""
        return self.assurance, self.keeps_retain, self.no_echo, self.identifiers


def merged(subscriptions: list[Subscription]) -> Grant:
    """One grant for all that match: a message that matches several patterns is delivered once, as the surest asks."""
    if len(subscriptions) == 1:
        one = subscriptions[0]
        return Grant(one.assurance, one.keeps_retain, one.no_echo, (one.identifier,) if one.identifier else ())
    identifiers = sorted({one.identifier for one in subscriptions if one.identifier})
    return Grant(
        max([one.assurance for one in subscriptions]),
        any([one.keeps_retain for one in subscriptions]),
        all([one.no_echo for one in subscriptions]),
        tuple(identifiers),
    )


def topics_read(pattern: str) -> str:
    """The topics that a subscription is about: its pattern without the group that shares it. Raises Refused."""
    return parse_share(pattern)[1] if pattern.startswith(SHARE_PREFIX) else pattern


def parse_share(pattern: str) -> tuple[str, str]:
    """The group and the pattern of `$share/<group>/<pattern>`. Raises Refused when it is not of that form."""
    group, slash, inner = pattern[len(SHARE_PREFIX) :].partition("/")
    if not group or not slash or "+" in group or "#" in group:
        raise Refused(f"{quoted(pattern)} is no shared subscription: those are $share/<group>/<topic filter>")
    check_filter(inner)
    if is_read_address(inner):
        raise Refused(f"{quoted(pattern)} shares a queue: subscribe to {quoted(inner)} with a consumer group instead")
    return group, inner
