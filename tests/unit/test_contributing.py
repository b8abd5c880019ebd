"""The map in CONTRIBUTING.md: every file that it names is there, and every folder of the package has its place."""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PACKAGE = _ROOT / "src" / "headrace"


def _named() -> dict[Path, list[str]]:
    """The files that the map names, by folder: a line's folder is the last one named at its depth."""
    text = (_ROOT / "CONTRIBUTING.md").read_text().split("```text\n")[1].split("```")[0]
    found: dict[Path, list[str]] = {}
    open_folders: list[tuple[int, Path]] = []
    for line in text.split("bench/ ")[0].splitlines()[1:]:
        depth = len(line) - len(line.lstrip())
        while open_folders and open_folders[-1][0] >= depth:
            open_folders.pop()
        inside = open_folders[-1][1] if open_folders else _PACKAGE
        folder = re.match(r"\s*(\w+)/", line)
        if folder is not None:
            inside = inside / folder[1]
            open_folders.append((depth, inside))
        found.setdefault(inside, []).extend(re.findall(r"\b(\w+\.py)\b", line))
    return found


def test_every_file_that_the_map_names_is_there() -> None:
    named = {folder / name for folder, names in _named().items() for name in names}

    assert len(named) > 100
    assert sorted(path for path in named if not path.is_file()) == []


def test_every_folder_of_the_package_is_on_the_map() -> None:
    folders = {path.parent for path in _PACKAGE.rglob("__init__.py")} - {_PACKAGE}

    assert sorted(folders - _named().keys()) == []
