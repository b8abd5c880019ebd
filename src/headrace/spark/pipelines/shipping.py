"""Our own code, taken along to where Spark runs: a file that executors load. No sessions are made here."""

import io
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Final

import mypy_extensions
from pyspark.sql import SparkSession

from headrace import errors
from headrace.spark.source import HeadraceDataSource

_NEEDED: Final = (
    "pyspark_headrace/**/*.py",
    "headrace/*.py",
    "headrace/config/*.py",
    "headrace/selector/**/*.py",
    "headrace/storage/**/*.py",
    "headrace/spark/**/*.py",
)
"""What an executor may load; it never loads the server."""


def source_directory() -> Path:
    """The directory that our packages are in."""
    return Path(errors.__file__).parents[1]


def pack(directory: Path) -> Path:
    """Our own code in one file that executors load; Python only, since compiled modules cannot be loaded from it."""
    target = directory / "headrace.zip"
    target.write_bytes(_packed())
    return target


def ship(session: SparkSession) -> None:
    """Have a Connect server know our code and our data source, for as long as the session lives.

    Its executors load the code, and what plans a batch. Its streams do not: they need a Headrace that is installed.
    """
    with tempfile.TemporaryDirectory() as directory:
        session.addArtifacts(str(pack(Path(directory))), pyfile=True)
    session.dataSource.register(HeadraceDataSource)


@cache
def _packed() -> bytes:
    source = source_directory()
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in _NEEDED:
            for file in sorted(source.glob(each)):
                archive.write(file, file.relative_to(source))
        archive.write(mypy_extensions.__file__, "mypy_extensions.py")  # all that it needs besides Spark and Arrow
    return found.getvalue()
