"""What docs/http.md has people type works, in the order in which it is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.servers import Server

PAGE = Path(__file__).parents[3] / "docs" / "http.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_every_block_for_the_shell_runs(server: Server) -> None:
    blocks = [text for text in BLOCK.findall(PAGE.read_text()) if "api/v1" in text or "headrace queues" in text]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HEADRACE_URL": server.http_url}
    script = "\n".join(blocks).replace("127.0.0.1:15672", f"127.0.0.1:{server.http_port}")

    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace("curl ", "curl -sS --fail-with-body ")],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )

    assert blocks
    assert result.returncode == 0, result.stdout + result.stderr
    assert "espresso" in result.stdout
