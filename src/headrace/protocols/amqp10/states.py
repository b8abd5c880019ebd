"""Delivery states and errors: values, read from and written as described lists. What they cause is elsewhere."""

from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.fields import Fields
from headrace.protocols.amqp10.frames import DECODE_ERROR
from headrace.protocols.amqp10.types import Described, Map, Symbol, UInt, ULong


@final
class Error:
    """Why something ended: a condition by its standard name, and a sentence."""

    __slots__ = ("condition", "description", "info")

    def __init__(self, condition: str, description: str = "", info: Map | None = None) -> None:
        self.condition = condition
        self.description = description
        self.info = info

    def described(self) -> Described:
        fields: list[object] = [Symbol(self.condition), self.description or None, self.info]
        return Described(ULong(frames.ERROR), fields)

    def __repr__(self) -> str:
        return f"Error({self.condition!r}, {self.description!r})"


@final
class Received:
    """How far a delivery has come; nothing is decided."""

    __slots__ = ("offset", "section")

    def __init__(self, section: int, offset: int) -> None:
        self.section = section
        self.offset = offset

    def described(self) -> Described:
        return Described(ULong(frames.RECEIVED), [UInt(self.section), ULong(self.offset)])


@final
class Accepted:
    __slots__ = ()

    def described(self) -> Described:
        return Described(ULong(frames.ACCEPTED), [])


@final
class Rejected:
    __slots__ = ("error",)

    def __init__(self, error: Error | None = None) -> None:
        self.error = error

    def described(self) -> Described:
        fields: list[object] = [] if self.error is None else [self.error.described()]
        return Described(ULong(frames.REJECTED), fields)


@final
class Released:
    __slots__ = ()

    def described(self) -> Described:
        return Described(ULong(frames.RELEASED), [])


@final
class Modified:
    __slots__ = ("annotations", "delivery_failed", "undeliverable_here")

    def __init__(
        self, delivery_failed: bool = False, undeliverable_here: bool = False, annotations: Map | None = None
    ) -> None:
        self.delivery_failed = delivery_failed
        self.undeliverable_here = undeliverable_here
        self.annotations = annotations

    def described(self) -> Described:
        fields: list[object] = [self.delivery_failed, self.undeliverable_here, self.annotations]
        return Described(ULong(frames.MODIFIED), fields)


@final
class Declared:
    """A transaction was begun."""

    __slots__ = ("transaction",)

    def __init__(self, transaction: bytes) -> None:
        self.transaction = transaction

    def described(self) -> Described:
        return Described(ULong(frames.DECLARED), [self.transaction])


@final
class Transactional:
    """A state that holds once its transaction does."""

    __slots__ = ("outcome", "transaction")

    def __init__(self, transaction: bytes, outcome: "Outcome | None" = None) -> None:
        self.transaction = transaction
        self.outcome = outcome

    def described(self) -> Described:
        fields: list[object] = [self.transaction]
        if self.outcome is not None:
            fields.append(self.outcome.described())
        return Described(ULong(frames.TRANSACTIONAL_STATE), fields)


Outcome = Accepted | Rejected | Released | Modified
State = Outcome | Received | Declared | Transactional

ACCEPTED: Final = Accepted()
RELEASED: Final = Released()


def state_of(value: Described | None) -> State | None:
    """The state that a described list says; None for one that is not known, which then counts as not given."""
    if value is None:
        return None
    number = value.descriptor
    if isinstance(number, Symbol):
        number = _NUMBERS.get(number)
    if not isinstance(number, int) or not isinstance(value.value, list):
        return None
    fields = Fields("a delivery state", value.value)
    if number == frames.ACCEPTED:
        return ACCEPTED
    if number == frames.RELEASED:
        return RELEASED
    if number == frames.REJECTED:
        return Rejected(error_of(fields.described(0, "error")))
    if number == frames.MODIFIED:
        return Modified(
            fields.flag(0, "delivery-failed"),
            fields.flag(1, "undeliverable-here"),
            fields.optional_table(2, "message-annotations"),
        )
    if number == frames.RECEIVED:
        return Received(fields.number(0, "section-number"), fields.number(1, "section-offset"))
    return _of_transactions(number, fields)


def outcome_in(state: State | None) -> Outcome | None:
    """The outcome that a state says, also one that a transaction has yet to make true."""
    if isinstance(state, Transactional):
        return state.outcome
    return None if isinstance(state, Received | Declared) else state


def _of_transactions(number: int, fields: Fields) -> State | None:
    if number == frames.DECLARED:
        return Declared(_transaction(fields))
    if number == frames.TRANSACTIONAL_STATE:
        return Transactional(_transaction(fields), outcome_in(state_of(fields.described(1, "outcome"))))
    return None


def _transaction(fields: Fields) -> bytes:
    transaction = fields.binary(0, "txn-id")
    if transaction is None:
        raise ProtocolError(DECODE_ERROR, "a state of a transaction lacks its field 'txn-id'")
    return transaction


def error_of(value: Described | None) -> Error | None:
    if value is None or not isinstance(value.value, list):
        return None
    fields = Fields("an error", value.value)
    return Error(
        fields.text(0, "condition") or "", fields.text(1, "description") or "", fields.optional_table(2, "info")
    )


_NUMBERS: Final = {
    "amqp:received:list": frames.RECEIVED,
    "amqp:accepted:list": frames.ACCEPTED,
    "amqp:rejected:list": frames.REJECTED,
    "amqp:released:list": frames.RELEASED,
    "amqp:modified:list": frames.MODIFIED,
    "amqp:declared:list": frames.DECLARED,
    "amqp:transactional-state:list": frames.TRANSACTIONAL_STATE,
}
