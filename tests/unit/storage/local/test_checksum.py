"""Checksums are those of crc32 wherever the code runs: also on executors, which have no library for them."""

import subprocess
import sys
import zlib

import pytest

_PROGRAM = """
import sys
if {is_missing}:
    sys.modules["zlib_ng"] = None
from headrace.storage.local.files import crc32
data = bytes(range(256)) * 300
print(crc32.__module__, crc32(data), crc32(memoryview(data)[1:], crc32(data[:1])), crc32(b""))
"""


@pytest.mark.parametrize(("is_missing", "module"), [(False, "zlib_ng"), (True, "zlib")])
def test_checksums_are_the_same_with_the_library_and_without(is_missing: bool, module: str) -> None:
    program = _PROGRAM.format(is_missing=is_missing)
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    expected = zlib.crc32(bytes(range(256)) * 300)
    assert said[0].split(".")[0] == module
    assert [int(number) for number in said[1:]] == [expected, expected, 0]
