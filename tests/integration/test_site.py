"""The documentation as a site: it builds without a warning, needs no network, and says of the code what is so."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

import headrace
from headrace.admin.api.openapi import OPERATIONS
from headrace.core.queue.definition import COMPARED
from tests.examples import examples
from tests.servers import Server, serving

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as strictly as MkDocs can: a link or an anchor that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site") / "site"
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=_ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


class _Loaded(HTMLParser):
    """What a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.addresses.append(values.get("src") or "")
        if tag == "link" and values.get("rel") in ("stylesheet", "preconnect", "icon"):
            self.addresses.append(values.get("href") or "")


def test_every_page_is_in_the_navigation_and_in_the_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    home = (site / "index.html").read_text()

    for page in (_ROOT / "docs").rglob("*.md"):
        place = page.relative_to(_ROOT / "docs").with_suffix(".html").as_posix()
        assert place in found
        if place.split("/")[0] not in ("benchmarks", "design", "formats"):
            assert f'href="{place}"' in home, f"{place} is not in nav of mkdocs.yml"
        assert "```" not in (site / place).read_text()


def test_a_browser_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = _Loaded()
        loaded.feed(page.read_text())
        for address in loaded.addresses:
            assert not re.match(r"(https?:)?//", address), f"{page.relative_to(site)} loads {address}"


def test_the_reference_has_every_command_operation_metric_and_name(site: Path, tmp_path: Path) -> None:
    pages = {page.stem: page.read_text() for page in (site / "reference").glob("*.html")}
    with serving(Server(tmp_path, in_memory=True)) as server:
        server.connect().channel().queue_declare("orders", durable=True)
        told = httpx.get(f"{server.http_url}/metrics", auth=("guest", "guest")).text

    commands = {name for name, _ in examples()} - {""}
    for name in commands - {name.rpartition(" ")[0] for name in commands}:
        assert f"<code>headrace {name}</code>" in pages["commands"]
    for operation in OPERATIONS:
        assert f"<code>/api/v1{operation.path}</code>" in pages["http"]
    for metric in re.findall(r"^# TYPE (\S+)", told, re.MULTILINE):
        assert f"<code>{metric}</code>" in pages["metrics"]
    for name in headrace.__all__:
        assert name.startswith("__") or f"<code>headrace.{name}</code>" in pages["python"]
    for argument in COMPARED:
        assert f"<code>{argument}</code>" in pages["arguments"]


def test_every_test_that_the_guarantees_name_is_there() -> None:
    named = re.findall(r"`(tests/[^`]+)`", (_ROOT / "docs" / "guarantees.md").read_text())

    assert len(named) > 30
    for file, _, test in [name.partition("::") for name in named]:
        assert f"def {test}" in (_ROOT / file).read_text()
