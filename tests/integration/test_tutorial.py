"""The tutorial and the pages that say how to do something, step by step, as somebody new does it."""

from pathlib import Path

import pytest

from tests.pages import ROOT, Reader

_PAGES = ["docs/tutorial.md", *[f"docs/how-to/{page.name}" for page in sorted((ROOT / "docs/how-to").glob("*.md"))]]


@pytest.mark.parametrize("page", _PAGES)
def test_every_step_of_a_page_shows_what_the_page_says(page: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        assert reader.follow(page) > 2
    finally:
        reader.stop()
