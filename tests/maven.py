"""Java programs that try a client from Maven Central against a broker. No clients."""

import shutil
import subprocess
from pathlib import Path

_SECONDS = 600


def libraries_of(program: Path, directory: Path) -> Path:
    """Copy what the `pom.xml` beside a program names into a directory; return that."""
    maven = shutil.which("mvn")
    assert maven is not None, "mvn is missing: scripts/test installs it"
    command = [maven, "-q", "-B", "-f", str(program.parent / "pom.xml"), "dependency:copy-dependencies"]
    subprocess.run([*command, f"-DoutputDirectory={directory}"], check=True, timeout=_SECONDS)
    return directory


def run(program: Path, libraries: Path, *words: str) -> None:
    """Run a program, which says `done` at its end if all was as it should be."""
    command = ["java", "-cp", f"{libraries}/*", str(program), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert ended.stdout.endswith("done\n"), ended.stdout + ended.stderr
