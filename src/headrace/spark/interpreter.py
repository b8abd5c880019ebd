"""The Python that Spark starts on this machine: the current one, with a quick start. Starts nothing itself.

Spark puts archives first on the path of every Python that it starts: pyspark's sources, and a large one without any
Python in it. Each Python then compiles pyspark again, which is most of its start. Where pyspark is installed beside its
archives, a small script in front of Python leaves them out.
"""

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

import pyspark

_VARIABLE: Final = "PYSPARK_PYTHON"
_SCRIPT: Final = """#!/bin/sh
set -f
path=
IFS=:
for each in $PYTHONPATH; do
    case "$each" in
    */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
    *) path="$path${path:+:}$each" ;;
    esac
done
unset IFS
export PYTHONPATH="$path"
exec "@PYTHON@" "$@"
"""


def ensure_python(folder: Path, environment: MutableMapping[str, str] = os.environ) -> Path:
    """Set PYSPARK_PYTHON to this Python, or to a script for it in the folder; return it. A user's setting stays.

    It works for executors on this machine, and while the folder exists.
    """
    if environment.get(_VARIABLE):
        return Path(environment[_VARIABLE])
    python = Path(sys.executable)
    if _is_installed(environment):
        script = folder / "python"
        script.write_text(_SCRIPT.replace("@PYTHON@", str(python)))
        script.chmod(0o755)
        python = script
    environment[_VARIABLE] = str(python)
    return python


def _is_installed(environment: MutableMapping[str, str]) -> bool:
    """Return whether this Python imports the pyspark of the Spark that runs."""
    installed = Path(pyspark.__file__).parent
    home = environment.get("SPARK_HOME")
    return os.name == "posix" and installed.is_dir() and (not home or Path(home).resolve() == installed.resolve())
