"""The tutorial, step by step, as somebody new does it."""

from pathlib import Path

from tests.pages import Reader


def test_every_step_of_the_tutorial_shows_what_the_page_says(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    try:
        assert reader.follow("docs/tutorial.md") > 15
    finally:
        reader.stop()
