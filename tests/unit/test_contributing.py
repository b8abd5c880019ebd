"""CONTRIBUTING.md: each file that its map, walk and examples name is there, and the map has all folders of the package.

A module of the walk goes by its name without `.py`, and stands below the package or beside the module named before it.
"""

import re
from pathlib import Path

import pytest

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


def _section(title: str) -> str:
    return (_ROOT / "CONTRIBUTING.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]


def _missing_in_walk(text: str) -> list[str]:
    """The modules of a walk that are not there; in parentheses stand functions."""
    missing, folder = [], _PACKAGE
    for name in re.findall(r"`([a-z0-9_/]+)`", re.sub(r"\([^)]*\)", "", text)):
        found = [place for place in (_PACKAGE / f"{name}.py", folder / f"{name}.py") if place.is_file()]
        if found:
            folder = found[0].parent
        else:
            missing.append(name)
    return missing


def _missing_in_example(text: str, folder: Path) -> list[str]:
    """The paths of an example that are not there: below the repository, the package, or the folder it is about."""
    names = re.findall(r"`([\w./-]*(?:/|\.)[\w./-]*)`", text)
    paths = [name for name in names if "/" in name or name.endswith((".py", ".md"))]
    assert len(paths) > 3
    return [name for name in paths if not any((place / name).exists() for place in (_ROOT, _PACKAGE, folder))]


def test_every_module_of_the_walk_is_there() -> None:
    walk = _section("A publish, file by file")

    assert walk.count("`core/") > 5
    assert _missing_in_walk(walk) == []


@pytest.mark.parametrize(
    ("title", "folder"), [("Add a protocol", "protocols/stomp"), ("Add a queue option", "core/queue")]
)
def test_every_path_of_the_examples_is_there(title: str, folder: str) -> None:
    assert _missing_in_example(_section(title), _PACKAGE / folder) == []


def test_a_path_that_is_not_there_is_found() -> None:
    assert _missing_in_walk("`core/broker` (`publish`) -> `client` -> `nowhere` -> `core/none`") == [
        "nowhere",
        "core/none",
    ]
    example = "`core/client.py` `codec.py` `docs/` `docs/none.md` `Access.login` `none.py` `core/none/`"
    assert _missing_in_example(example, _PACKAGE / "protocols/stomp") == ["docs/none.md", "none.py", "core/none/"]


def test_every_folder_of_the_package_is_on_the_map() -> None:
    folders = {path.parent for path in _PACKAGE.rglob("__init__.py")} - {_PACKAGE}

    assert sorted(folders - _named().keys()) == []
