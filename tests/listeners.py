"""Subscribers without a network: they keep what they get, and say how they got it."""

from headrace.core.pubsub.session import Grant, Outlet, Session, Subscriber, Subscription, Will, read_mark
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK
from headrace.model import Message
from tests.house import House


class Radio(Outlet):
    """Tells every listener what it says."""

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.said = 0

    def deliver(self, message: Message, assurance: int, retain: bool, subscribers: list[Subscriber]) -> None:
        self.said += 1
        for subscriber in subscribers:
            assert isinstance(subscriber, Listener)
            subscriber.heard.append((message, assurance, retain, self.grant.identifiers))


class Listener(Subscriber):
    """One client: connected from the start, until it leaves."""

    def __init__(
        self, house: House, client_id: str, lifetime_s: int = 0, clean: bool = False, **options: object
    ) -> None:
        self._house = house
        self.session: Session | None = None
        self.heard: list[tuple[Message, int, bool, tuple[int, ...]]] = []
        self.got: list[Delivery] = []
        self.shared: list[Delivery] = []
        self.is_replaced = self.is_restricted = False
        self._radios: dict[object, Radio] = {}
        will = options.get("will")
        assert will is None or isinstance(will, Will)
        session, self.was_there = house.broker.sessions.connect(
            client_id, clean, lifetime_s, self, will, str(options.get("user", ""))
        )
        self.own = session
        house.run()

    def outlet(self, grant: Grant) -> Outlet:
        return RADIOS.setdefault(grant.key, Radio(grant))

    def consumer(self, subscription: Subscription | None) -> Consumer:
        return Consumer(self.own_name, (self.got if subscription is None else self.shared).extend)

    @property
    def own_name(self) -> str:
        assert self.session is not None
        return self.session.client_id

    def replaced(self) -> None:
        self.is_replaced = True

    def restricted(self) -> None:
        self.is_restricted = True

    def subscribe(self, pattern: str, assurance: int = 0, **options: object) -> list[str]:
        """Returns the topics whose retained messages it is to get."""
        assert self.session is not None
        subscription = Subscription(self.session, pattern, assurance, **options)  # type: ignore[arg-type]
        is_wanted = self._house.broker.sessions.subscribe(subscription)
        self._house.run()
        return list(self._house.broker.pubsub.retained.match(pattern)) if is_wanted else []

    def unsubscribe(self, pattern: str) -> bool:
        assert self.session is not None
        found = self._house.broker.sessions.unsubscribe(self.session, pattern)
        self._house.run()
        return found is not None

    def leave(self, with_will: bool = True) -> None:
        self._house.broker.sessions.leave(self, with_will)
        self._house.run()

    def texts(self) -> list[str]:
        """Live messages since the last look."""
        taken = [message.payload.decode() for message, _, _, _ in self.heard]
        self.heard.clear()
        return taken

    def kept(self, settle: bool = True) -> list[str]:
        """Messages from its log since the last look, acknowledged."""
        return self._take(self.got, settle)

    def dealt(self, settle: bool = True) -> list[str]:
        """Messages of its shared subscriptions since the last look, acknowledged."""
        return self._take(self.shared, settle)

    def _take(self, deliveries: list[Delivery], settle: bool) -> list[str]:
        taken = list(deliveries)
        deliveries.clear()
        for delivery in taken:
            assert read_mark(delivery.message).assurance
            if settle:
                self._house.broker.settle(delivery, ACK)
        self._house.run()
        return [delivery.message.payload.decode() for delivery in taken]


RADIOS: dict[object, Radio] = {}
