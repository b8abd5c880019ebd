"""Puts the tails of many logs into records, as they stand in the file that tails.py describes and reads."""

from collections.abc import Iterator
from typing import Final

from librt.strings import BytesWriter

from headrace.storage.local.block_encoding import encode_block
from headrace.storage.local.record import encode_record
from headrace.storage.local.record_writing import write_run
from headrace.storage.local.tails import Tail

RECORD_BYTES: Final = 256 << 10
RECORD_ROWS: Final = 4096


def encode_tails(tails: list[Tail], seq: int) -> Iterator[list[bytes]]:
    """The file, record by record, for a checkpoint of commit `seq`."""
    number = seq
    for part in _parts(tails):
        runs = BytesWriter()
        for tail in part:
            write_run(runs, tail.log_id, len(tail.messages), tail.base)
        rows = [message for tail in part for message in tail.messages]
        block = encode_block(part[0].base if len(part) == 1 else 0, rows)
        yield encode_record(number, seq, b"", runs.getvalue(), [block])
        number += 1


def _parts(tails: list[Tail]) -> Iterator[list[Tail]]:
    """The tails by records: large enough to be cheap to write, and no larger, as readers of one log read the whole."""
    part: list[Tail] = []
    rows = size = 0
    for tail in tails:
        part.append(tail)
        rows += len(tail.messages)
        size += tail.size
        if rows >= RECORD_ROWS or size >= RECORD_BYTES:
            yield part
            part = []
            rows = size = 0
    if part:
        yield part
