"""SlateDB's library called directly gives what its own package gives, and only for the release it was written for."""

from importlib.metadata import version
from pathlib import Path

import pytest

from headrace.clock import SystemClock
from headrace.errors import Refused, Unavailable
from headrace.storage.objects.database import Database, Tuning
from headrace.storage.objects.location import REQUIRED, Location, check_version, lift_raw, lower, native, rows

QUICK = Tuning(flush_interval_ms=1)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(Location(f"file://{tmp_path}/store"), "main", QUICK, SystemClock())


def test_the_release_that_is_installed_is_the_one_that_is_required() -> None:
    assert version("slatedb") == REQUIRED
    with pytest.raises(Unavailable, match="is needed: pip install"):
        check_version("0.18.0")


@pytest.mark.parametrize("value", [b"", b"\x00", b"key", bytes(range(256)), b"x" * 100_000])
def test_bytes_are_converted_as_the_package_converts_them(value: bytes) -> None:
    assert lift_raw(lower(value)) == lift_raw(native._UniffiFfiConverterBytes.lower(value))


def test_rows_are_read_as_the_package_reads_them() -> None:
    written = [
        native.KeyValue(key=b"a", value=b"", seq=1, create_ts=2, expire_ts=None),
        native.KeyValue(key=b"", value=b"x" * 300, seq=3, create_ts=-4, expire_ts=5),
    ]
    raw = lift_raw(native._UniffiFfiConverterSequenceTypeKeyValue.lower(written))

    assert rows(raw) == [(b"a", b""), (b"", b"x" * 300)]


def test_what_is_written_is_found_by_key_by_range_and_from_the_end(database: Database) -> None:
    database.store([(b"k%03d" % number, b"v%d" % number) for number in range(250)])
    database.store([(b"k007", None), (b"\xff", b"last"), (b"empty", b"")])

    assert (database.get(b"k001"), database.get(b"k007"), database.get(b"empty")) == (b"v1", None, b"")
    assert [key for key, _ in database.scan_prefix(b"k00", at_once=4)] == [b"k00%d" % at for at in range(10) if at != 7]
    assert [len(found) for found in database.scan(b"k", b"l", at_once=100)] == [100, 100, 49]
    assert list(database.scan(b"x", b"a")) == []
    assert database.last(b"k", b"k008") == (b"k006", b"v6")
    assert database.last(b"l", b"m") is None
    assert list(database.scan_prefix(b"\xff")) == [(b"\xff", b"last")]
    database.close()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://bucket/x", "is not the URL of a store"),
        ("s3:///prefix", "names no bucket"),
        ("file://host/dir", "names no directory"),
        ("file:///", "names no directory"),
        ("s3://key:secret@bucket/x", "credentials come from the environment"),
        ("s3://bucket/x?region=eu", "has no user, query or fragment"),
    ],
)
def test_a_url_that_names_no_store_is_refused_in_words(url: str, what: str) -> None:
    with pytest.raises(Refused, match=what):
        Location(url)


def test_a_directory_that_cannot_be_made_is_said_to_be_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(Unavailable, match="cannot be made"):
        Location(f"file://{tmp_path}/file/below")
