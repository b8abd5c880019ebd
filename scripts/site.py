"""What MkDocs builds besides docs/: the README as the first page, files that pages link to, reference pages.

The reference pages are made from the code at each build. MkDocs calls the functions `on_...`.
"""

import ast
import inspect
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages from outside docs/, and where they are in the site."""
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")
_FOR_TESTS = re.compile(r"(?m)^(```\w+) (?!title=).*$")
"""What follows the language of a block, for tests to find it."""
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".sh": "sh", "Containerfile": "dockerfile"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put all pages of a folder where the navigation has the folder."""
    assert config.nav is not None
    config.nav = [_opened(entry) for entry in config.nav]
    return config


def _opened(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _opened(inside) for title, inside in entry.items()}
    if isinstance(entry, list):
        return [_opened(each) for each in entry]
    if not entry.endswith("/"):
        return entry
    pages = sorted(page.relative_to(DOCS).as_posix() for page in (DOCS / entry).glob("*.md"))
    return sorted(pages, key=lambda page: not page.endswith("/index.md"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that docs/ does not have."""
    sys.path.insert(0, str(ROOT / "src"))
    for name, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=_moved((ROOT / name).read_text(), "", place)))
    for path in sorted(_linked_files()):
        files.append(File.generated(config, _source_page(path), content=_shown(path)))
    for name, text in reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have the links of a page lead to where files are in the site, and its blocks be no more than blocks."""
    place = page.file.src_uri
    markdown = _FOR_TESTS.sub(r"\1", markdown)
    if place == "design/index.md":
        pages = sorted(each for each in (DOCS / "design").glob("*.md") if each.name != "index.md")
        titles = [(each.name, each.read_text().partition("\n")[0].removeprefix("# ")) for each in pages]
        markdown += "\n" + "".join(f"- [{title}]({name})\n" for name, title in titles)
    if place in OUTSIDE.values() or place.startswith(("files/", "reference/")):
        return markdown
    return _moved(markdown, posixpath.join("docs", posixpath.dirname(place)), place)


def _moved(text: str, folder: str, place: str) -> str:
    """Rewrite links that are relative to a folder of the checkout for a page at `place` of the site."""

    def rewritten(found: "re.Match[str]") -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        return posixpath.relpath(_in_site(target), posixpath.dirname(place) or ".")

    return _LINK.sub(rewritten, text)


def _in_site(path: str) -> str:
    """Where the site has a file of the checkout."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if not path.startswith("docs/"):
        return _source_page(path)
    place = path.removeprefix("docs/")
    return f"{place}/index.md" if (ROOT / path).is_dir() else place


def _source_page(path: str) -> str:
    return f"files/{path}/index.md" if (ROOT / path).is_dir() else f"files/{path}.md"


def _linked_files() -> set[str]:
    """The files and folders outside docs/ that a page links to, and the files of these folders."""
    pages = [*DOCS.rglob("*.md"), *(ROOT / name for name in OUTSIDE)]
    targets = {
        posixpath.normpath(posixpath.join(str(page.relative_to(ROOT).parent), target))
        for page in pages
        for target in _LINK.findall(page.read_text())
    }
    outside = {path for path in targets if (ROOT / path).exists() and not path.startswith("docs")} - OUTSIDE.keys()
    inside = [file for path in outside if (ROOT / path).is_dir() for file in (ROOT / path).iterdir() if file.is_file()]
    return outside | {file.relative_to(ROOT).as_posix() for file in inside}


def _shown(path: str) -> str:
    """A page that shows a file, or lists the files of a folder."""
    if (ROOT / path).is_dir():
        names = sorted(file.name for file in (ROOT / path).iterdir() if file.is_file())
        return "".join([f"# {path}\n\n", *(f"- [{name}]({name}.md)\n" for name in names)])
    text = (ROOT / path).read_text()
    file = Path(path)
    language = _LANGUAGES.get(file.suffix) or _LANGUAGES.get(file.name, "text")
    return f"# {path}\n\n~~~~~{language}\n{text}~~~~~\n"


# -- reference ---------------------------------------------------------------------------------------------------------


def reference() -> dict[str, str]:
    """The reference pages by name."""
    return {
        "commands": _commands(),
        "arguments": _arguments(),
        "metrics": _metrics(),
        "http": _http(),
        "python": _python(),
    }


def _commands() -> str:
    import typer

    from headrace import cli

    lines = ["# Commands", "", "`headrace COMMAND --help` shows the same in a terminal.", ""]
    for name, command in _leaves("headrace", typer.main.get_command(cli.cli)):
        lines += [f"## `{name}`", "", str(command.help or "").strip(), ""]
        rows = [row for each in command.params if (row := _parameter(each))]
        if rows:
            lines += ["| | | |", "|---|---|---|", *rows, ""]
        examples = str(command.epilog or "").split("\n\n")[1:]
        if examples:
            lines += ["```sh", *examples, "```", ""]
    return "\n".join(lines)


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands that do something, with their full names."""
    if not hasattr(command, "list_commands"):
        yield name, command
        return
    for each in command.list_commands(None):
        yield from _leaves(f"{name} {each}", command.get_command(None, each))


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names, default = f"`{parameter.metavar or parameter.name.upper()}`", ""
    else:
        if parameter.hidden:
            return ""
        names = ", ".join(f"`{each}`" for each in [*parameter.opts, *parameter.secondary_opts])
        is_set = parameter.default not in (None, "", False) and not callable(parameter.default)
        default = f"`{parameter.default}`" if is_set and not parameter.is_flag else ""
    return f"| {names} | {default} | {_cell(parameter.help or '')} |"


def _arguments() -> str:
    from headrace.core.queue import definition

    lines = [
        "# Queue arguments",
        "",
        "AMQP clients give these with `queue.declare`; `headrace queues declare -a` takes them, too. In a program, "
        "`declare` has them without `x-` and with underscores. The keys of the "
        "[configuration file](../configuration.md#queues-and-policies) say the same in other words.",
        "",
        "| argument | in Python | kind | default | |",
        "|---|---|---|---|---|",
    ]
    for table in (definition._ARGUMENT_TABLE, definition._STREAM_TABLE):
        for _, key in table.walk():
            python = key.name.removeprefix("x-").replace("-", "_")
            default = f"`{key.kind.show(key.default)}`" if key.default not in (None, "") else ""
            cells = [f"`{key.name}`", f"`{python}`", key.kind.noun, default, key.help]
            lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join([*lines, ""])


def _metrics() -> str:
    """Every call that makes a family of metrics, wherever it is."""
    rows: dict[str, str] = {}
    for file in sorted((ROOT / "src" / "headrace" / "admin").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 2:
                name, about = node.args
                if node.func.attr in ("counter", "gauge", "histogram") and isinstance(name, ast.Constant):
                    rows[str(name.value)] = f"| `{name.value}` | {node.func.attr} | {_cell(ast.literal_eval(about))} |"
    lines = [
        "# Metrics",
        "",
        "`GET /metrics`, for users with the tag `monitoring`. [How it is scraped](../http.md#metrics).",
        "",
    ]
    return "\n".join([*lines, "| metric | kind | |", "|---|---|---|", *(rows[name] for name in sorted(rows)), ""])


def _http() -> str:
    from headrace.admin.api.openapi import OPERATIONS, document
    from headrace.admin.api.operation import PREFIX

    paths: Any = document()["paths"]
    lines = [
        "# HTTP API",
        "",
        "The broker serves the same as OpenAPI at `/api/v1/openapi.json`. [HTTP](../http.md#the-api) explains it.",
        "",
        "| | | |",
        "|---|---|---|",
    ]
    for each in OPERATIONS:
        said = paths[PREFIX + each.path][each.method.lower()]
        queries = [
            f"`{parameter['name']}`" for parameter in said.get("parameters", []) if parameter.get("in") == "query"
        ]
        lines.append(
            f"| {each.method.upper()} | `{PREFIX}{each.path}` | {_cell(said.get('summary', ''))} {', '.join(queries)} |"
        )
    return "\n".join([*lines, ""])


def _python() -> str:
    import headrace

    lines = [
        "# Python",
        "",
        "What `import headrace` gives. [The broker inside your program](../embedded.md) shows it in use.",
        "",
    ]
    for name in headrace.__all__:
        found = getattr(headrace, name)
        if isinstance(found, str):
            continue
        lines += [f"## `headrace.{name}`", "", _about(found), ""]
        if inspect.isclass(found):
            members = [(each, value) for each, value in vars(found).items() if not each.startswith("_")]
            rows = [row for each, value in members if (row := _member(each, value))]
            if rows:
                lines += ["| | |", "|---|---|", *rows, ""]
        else:
            lines += [f"```py\n{name}{inspect.signature(found)}\n```", ""]
    return "\n".join(lines)


def _member(name: str, value: object) -> str:
    if isinstance(value, property):
        return f"| `{name}` | {_cell(_about(value))} |"
    if callable(value):
        signature = re.sub(r"\(self(, )?", "(", str(inspect.signature(value)))
        return f"| `{_cell(name + signature)}` | {_cell(_about(value))} |"
    return ""


def _about(found: object) -> str:
    return inspect.getdoc(found) or ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
