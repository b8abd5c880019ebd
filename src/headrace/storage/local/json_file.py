"""JSON documents with a format number and a checksum inside, for what people may want to read. No file access."""

import json
from pathlib import Path
from typing import Any

from headrace.errors import Corrupt
from headrace.storage.local.checksum import crc32


def encode_json(values: dict[str, Any]) -> bytes:
    """The document with its checksum added, laid out; `values` says which format it is in."""
    whole = {**values, "crc32": f"{crc32(_canonical(values)):08x}"}
    return json.dumps(whole, ensure_ascii=False, indent=1).encode()


def seal_json(document: bytes) -> bytes:
    """A document in its shortest form but for line breaks, which has members and no checksum yet, with that added."""
    shortest = document.replace(b"\n", b"")  # within texts they are escaped
    return document[:-1] + f',"crc32":"{crc32(shortest):08x}"}}'.encode()


def decode_json(data: bytes, path: Path, newest: int) -> dict[str, Any]:
    """The values of a document. Raises Corrupt when it is none, is damaged, or has a format that is not known."""
    file = str(path)
    try:
        values = json.loads(data)
    except ValueError as error:
        raise Corrupt(file, getattr(error, "pos", 0), f"this is not JSON: {error}") from error
    if not isinstance(values, dict) or "crc32" not in values:
        raise Corrupt(file, 0, "the checksum is missing")
    crc = values.pop("crc32")
    try:
        found = f"{crc32(_canonical(values)):08x}"
    except UnicodeEncodeError as error:
        raise Corrupt(file, 0, f"a text in it is not valid Unicode: {error}") from error
    if crc != found:
        raise Corrupt(file, 0, f"the checksum does not fit; it says {crc}")
    if values.get("format") not in range(1, newest + 1):
        raise Corrupt(file, 0, f"format {values.get('format')} is not known to this release; use a newer one")
    return values


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
