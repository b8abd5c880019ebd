"""Messages on a terminal: as text, as JSON, as hex."""

import base64
import json
import sys
from typing import Any, Final

import typer

FORMATS: Final = ("text", "json", "hex")


def payload_of(message: dict[str, Any]) -> bytes:
    """The payload as it was published."""
    text: str = message["payload"]
    return base64.b64decode(text) if message["payload_encoding"] == "base64" else text.encode(errors="surrogatepass")


def print_message(message: dict[str, Any], form: str, with_headers: bool = False) -> None:
    """`text` is the payload alone, `json` everything on one line, `hex` a dump."""
    if form == "json":
        typer.echo(json.dumps(message, ensure_ascii=True))
        return
    payload = payload_of(message)
    if with_headers or form == "hex":
        reason = message["properties"].get("headers", {}).get("_dlq_reason", "")
        typer.echo(f"# {message['offset']}  {message['timestamp']}  {message['topic']}  {reason}".rstrip())
    if form == "hex":
        typer.echo(_dump(payload))
        return
    sys.stdout.buffer.write(payload + b"\n")
    sys.stdout.flush()


def _dump(payload: bytes) -> str:
    lines: list[str] = []
    for at in range(0, len(payload), 16):
        part = payload[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)
