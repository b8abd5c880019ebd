"""A YAML file as plain values, and on which line each stands. Knows no keys.

YAML is read as its version 1.2 has it: `yes`, `no`, `on` and `off` are texts, and so is everything with a colon in it.
"""

from pathlib import Path as FilePath
from typing import Final, final

from headrace.config.table import Path
from headrace.errors import Refused

MAX_BYTES: Final = 4 << 20
MAX_VALUES: Final = 100_000
_TEXT: Final = "tag:yaml.org,2002:str"
_NULL: Final = "tag:yaml.org,2002:null"
_BOOL: Final = "tag:yaml.org,2002:bool"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"


@final
class Document:
    """What a file says."""

    def __init__(self, file: FilePath | None = None) -> None:
        """Without a file it says nothing. Raises Refused when the file cannot be read or is no YAML."""
        self.file = file
        self.values: object = None
        self._lines: dict[Path, int] = {}
        self._count = 0
        if file is not None:
            self._load(_contents(file))

    def where(self, path: Path) -> str:
        """The file and the line of a value, or of what it should be in."""
        while path and path not in self._lines:
            path = path[:-1]
        line = self._lines.get(path)
        return f"{self.file}:{line}" if line else str(self.file)

    def has(self, path: Path) -> bool:
        return path in self._lines

    def _load(self, text: str) -> None:
        import yaml  # a broker without a file does without it

        try:
            root = yaml.compose(text, yaml.SafeLoader)
            self.values = None if root is None else self._build(root, ())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f":{mark.line + 1}" if mark is not None else ""
            raise Refused(f"{self.file}{line}: this is no YAML: {error.problem or error.context}") from error
        except yaml.YAMLError as error:
            raise Refused(f"{self.file}: this is no YAML: {' '.join(str(error).split())}") from error
        except RecursionError as error:
            raise Refused(f"{self.file}: this nests too deeply") from error

    def _build(self, node: object, path: Path) -> object:
        import yaml

        assert isinstance(node, yaml.Node)
        self._count += 1
        if self._count > MAX_VALUES or len(path) > 100:
            raise Refused(f"{self.file}: there are more than {MAX_VALUES} values in it, or they nest too deeply")
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*path, at)) for at, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            assert isinstance(node, yaml.ScalarNode)
            return _scalar(node.tag, node.value, node.style)
        found: dict[str, object] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = key.value
            if not isinstance(name, str):
                raise Refused(f"{self.file}:{line}: a key must be a text")
            if name in found:
                raise Refused(f"{self.file}:{line}: the key {name!r} is there twice")
            self._lines[*path, name] = line
            found[name] = self._build(value, (*path, name))
        return found


def _contents(file: FilePath) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise Refused(f"{file} has more than {MAX_BYTES} bytes: it cannot be a configuration")
        return data.decode()
    except OSError as error:
        raise Refused(f"the configuration {file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise Refused(f"{file} is no text in UTF-8: byte {error.start} is wrong") from error


def _scalar(tag: str, text: str, style: str | None) -> object:
    if style is not None and tag == _TEXT:
        return text
    if tag == _NULL:
        return None
    if tag == _BOOL and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if tag == _INT and ":" not in text:
            plain = text.replace("_", "")
            return int(plain) if plain.lstrip("+-").isdecimal() else int(plain, 0)
        if tag == _FLOAT and ":" not in text:
            return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        return text
    return text
