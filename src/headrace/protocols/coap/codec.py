"""Datagrams to CoAP requests, answers to datagrams. aiocoap reads and writes the messages; no sockets, no broker."""

from typing import Final, final

from aiocoap import Message
from aiocoap.error import UnparsableMessage
from aiocoap.numbers.codes import Code
from aiocoap.numbers.types import Type

from headrace.errors import ProtocolError

Block = tuple[int, bool, int]
"""A part of a body: its number, True if more follow, and the exponent of its size."""

CHANGED: Final = 0x44
CONTINUE: Final = 0x5F
BAD_REQUEST: Final = 0x80
UNAUTHORIZED: Final = 0x81
BAD_OPTION: Final = 0x82
FORBIDDEN: Final = 0x83
NOT_FOUND: Final = 0x84
METHOD_NOT_ALLOWED: Final = 0x85
ENTITY_INCOMPLETE: Final = 0x88
ENTITY_TOO_LARGE: Final = 0x8D
SERVICE_UNAVAILABLE: Final = 0xA3
PROXYING_NOT_SUPPORTED: Final = 0xA5

POST: Final = 0x02
PUT: Final = 0x03
_LAST_REQUEST: Final = 0x1F
_MAX_TOKEN_BYTES: Final = 8

# Critical options (their number is odd) that a request may have: host, port, path, query, accept, block 2, block 1.
_UNDERSTOOD: Final = frozenset((3, 7, 11, 15, 17, 23, 27))
_PROXY: Final = frozenset((35, 39))
_MAX_WORDS_BYTES: Final = 512
MALFORMED: Final = -1
"""The code for bytes that are no CoAP message."""


@final
class Request:
    """One datagram of a client."""

    __slots__ = ("block", "code", "content_type", "is_confirmable", "message_id", "path", "payload", "query", "token")

    def __init__(self, code: int, message_id: int, token: bytes, is_confirmable: bool, payload: bytes) -> None:
        self.code = code
        self.message_id = message_id
        self.token = token
        self.is_confirmable = is_confirmable
        self.payload = payload
        self.path: tuple[str, ...] = ()
        self.query: tuple[str, ...] = ()
        self.content_type = ""
        self.block: Block | None = None


def decode_request(data: bytes) -> Request | None:
    """The request in a datagram; None for an acknowledgement or a reset, which get no answer.

    A request with code 0 is a ping. Raises ProtocolError: MALFORMED for no CoAP message, else the answer's code.
    """
    if len(data) < 4 or data[0] >> 6 != 1:
        raise ProtocolError(MALFORMED, "this is no CoAP")
    kind = data[0] >> 4 & 3
    if kind > 1:
        return None
    try:
        message = Message.decode(data)
        code, options = int(message.code), message.opt
        request = Request(code, message.mid, bytes(message.token), kind == 0, bytes(message.payload))
        request.path, request.query = tuple(options.uri_path), tuple(options.uri_query)
        block = options.block1
        numbers = {int(option.number) for option in options.option_list()}
        content_format = options.content_format
    except (UnparsableMessage, ValueError, IndexError, AssertionError) as error:
        raise ProtocolError(MALFORMED, f"the message cannot be read: {error}") from error
    if data[0] & 15 > _MAX_TOKEN_BYTES or code > _LAST_REQUEST or (code == 0 and len(data) > 4):
        raise ProtocolError(MALFORMED, "the message is none that a client sends")
    if content_format is not None:
        request.content_type = str(getattr(content_format, "media_type", "") or "")
    if block is not None:
        request.block = (int(block.block_number), bool(block.more), int(block.size_exponent))
    _check_options(numbers)
    return request


def _check_options(numbers: set[int]) -> None:
    if numbers & _PROXY:
        raise ProtocolError(PROXYING_NOT_SUPPORTED, "this is no proxy")
    unknown = sorted(number for number in numbers if number & 1 and number not in _UNDERSTOOD)
    if unknown:
        raise ProtocolError(BAD_OPTION, f"option {unknown[0]} is not understood here")


def encode_answer(
    request_head: bytes, code: int, message_id: int, words: str = "", block: Block | None = None
) -> bytes:
    """The answer to a request, given the first bytes of its datagram; an acknowledgement if it is confirmable."""
    is_confirmable = request_head[0] >> 4 & 3 == 0
    message = Message(code=Code(code), payload=words.encode(errors="replace")[:_MAX_WORDS_BYTES])
    message.mtype = Type.ACK if is_confirmable else Type.NON
    message.mid = message_id
    message.token = request_head[4 : 4 + min(request_head[0] & 15, _MAX_TOKEN_BYTES)]
    if block is not None:
        message.opt.block1 = block
    return bytes(message.encode())


def encode_reset(message_id: int) -> bytes:
    """The answer to a ping and to a message that was not understood."""
    return bytes((0x70, 0)) + message_id.to_bytes(2)
