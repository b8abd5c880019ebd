"""The stream client for Java, from Maven Central: streams, deduplication, batches, offsets, filters, super streams."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers import Server

_PROGRAM = Path(__file__).parent / "java"
_SECONDS = 600


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client and all that it needs."""
    maven = shutil.which("mvn")
    assert maven is not None, "mvn is missing: scripts/test installs it"
    directory = tmp_path_factory.mktemp("libraries")
    command = [maven, "-q", "-B", "-f", str(_PROGRAM / "pom.xml"), "dependency:copy-dependencies"]
    subprocess.run([*command, f"-DoutputDirectory={directory}"], check=True, timeout=_SECONDS)
    return directory


def test_the_java_client_finds_streams_as_it_knows_them(server: Server, libraries: Path) -> None:
    ended = subprocess.run(
        ["java", "-cp", f"{libraries}/*", str(_PROGRAM / "Streams.java"), str(server.ports["stream"])],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )

    assert ended.stdout.endswith("done\n"), ended.stdout + ended.stderr
