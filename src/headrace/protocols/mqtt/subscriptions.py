"""SUBSCRIBE and UNSUBSCRIBE: plain topics and shared ones to the session, addresses to queues. One per client."""

from typing import TYPE_CHECKING, Final

from headrace.core.access.permissions import Rights
from headrace.core.pubsub.session import AT_LEAST_ONCE, SHARE_PREFIX, Subscription, topics_read
from headrace.core.queue.group import mode_joined
from headrace.core.routing.address import (
    DEAD_LETTER_PREFIX,
    group_of_client,
    is_read_address,
    parse_address,
    queue_topic,
)
from headrace.errors import AccessRefused, Corrupt, HeadraceError, ProtocolError, Refused, TooLarge
from headrace.protocols.mqtt.client import QueueReader
from headrace.protocols.mqtt.encoding import encode_suback, encode_unsuback
from headrace.protocols.mqtt.packets import V5, Subscribe, Unsubscribe
from headrace.protocols.mqtt.packets import Subscription as Asked
from headrace.protocols.mqtt.reasons import (
    IMPLEMENTATION_SPECIFIC_ERROR,
    NO_SUBSCRIPTION_EXISTED,
    NOT_AUTHORIZED,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    SUCCESS,
    TOPIC_FILTER_INVALID,
)

if TYPE_CHECKING:
    from headrace.protocols.mqtt.client import Client

CONSUMER_GROUP: Final = "consumer-group"
STREAM_OFFSET: Final = "x-stream-offset"
AUTO_COMMIT: Final = "x-auto-commit"
GROUP_MODE: Final = "group-mode"


def subscribe(client: "Client", packet: Subscribe, rights: Rights) -> None:
    """Take each topic filter by itself and answer for all of them; retained messages follow the answer."""
    reasons: list[int] = []
    refusals: list[str] = []
    replays: list[Subscription] = []
    user = dict(packet.user)
    for asked in packet.subscriptions:
        try:
            rights.check_topic_subscribe(topics_read(asked.pattern), client.client_id)
            _check_room(client, asked.pattern)
            subscription = _subscription(client, asked, packet.identifier, user)
            if subscription.is_queue:
                _join(client, subscription, user)
            begins_with_retained = client.host.broker.sessions.subscribe(subscription)
        except ProtocolError:
            raise
        except HeadraceError as error:
            reasons.append(_code_of(error))
            refusals.append(str(error))
            continue
        reasons.append(subscription.assurance)
        if begins_with_retained:
            replays.append(subscription)
    _when_safe(client, encode_suback(client.version, packet.packet_id, reasons, client.reasons(*refusals)))
    for subscription in replays:
        client.replay(subscription)


def unsubscribe(client: "Client", packet: Unsubscribe) -> None:
    """Undo each and answer for all of them."""
    assert client.session is not None
    reasons: list[int] = []
    for pattern in packet.patterns:
        found = client.host.broker.sessions.unsubscribe(client.session, pattern)
        reasons.append(SUCCESS if found is not None else NO_SUBSCRIPTION_EXISTED)
        reader = client.readers.pop(pattern, None)
        if reader is not None:
            reader.close()
    _when_safe(client, encode_unsuback(client.version, packet.packet_id, reasons))


def resume(client: "Client", rights: Rights) -> None:
    """The client is back: it gets again what it had subscribed to, as far as it still may and there still is."""
    session = client.session
    assert session is not None
    for subscription in list(session.subscriptions.values()):
        try:
            rights.check_topic_subscribe(topics_read(subscription.pattern), client.client_id)
            if subscription.is_queue:
                _join(client, subscription, {GROUP_MODE: _former_mode(client, subscription)})
        except Corrupt:
            continue  # the subscription stays, for when the queue is mended
        except HeadraceError:
            client.host.broker.sessions.unsubscribe(session, subscription.pattern)


def _check_room(client: "Client", pattern: str) -> None:
    """Raises TooLarge when the session has as many subscriptions as it may have."""
    session, most = client.session, client.limits.max_subscriptions
    if session is not None and pattern not in session.subscriptions and len(session.subscriptions) >= most:
        raise TooLarge(f"the session has {most} subscriptions and may have no more")


def _subscription(client: "Client", asked: Asked, identifier: int, user: dict[str, str]) -> Subscription:
    assert client.session is not None
    pattern = asked.pattern
    assurance = asked.qos
    if is_read_address(pattern):
        assurance = min(assurance, AT_LEAST_ONCE)  # what a queue hands out comes again when it is not settled in time
    if asked.no_local and pattern.startswith(SHARE_PREFIX):  # MQTT 5 [MQTT-3.8.3-4]
        raise ProtocolError(PROTOCOL_ERROR, f"SUBSCRIBE: {pattern!r} is shared and must not be without its own")
    return Subscription(
        client.session,
        pattern,
        assurance,
        identifier,
        asked.no_local,
        asked.retain_as_published,
        asked.retain_handling,
        _group(client, user) if is_read_address(pattern) else "",
        user.get(AUTO_COMMIT, "true").lower() not in ("false", "0", "no"),
    )


def _group(client: "Client", user: dict[str, str]) -> str:
    """The group that was asked for, or the client's own: numbered clients of MQTT 3 share one."""
    default = client.client_id if client.version == V5 else group_of_client(client.client_id)
    return user.get(CONSUMER_GROUP) or default


def _join(client: "Client", subscription: Subscription, user: dict[str, str]) -> None:
    address = parse_address(subscription.pattern)
    if address.verb:
        raise Refused(f"{subscription.pattern!r} ends in a verb: messages are published to it, it is not subscribed to")
    former = client.readers.pop(subscription.pattern, None)
    if former is not None:
        former.close()
    is_short = subscription.pattern.startswith(DEAD_LETTER_PREFIX)
    root = address.queue if is_short else queue_topic(address.queue)
    reader = QueueReader(client, address.queue, root, subscription.assurance)
    position, mode = user.get(STREAM_OFFSET, ""), user.get(GROUP_MODE, "")
    reader.open(subscription.group, address.key, position, subscription.auto_commit, mode)
    client.readers[subscription.pattern] = reader


def _former_mode(client: "Client", subscription: Subscription) -> str:
    """In which mode the client was a member of the group, as far as that is still there."""
    address = parse_address(subscription.pattern)
    queue = client.host.broker.topology.queues.get(address.queue)
    return mode_joined(queue, subscription.group, address.key)


def _code_of(error: HeadraceError) -> int:
    if isinstance(error, AccessRefused):
        return NOT_AUTHORIZED
    if isinstance(error, TooLarge):
        return QUOTA_EXCEEDED
    if isinstance(error, Refused) and "topic filter" in str(error):
        return TOPIC_FILTER_INVALID
    return IMPLEMENTATION_SPECIFIC_ERROR


def _when_safe(client: "Client", answer: bytes) -> None:
    """Answer now, or once the subscription would survive a crash as the session does."""
    broker = client.host.broker

    def safe(error: HeadraceError | None) -> None:
        if error is None:
            client.wire.send(answer)
        elif not client.is_closed:
            broker.when_safe(safe)  # what could not be stored is tried again

    if client.session is not None and client.session.is_stored:
        broker.when_safe(safe)
    else:
        client.wire.send(answer)
