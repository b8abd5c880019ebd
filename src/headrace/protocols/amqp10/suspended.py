"""Links that are detached and may be resumed, by container and name. How long is what their termini ask for.

Only in memory: after a restart whatever was unsettled is delivered again, and durable subscriptions are queues.
"""

from typing import TYPE_CHECKING, Final, final

from headrace.clock import Clock
from headrace.protocols.amqp10.states import State
from headrace.protocols.amqp10.termini import CONNECTION_CLOSE, LINK_DETACH, NEVER, SESSION_END

if TYPE_CHECKING:
    from headrace.protocols.amqp10.incoming import IncomingLink
    from headrace.protocols.amqp10.outgoing import OutgoingLink, Sent

_MAX_LINKS: Final = 1024
"""How many are kept; the oldest goes first."""
_MAX_STATES: Final = 10_000
POLICIES: Final = (LINK_DETACH, SESSION_END, CONNECTION_CLOSE, NEVER)


@final
class SuspendedLink:
    """What is left of a link: what it sent and nobody settled."""

    __slots__ = ("expires_us", "link", "unsettled")

    def __init__(self, link: "OutgoingLink") -> None:
        self.link = link
        self.unsettled: list[Sent] = list(link.unsettled.values())
        self.expires_us = 0
        """When it is over for good; 0 while that is not known."""


@final
class Suspended:
    """All links of one virtual host that may be resumed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._links: dict[tuple[str, str], SuspendedLink] = {}
        self._states: dict[tuple[str, str], dict[bytes, State | None]] = {}

    def keep(self, link: "OutgoingLink") -> bool:
        """Keep a link that was detached, if its source asks for that; False when it is over."""
        source = link.attach.source
        if source is None or (source.expiry_policy == LINK_DETACH and not source.timeout):
            return False
        link.origin.leave()
        key = (link.peer.container_id, link.name)
        self._drop(key)
        kept = self._links[key] = SuspendedLink(link)
        if source.expiry_policy == LINK_DETACH:
            kept.expires_us = self._clock.now_us() + source.timeout * 1_000_000
        if len(self._links) > _MAX_LINKS:
            self._drop(next(iter(self._links)))
        return True

    def resume(self, container: str, name: str) -> SuspendedLink | None:
        """The link of that name, for its new attach to take over."""
        return self._links.pop((container, name), None)

    def keep_states(self, link: "IncomingLink") -> None:
        """Remember what became of deliveries whose sender does not know that we know."""
        key = (link.peer.container_id, link.name)
        self._states[key] = dict(list(link.states.items())[-_MAX_STATES:])
        if len(self._states) > _MAX_LINKS:
            del self._states[next(iter(self._states))]

    def take_states(self, container: str, name: str) -> dict[bytes, State | None]:
        return self._states.pop((container, name), {})

    def session_ended(self, session: object) -> None:
        self._over(SESSION_END, [key for key, kept in self._links.items() if kept.link.session is session])

    def connection_closed(self, owner: object) -> None:
        mine = [key for key, kept in self._links.items() if kept.link.peer.owner is owner]
        self._over(SESSION_END, mine)
        self._over(CONNECTION_CLOSE, mine)

    def _over(self, policy: str, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            kept = self._links.get(key)
            source = kept.link.attach.source if kept is not None else None
            if kept is None or source is None or source.expiry_policy != policy:
                continue
            if source.timeout:
                kept.expires_us = self._clock.now_us() + source.timeout * 1_000_000
            else:
                self._drop(key)

    def sweep(self) -> None:
        """Be done with those whose time is over."""
        now_us = self._clock.now_us()
        for key in [key for key, kept in self._links.items() if 0 < kept.expires_us <= now_us]:
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        kept = self._links.pop(key, None)
        if kept is not None:
            kept.link.origin.end(True)
