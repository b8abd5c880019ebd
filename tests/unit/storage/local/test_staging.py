"""Parts are kept until they are taken, replaced, forgotten or too old; a damaged one is not there."""

from pathlib import Path

import pytest

from headrace.errors import NotFound, PreconditionFailed, Unavailable
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.staging import Keeper, StagingArea, encoded
from tests.workbench import all_values, full_message, many

TARGET = {"kind": "queue", "name": "orders"}


def area(root: Path, max_bytes: int = 1 << 20) -> StagingArea:
    return StagingArea(root / "staging", max_bytes)


def test_a_part_comes_back_as_it_was_also_to_another_process(tmp_path: Path) -> None:
    blocks = [encoded(encode_block(0, many(3))), encoded(encode_block(0, [full_message()]))]
    area(tmp_path).put("shop\0job", "p0", TARGET, blocks, b"beside")

    target, found, beside = area(tmp_path).get("shop\0job", "p0")

    assert (target, beside) == (TARGET, b"beside")
    assert [all_values(rows.messages(0, rows.count)) for rows in found] == [
        all_values(many(3)), all_values([full_message()]),
    ]  # fmt: skip
    assert [(rows.largest_bytes, rows.first_expiry_us) for rows in found] == [(8, 0), (4, 2_060)]


class Shelf(Keeper):
    """Files in memory, which cannot be swept now."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], bytes] = {}

    def keep(self, folder: str, name: str, data: bytes) -> None:
        self.files[folder, name] = data

    def fetch(self, folder: str, name: str) -> bytes | None:
        return self.files.get((folder, name))

    def remove(self, folder: str) -> None:
        self.files = {each: data for each, data in self.files.items() if each[0] != folder}

    def sweep(self, before_s: float) -> None:
        raise Unavailable("the store is away")


def test_a_commit_that_has_begun_goes_on_in_another_directory_with_one_keeper(tmp_path: Path) -> None:
    shelf = Shelf()
    first, next_ = (StagingArea(tmp_path / name, 1 << 20, shelf) for name in ("first", "next"))
    for part in ("p0", "p1", "late"):
        first.put("job", part, TARGET, [encoded(encode_block(0, many(3)))], b"beside")
    first.begin("job", 4, ["p0", "p1"])

    assert next_.begun("job", 4) == ["p0", "p1"]
    assert next_.outline("job", "p0") == first.outline("job", "p0")
    assert next_.get("job", "p1")[2] == b"beside"
    with pytest.raises(NotFound):
        next_.get("job", "late")
    with pytest.raises(NotFound):
        next_.begun("job", 5)
    next_.sweep_all(0)
    next_.remove("job")
    assert not shelf.files


def test_the_same_part_again_replaces_it(tmp_path: Path) -> None:
    staging = area(tmp_path)
    for count in (3, 5):
        staging.put("job", "p0", TARGET, [encoded(encode_block(0, many(count)))])

    assert [rows.count for rows in staging.get("job", "p0")[1]] == [5]


def test_what_was_forgotten_is_not_there(tmp_path: Path) -> None:
    staging = area(tmp_path)
    staging.put("job", "p0", TARGET, [encoded(encode_block(0, many(3)))])

    staging.remove("job")
    staging.remove("job")

    assert staging.used_bytes() == 0
    with pytest.raises(NotFound, match="part 'p0' of transaction 'job' is not there"):
        staging.get("job", "p0")


def test_nothing_is_taken_of_an_attempt_that_is_over_but_of_the_next_one(tmp_path: Path) -> None:
    staging = area(tmp_path)
    blocks = [encoded(encode_block(0, many(3)))]
    staging.put("job", "p0", TARGET, blocks, attempt="one")
    staging.remove("job", "one")

    with pytest.raises(PreconditionFailed, match="transaction 'job' was committed or aborted before"):
        area(tmp_path).put("job", "p1", TARGET, blocks, attempt="one")
    assert staging.used_bytes() == 0

    staging.put("job", "p1", TARGET, blocks, attempt="two")
    assert staging.get("job", "p1")[0] == TARGET


def test_that_an_attempt_is_over_is_forgotten_when_nobody_can_come_late_any_more(tmp_path: Path) -> None:
    staging = area(tmp_path)
    blocks = [encoded(encode_block(0, many(3)))]
    staging.remove("job", "one")

    staging.sweep((tmp_path / "staging").stat().st_mtime + 3600)

    staging.put("job", "p0", TARGET, blocks, attempt="one")
    assert staging.used_bytes() > 0


def test_a_damaged_part_is_not_there(tmp_path: Path) -> None:
    staging = area(tmp_path)
    staging.put("job", "p0", TARGET, [encoded(encode_block(0, many(3)))])
    (path,) = (tmp_path / "staging").rglob("*.part")
    whole = path.read_bytes()

    for damaged in (b"", b"{}\n", whole[:-8], whole[:-9] + b"!" + whole[-8:], whole + b"?"):
        path.write_bytes(damaged)
        with pytest.raises(NotFound):
            staging.get("job", "p0")


def test_transactions_of_which_nothing_is_heard_are_given_up(tmp_path: Path) -> None:
    staging = area(tmp_path)
    staging.put("job", "p0", TARGET, [encoded(encode_block(0, many(3)))])
    (folder,) = (tmp_path / "staging").iterdir()
    heard_s = folder.stat().st_mtime

    assert staging.sweep(heard_s - 1) == 0
    assert staging.sweep(heard_s + 1) == 1
    assert staging.used_bytes() == 0


def test_there_is_an_end_to_what_is_kept(tmp_path: Path) -> None:
    staging = area(tmp_path, 1000)
    staging.put("a", "p0", TARGET, [encoded(encode_block(0, many(3)))])

    with pytest.raises(Unavailable, match="uncommitted writes are kept already"):
        staging.put("b", "p0", TARGET, [encoded(encode_block(0, many(100)))])
