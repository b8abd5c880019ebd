"""Compiles the typed rooms of the package with mypyc, for wheels and for who works on it. Decides nothing at run time.

`pip install` compiles where a C compiler is; without one, or with HEADRACE_COMPILE=off, the package is plain Python.
With HEADRACE_COMPILE=on it is compiled or not installed. `python hatch_build.py DIR` makes DIR a compiled copy of the
package; run again, it compiles only when what was compiled has changed.
"""

import argparse
import ast
import contextlib
import fcntl
import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path(__file__).parent / "src"
COMPILED = (
    "headrace/errors.py",
    "headrace/model.py",
    "headrace/clock.py",
    "headrace/names.py",
    "headrace/selector/*.py",
    "headrace/wire/*.py",
    "headrace/storage/*.py",
    "headrace/storage/local/*.py",
    "headrace/core/**/*.py",
    "headrace/net/output.py",
    "headrace/protocols/answers.py",
    "headrace/protocols/inlet.py",
    "headrace/protocols/server.py",
    "headrace/protocols/amqp091/*.py",
    "headrace/protocols/amqp10/*.py",
    "headrace/protocols/mqtt/*.py",
    "headrace/protocols/streams/*.py",
    "headrace/protocols/stomp/*.py",
)
INTERPRETED = {
    # no message passes these, and nothing that a compiled class inherits from is in them
    "headrace/core/access/access.py",
    "headrace/core/hosts.py",
    "headrace/core/queue/configured.py",
    "headrace/selector/parser.py",
    "headrace/selector/spark_sql.py",
    "headrace/selector/tree.py",
    "headrace/storage/local/backup.py",
    "headrace/storage/local/disk.py",  # tests put failing disks in its place, and its classes inherit from builtins
    "headrace/wire/types.py",  # numbers and strings with a wire type inherit from builtins
    # pamqp's classes say str where our reader leaves bytes, which compiled code does not let pass
    "headrace/protocols/amqp091/handshake.py",
    "headrace/protocols/amqp091/methods.py",
}
MOST = {
    f"headrace/{name}.py"
    for name in (
        "model",
        "core/batch core/broker core/publishing core/pubsub/pubsub core/queue/stream core/queue/work",
        "core/routing/exchanges core/routing/topics",
        "storage/memory storage/local/catalog storage/local/encoding",
        "protocols/amqp091/codec protocols/amqp091/publishing protocols/amqp091/subscriptions",
        "wire/amqp091_scan wire/amqp10 wire/amqp10_values wire/mqtt5",
        "protocols/mqtt/codec protocols/mqtt/outbox protocols/mqtt/packets",
        "protocols/mqtt/publishing",
        "protocols/streams/chunks protocols/streams/codec protocols/streams/publishing",
    )
    for name in name.split()
}
"""Modules in which a message spends its time: compiled at -O2. The others are at -O1; the table is in compiled.md."""
LEAST = {
    f"headrace/{name}.py"
    for name in (
        "core/access/logins core/access/permissions core/access/users core/pubsub/retained",
        "core/parameters core/policies core/queue/queues core/transaction selector/selector",
        "storage/arrow storage/frame storage/group_row storage/local/checkpoint storage/local/files",
        "storage/local/follower storage/local/group_files storage/local/recovery storage/local/stored",
        "storage/local/tables storage/local/upkeep",
        "protocols/server protocols/amqp091/handover protocols/amqp091/server",
        "protocols/amqp10/addresses protocols/amqp10/coordinator protocols/amqp10/handover",
        "protocols/amqp10/management protocols/amqp10/performatives protocols/amqp10/server",
        "protocols/mqtt/handover protocols/mqtt/reasons protocols/mqtt/server protocols/mqtt/subscriptions",
        "protocols/streams/handover protocols/streams/management protocols/streams/partitions protocols/streams/server",
    )
    for name in name.split()
}
"""Modules that connections, queues and directories pass once: -O0, a quarter of the time, still faster than Python."""
_OPTIONS = ("--strict", "--ignore-missing-imports", "--no-warn-unused-ignores")
_SETTING = "HEADRACE_COMPILE"
_GROUP = "headrace"
_FLAGS = ["-fvisibility=hidden", "-fno-plt"] if sys.platform == "linux" else []
"""Compiled modules call each other directly and Python by one jump less: 3 to 6 % less time a message."""


_NATIVE = "__native_"
_READING = threading.Lock()
_read_headers: dict[str, list[str]] = {}
"""The arguments with which a file uses headers that were compiled before, by what they were compiled with."""


def modules() -> list[str]:
    """The files that are compiled, relative to the sources."""
    found = {str(path.relative_to(SOURCES)) for pattern in COMPILED for path in SOURCES.glob(pattern)}
    return sorted(name for name in found - INTERPRETED if not name.endswith("__init__.py"))


def obstacle() -> str:
    """Why the package is not to be compiled; "" when nothing stands against it."""
    if os.environ.get(_SETTING) == "off":
        return f"{_SETTING} is off"
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(command) is None:
        return f"there is no C compiler ({command})"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.exists() else f"Python's header files are missing ({header})"


def is_required() -> bool:
    return os.environ.get(_SETTING) == "on"


def compile_in(work: Path, shows: bool = False) -> list[Path]:
    """Copy the package to `work` and compile it there; returns the paths of what was built, below `work`.

    What an earlier run left in `work` is used again where nothing changed. Raises RuntimeError with what the compiler
    said.
    """
    for package in SOURCES.iterdir():
        shutil.rmtree(work / package.name, ignore_errors=True)
    _copy(SOURCES, work)
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--extensions", str(work)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=None if shows else subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if ended.returncode:
        raise RuntimeError(f"mypyc: {(ended.stdout or b'').decode()[-2000:]}{ended.stderr.decode()[-2000:]}")
    return _built(work)


def _runtime() -> str:
    """What compiled modules need where they run: a library of mypyc that is no older than what they were made with."""
    return f"librt>={version('librt')}"


def _built(work: Path) -> list[Path]:
    return sorted(path.relative_to(work) for path in work.rglob("*.so") if path.relative_to(work).parts[0] != "build")


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


# -- in a process of its own, where mypyc may do to setuptools what it likes -------------------------------------------


def _build_extensions() -> None:
    from mypyc.build import mypycify
    from setuptools import setup  # type: ignore[import-untyped]
    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

    class BuildExtensions(build_ext):  # type: ignore[misc]
        def build_extensions(self) -> None:
            self.compiler.compile = partial(_compile_at_once, self.compiler)
            super().build_extensions()

    print(f"headrace: compiling {len(modules())} modules; the first time this takes a minute or two", flush=True)
    extensions = mypycify([*_OPTIONS, *modules()], opt_level="2", debug_level="0", group_name=_GROUP, multi_file=True)
    for extension in extensions:  # they share one list
        extension.extra_compile_args = [*extension.extra_compile_args, *_FLAGS]
    setup(
        name="headrace",
        ext_modules=extensions,
        cmdclass={"build_ext": BuildExtensions},
        script_args=["-q", "build_ext", "--inplace", f"--parallel={os.cpu_count() or 1}"],
    )


def _compile_at_once(
    compiler: Any,
    sources: list[str],
    output_dir: str | None = None,
    macros: Any = None,
    include_dirs: Any = None,
    debug: bool = False,
    extra_preargs: Any = None,
    extra_postargs: Any = None,
    depends: Any = None,
) -> list[str]:
    """What setuptools does for one file after the other, on all cores, and only where there is something new."""
    from multiprocessing.pool import ThreadPool

    macros, objects, extra_postargs, options, build = compiler._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs
    )
    arguments = compiler._get_cc_args(options, debug, extra_preargs)
    newest_header = max([Path(header).stat().st_mtime for header in depends or []], default=0.0)
    stale = {target: source for target, (source, _) in build.items() if _is_stale(Path(target), source, newest_header)}
    given = {target: [*extra_postargs, *_level_of(Path(source))] for target, source in stale.items()}
    read = {target: _headers_read_once(compiler, [*arguments, *given[target]], Path(stale[target])) for target in stale}

    def compile_one(target: str) -> None:
        source, extension = build[target]
        compiler._compile(target, source, extension, [*read[target], *arguments], given[target], options)

    with ThreadPool() as pool:
        for count, _ in enumerate(pool.imap_unordered(compile_one, stale), start=1):
            if count % 20 == 0:
                print(f"headrace: {count} of {len(stale)} files compiled", flush=True)
    return list(objects)


def _is_stale(target: Path, source: str, newest_header: float) -> bool:
    return not target.exists() or target.stat().st_mtime <= max(Path(source).stat().st_mtime, newest_header)


def _level_of(source: Path) -> list[str]:
    """How much the compiler thinks about a file: the last level that it is given counts."""
    if not source.name.startswith(_NATIVE):
        return []
    module = source.name.removeprefix(_NATIVE).removesuffix(".c").replace("___", "/") + ".py"
    return ["-O2"] if module in MOST else ["-O0"] if module in LEAST else ["-O1"]


def _headers_read_once(compiler: Any, arguments: list[str], source: Path) -> list[str]:
    """Have the headers that many files begin with compiled for all of them, where that is known to work.

    The group's own files begin with a megabyte of them, the small files that make each module importable with
    Python's. Files of the C library that mypyc brings are few.
    """
    if source.name.startswith(_NATIVE):
        folder, headers = source.parent, [f'"__native{kind}_{_GROUP}.h"' for kind in ("", "_internal")]
    elif _GROUP in source.parts:
        folder, headers = Path(*source.parts[: source.parts.index(_GROUP)]), ["<Python.h>"]
    else:
        return []
    key = " ".join([*arguments, *headers])
    with _READING:  # extensions are built beside each other
        if key not in _read_headers:
            together = folder / f"together{len(_read_headers)}.h"
            command = compiler.compiler_so
            said = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False).stdout
            if "Free Software Foundation" not in said:
                return []
            together.write_text("".join(f"#include {header}\n" for header in headers))
            compiler.spawn([*command, *arguments, "-x", "c-header", str(together), "-o", f"{together}.gch"])
            _read_headers[key] = ["-include", str(together)]
        return _read_headers[key]


# -- for the Makefile --------------------------------------------------------------------------------------------------


def update(directory: Path) -> None:
    """Make `directory` a copy of the package as it is now, compiled if it can be. Raises RuntimeError if it must be.

    `.current` in a compiled copy has the time at which this began: `scripts/run` serves it until a source is newer.
    """
    work = directory.parent / "mypyc"
    work.mkdir(parents=True, exist_ok=True)
    with (work / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.time()
        built = _compiled(work)
        files = {path.relative_to(SOURCES): path for path in _files(SOURCES)}
        files.update({path: work / path for path in built})
        _mirror(files, directory)
        if built:
            mark = directory / ".current"
            mark.touch()
            os.utime(mark, (began, began))


def _compiled(work: Path) -> list[Path]:
    """What is compiled, below `work`; nothing when it is not to be or cannot be, which is then said."""
    reason = obstacle()
    if not reason:
        made_from, recipe = work / "made-from", _recipe()
        before = made_from.read_text().split() if made_from.exists() else ["", ""]
        now = [recipe, _ingredients()]
        if before == now:
            return _built(work)
        if before[0] != recipe:
            shutil.rmtree(work / "build", ignore_errors=True)
        made_from.write_text(f"{recipe} unfinished")
        try:
            found = compile_in(work, shows=True)
        except RuntimeError as error:
            reason = str(error)
        else:
            made_from.write_text(" ".join(now))
            return found
    if is_required():
        raise RuntimeError(reason)
    print(f"headrace: {reason}; it runs as plain Python, which is slower", flush=True)
    return []


def _mirror(files: dict[Path, Path], directory: Path) -> None:
    """Have `directory` hold these files and no others. Each is replaced at once: a broker may be running from there."""
    for name, source in files.items():
        target = directory / name
        if not target.exists() or not filecmp.cmp(source, target):
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = target.with_name(target.name + ".new")
            shutil.copy2(source, draft)
            draft.replace(target)
    for path in _files(directory):
        if path.relative_to(directory) not in files:
            path.unlink()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")


def _recipe() -> str:
    """Changes with how modules are compiled."""
    tools = f"{sys.version} {version('mypy')} {version('setuptools')} {os.environ.get('CC')} {os.environ.get('CFLAGS')}"
    return hashlib.sha256(Path(__file__).read_bytes() + tools.encode()).hexdigest()


def _ingredients() -> str:
    """Changes with all that compiled modules are made from, also with what they import and is not compiled itself."""
    digest = hashlib.sha256()
    waiting = modules()
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen and (SOURCES / name).exists():
            seen.add(name)
            waiting += _imported((SOURCES / name).read_bytes())
    for name in sorted(seen):
        digest.update(name.encode() + b"\0" + (SOURCES / name).read_bytes())
    return digest.hexdigest()


def _imported(source: bytes) -> list[str]:
    """The files that a module may import, whether they are there or not."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    paths = [name.replace(".", "/") for name in names]
    return [f"{path}.py" for path in paths] + [f"{path}/__init__.py" for path in paths]


# -- for wheels --------------------------------------------------------------------------------------------------------


def _tell(text: str) -> None:
    """Print a line, on the terminal as well: pip shows nothing of what a build prints."""
    line = f"headrace: {text}"
    print(line, flush=True)
    if not sys.stdout.isatty():
        with contextlib.suppress(OSError), Path("/dev/tty").open("w") as terminal:
            terminal.write(f"\n{line}\n")


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # a change takes effect at once
            return
        self._folder = Path(tempfile.mkdtemp())
        reason = obstacle()
        built: list[Path] = []
        if not reason:
            _tell(f"compiling {len(modules())} modules, which takes some minutes; {_SETTING}=off does without")
            began = time.monotonic()
            try:
                built = compile_in(self._folder)
            except RuntimeError as error:
                reason = str(error)
            else:
                _tell(f"compiled in {time.monotonic() - began:.0f} s")
        if reason:
            if is_required():
                raise RuntimeError(reason)
            _tell(f"it is installed as plain Python, at a third of the speed: {reason}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["dependencies"].append(_runtime())
        build_data["force_include"].update({str(self._folder / path): str(path) for path in built})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if folder := getattr(self, "_folder", None):
            shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where the compiled package goes")
    parser.add_argument(
        "--extensions", action="store_true", help="compile the copy that is there already; used by this"
    )
    given = parser.parse_args()
    if given.extensions:
        os.chdir(given.directory)
        _build_extensions()
    else:
        try:
            update(given.directory.resolve())
        except RuntimeError as error:
            sys.exit(f"headrace: {error}")
