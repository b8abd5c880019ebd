"""Settlements as MQTT sends them: messages to `$queue/<name>/$ack` and its like, with two user properties."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headrace.core.address import ACK, COMMIT, NACK, REJECT, Address, parse_message_id
from headrace.core.group import ACK as ACKED
from headrace.core.group import NACK as NACKED
from headrace.core.group import REJECT as REJECTED
from headrace.errors import Refused
from headrace.protocols.mqtt.packets import UserProperties

if TYPE_CHECKING:
    from headrace.protocols.mqtt.client import Client

MESSAGE_ID: Final = "message-id"
GROUP_ID: Final = "group-id"
_OUTCOMES: Final[Mapping[str, int]] = {ACK: ACKED, NACK: NACKED, REJECT: REJECTED}


def settle(client: "Client", address: Address, user: UserProperties) -> None:
    """End the delivery that the user properties name. Raises Refused when they name none that is pending."""
    said = dict(user)
    group = said.get(GROUP_ID) or said.get("x-group-id", "")
    broker = client.host.broker
    if address.verb == COMMIT and MESSAGE_ID not in said and "x-offset" in said:
        offset = _number(said["x-offset"])
        _check(group, GROUP_ID, address)
        broker.groups.commit(address.queue, group, offset)
        return
    message_id = said.get(MESSAGE_ID, "")
    _check(message_id, MESSAGE_ID, address)
    _check(group, GROUP_ID, address)
    queue, offset = parse_message_id(message_id)
    if queue and queue != address.queue:
        raise Refused(f"message {message_id!r} is not of queue {address.queue!r}")
    if address.verb == COMMIT:
        broker.groups.commit(address.queue, group, offset + 1)
    else:
        broker.groups.settle(address.queue, group, offset, _OUTCOMES[address.verb])


def _check(value: str, name: str, address: Address) -> None:
    if not value:
        raise Refused(f"${address.verb} of queue {address.queue!r} needs the user property {name!r} of the delivery")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise Refused(f"x-offset {text[:32]!r} is not an offset")
    return int(text)
