"""Files of bulk transactions in a store: found by the next broker, until they are removed or too old."""

from pathlib import Path

from headrace.storage.objects.parts import StoredParts

LATER_S = 1e12


def test_files_are_found_by_another_broker_of_the_group_until_they_are_removed(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    for folder in ("job", "job-2"):
        StoredParts(url, "main", 1000).keep(folder, "p 0%.part", folder.encode())
    parts = StoredParts(url, "main", 1000)

    assert parts.fetch("job", "p 0%.part") == b"job"
    assert parts.fetch("job", "p1.part") is None
    assert StoredParts(url, "eu", 1000).fetch("job", "p 0%.part") is None
    parts.remove("job")
    assert parts.fetch("job", "p 0%.part") is None
    parts.sweep(0)
    assert parts.fetch("job-2", "p 0%.part") == b"job-2"
    parts.sweep(LATER_S)
    assert parts.fetch("job-2", "p 0%.part") is None
