"""How staged commits become one batch: the messages of each log together, encoded. What a batch is: batch.py."""

from headrace.storage.api import Append
from headrace.storage.local.batch import Batch, Staged
from headrace.storage.local.block import Block
from headrace.storage.local.block_encoding import encode_block
from headrace.storage.local.encoded import EncodedBlock, EncodedRows
from headrace.storage.local.log import LocalLog


def batch_of(commits: list[Staged]) -> Batch:
    """Put staged commits together, the messages of each log next to each other, and encode them. Raises Refused."""
    if commits and commits[0].commit.is_encoded:
        return _batch_encoded(commits[0])
    batch = Batch(commits)
    for staged in commits:
        batch.take_over(staged)
    batch.operations = b"".join([staged.operations.getvalue() for staged in commits])
    _gather(batch, commits)
    if batch.messages:
        batch.blocks = [encode_block(batch.bases[0] if len(batch.logs) == 1 else 0, batch.messages)]
    return batch


def _batch_encoded(staged: Staged) -> Batch:
    """A batch of one commit, with a block for each of its appends unless they came in one. Raises Refused."""
    batch = Batch([staged])
    batch.take_over(staged)
    batch.operations = staged.operations.getvalue()
    shared = _shared_block(staged.commit.appends)
    if shared is not None:
        batch.blocks.append(shared)
    for log, append in zip(staged.logs, staged.commit.appends, strict=True):
        if append.count:
            batch.add(log, append.base, append.count)
            if shared is None:
                batch.blocks.append(_block_of(append))
    return batch


def _gather(batch: Batch, commits: list[Staged]) -> None:
    """Put the messages of all commits into the batch, those of each log next to each other."""
    logs = commits[0].logs if len(commits) == 1 else [log for staged in commits for log in staged.logs]
    appends = [append for staged in commits for append in staged.commit.appends if append.count]
    if len(appends) != len(logs) or not _are_distinct(logs):
        _group(batch, commits)
        return
    batch.logs = logs  # as they come: 0.5 us a message less than grouping them
    batch.bases = [append.base for append in appends]
    batch.counts = [append.count for append in appends]
    messages = batch.messages
    for append in appends:
        if append.count == 1:
            messages.append(append.messages[0])
        else:
            messages += append.messages


def _are_distinct(logs: list[LocalLog]) -> bool:
    """Whether no log is there twice: then each has the number that was written on it."""
    for number, log in enumerate(logs):
        log.number = number
    for number, log in enumerate(logs):
        if log.number != number:
            return False
    return True


def _group(batch: Batch, commits: list[Staged]) -> None:
    """Put together what goes to the same log, whatever comes in between."""
    by_log: dict[LocalLog, list[Append]] = {}
    for staged in commits:
        for number, append in enumerate(staged.commit.appends):
            by_log.setdefault(staged.logs[number], []).append(append)
    messages = batch.messages
    for log, found in by_log.items():
        start = len(messages)
        for append in found:
            messages += append.messages
        if len(messages) > start:
            batch.add(log, found[0].base, len(messages) - start)


def _shared_block(appends: list[Append]) -> Block | None:
    """The block of which the appends are the rows, all of them and in turn."""
    first = appends[0].encoded if appends else None
    if not isinstance(first, EncodedRows):
        return None
    row = 0
    for append in appends:
        encoded = append.encoded
        if not isinstance(encoded, EncodedRows) or encoded.block is not first.block or encoded.start != row:
            return None
        row += encoded.count
    return first.block if row == first.block.count else None


def _block_of(append: Append) -> Block:
    """The messages of an append as one block. Raises Refused."""
    encoded = append.encoded
    if encoded is None:
        return encode_block(append.base, append.messages)
    if isinstance(encoded, EncodedBlock):
        return encoded.block
    if isinstance(encoded, EncodedRows):
        return encoded.alone().block
    return encode_block(append.base, encoded.messages(0, encoded.count))
