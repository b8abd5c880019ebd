"""What a pipeline remembers between runs: what it is, its id, and Spark's checkpoint. No messages.

<state>/pipeline.json    what the pipeline was started as
<state>/checkpoint/      Spark's own
"""

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

from headrace.errors import Refused

DEFAULT_STATES: Final = Path("pipelines")
"""Where pipelines keep their states unless they are told: below the directory they are started in."""


@final
class State:
    """The state directory of one pipeline: made when it is new, checked when it is not."""

    def __init__(self, directory: Path, id_: str, kept: Mapping[str, object]) -> None:
        self.directory = directory
        self.id = id_
        """The same for all runs."""
        self.kept = kept
        """What the first run found out and later ones go on with."""

    @property
    def checkpoint(self) -> str:
        return str(self.directory / "checkpoint")

    def keep(self, **found: object) -> None:
        """Remember what must not change between runs."""
        self.kept = {**self.kept, **found}
        said = json.loads(_file(self.directory).read_text())
        write_json(_file(self.directory), {**said, "kept": self.kept})


def open_state(directory: Path, name: str, identity: Mapping[str, object]) -> State:
    """The state of this pipeline. Raises Refused when the directory is another pipeline's."""
    directory = directory.absolute()
    file = _file(directory)
    wanted = json.loads(json.dumps(identity))
    if not file.exists():
        if directory.exists() and any(directory.iterdir()):
            raise Refused(f"{directory} is not empty and is no pipeline's state; name another directory with --state")
        directory.mkdir(parents=True, exist_ok=True)
        write_json(file, {"name": name, "id": uuid.uuid4().hex, "pipeline": wanted, "kept": {}})
    try:
        said = json.loads(file.read_text())
        found, id_, kept = dict(said["pipeline"]), str(said["id"]), dict(said["kept"])
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{file} cannot be read ({error}); remove {directory} to start anew") from error
    for key, value in wanted.items():
        if found.get(key) != value:
            raise Refused(
                f"{directory} belongs to a pipeline whose {key} is {found.get(key)!r}, not {value!r}. Go on with that "
                f"one, give this one a name of its own with --name, or remove the directory to start anew"
            )
    return State(directory, id_, kept)


def read_json(file: Path) -> dict[str, Any]:
    """What `write_json` wrote there; nothing when there is no such file. Raises Refused when it cannot be read."""
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise Refused(f"{file} cannot be read ({error}); remove its directory to start anew") from error


def write_json(file: Path, value: object) -> None:
    """Put the value in place of what the file had, or leave the file as it is."""
    fresh = file.with_name(f"{file.name}.tmp")
    with fresh.open("w") as out:
        json.dump(value, out, indent=1, sort_keys=True)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(file)


def _file(directory: Path) -> Path:
    return directory / "pipeline.json"
