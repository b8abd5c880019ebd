"""The columns that people see say what the stored ones say, also of messages without properties."""

import pyarrow as pa

from headrace.model import NATIVE, Message, Source
from headrace.storage.frame import FRAME, Frame
from headrace.storage.local.arrow import batch_of_block
from headrace.storage.local.encoding import encode_block
from headrace.wire.properties import Properties, encode_native
from tests.workbench import plain

TEXT = Message(Source("t", encoding=NATIVE), b"x", 1, encode_native(Properties({"name": "value"}, "text/plain")))


def rows(batch: pa.RecordBatch) -> list[tuple[object, object]]:
    shown = Frame("orders", FRAME.names).of(batch)
    assert shown.schema.equals(FRAME)
    shown.validate(full=True)
    return list(zip(shown.column("content_type").to_pylist(), shown.column("headers").to_pylist(), strict=True))


def test_messages_without_properties_have_no_content_type_and_no_headers() -> None:
    assert rows(batch_of_block(encode_block(0, plain(b"a", b"b")), 0, 2)) == [(None, None)] * 2


def test_some_rows_of_a_block_have_the_properties_that_these_rows_have() -> None:
    block = encode_block(0, [*plain(b"a", b"b"), TEXT, *plain(b"c")])
    text = ("text/plain", [("name", "value")])

    assert rows(batch_of_block(block, 0, 4)) == [(None, None), (None, None), text, (None, None)]
    assert rows(batch_of_block(block, 0, 2)) == [(None, None)] * 2
    assert rows(batch_of_block(block, 2, 3)) == [text]
    assert rows(batch_of_block(block, 3, 4)) == [(None, None)]
    assert rows(batch_of_block(block, 0, 4).slice(1, 0)) == []
