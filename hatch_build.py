"""Compiles the typed rooms of the package with mypyc, for wheels and for whoever asks. Decides nothing at run time.

With HEADRACE_COMPILE=on `pip install` uses it where a C compiler is; otherwise the package is plain Python.
`python hatch_build.py DIR` puts a compiled copy of the package into DIR.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path(__file__).parent / "src"
COMPILED = (
    "headrace/errors.py",
    "headrace/model.py",
    "headrace/clock.py",
    "headrace/selector/*.py",
    "headrace/storage/*.py",
    "headrace/storage/local/*.py",
    "headrace/core/*.py",
    "headrace/protocols/amqp091/*.py",
    "headrace/protocols/amqp10/*.py",
    "headrace/protocols/mqtt/*.py",
)
INTERPRETED = {
    "headrace/storage/local/disk.py",  # tests put failing disks in its place, and its classes inherit from builtins
    "headrace/protocols/amqp091/fields.py",  # numbers and strings that remember their wire type inherit from builtins
    "headrace/protocols/amqp10/types.py",  # so do these
    "headrace/protocols/amqp10/entities.py",  # mypyc fails on a star in a return, and nothing waits for management
    # pamqp's classes say str where our reader leaves bytes, which compiled code does not let pass
    "headrace/protocols/amqp091/declaring.py",
    "headrace/protocols/amqp091/handshake.py",
    "headrace/protocols/amqp091/methods.py",
    "headrace/protocols/amqp091/sasl.py",
}
_SETUP = """
from multiprocessing.pool import ThreadPool
from mypyc.build import mypycify
from setuptools import setup
from setuptools._distutils.ccompiler import CCompiler

def compile_at_once(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0, extra_preargs=None,
                    extra_postargs=None, depends=None):
    macros, objects, extra_postargs, options, build = self._setup_compile(
        output_dir, macros, include_dirs, sources, depends, extra_postargs)
    arguments = self._get_cc_args(options, debug, extra_preargs)
    def one(object):
        source, extension = build[object]
        self._compile(object, source, extension, arguments, extra_postargs, options)
    with ThreadPool() as pool:
        pool.map(one, [object for object in objects if object in build], chunksize=1)
    return objects

CCompiler.compile = compile_at_once
setup(
    name="headrace",
    ext_modules=mypycify(
        ["--strict", "--ignore-missing-imports", "--no-warn-unused-ignores", *{files!r}],
        opt_level="{level}", debug_level="0", group_name="headrace", multi_file=True,
    ),
)
"""


def has_compiler() -> bool:
    """Whether the C compiler that this Python was built with, or the one in CC, can be run."""
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(command.split()[0]) is not None


def copy_into(target: Path) -> None:
    """Copy the package as it is."""
    shutil.copytree(SOURCES, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def compile_into(target: Path, level: str = "2") -> list[Path]:
    """Copy the package to `target` and compile it there; returns the paths of what was built, below `target`.

    Raises RuntimeError with what the compiler said.
    """
    copy_into(target)
    found = sorted(str(path.relative_to(target)) for pattern in COMPILED for path in target.glob(pattern))
    files = [name for name in found if name not in INTERPRETED and not name.endswith("__init__.py")]
    script = target / "setup.py"
    script.write_text(_SETUP.format(files=files, level=level))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=target, env=environment, capture_output=True
    )
    if ended.returncode:
        raise RuntimeError(f"mypyc: {ended.stdout.decode()[-2000:]}{ended.stderr.decode()[-2000:]}")
    script.unlink()
    shutil.rmtree(target / "build")
    return sorted(path.relative_to(target) for path in target.rglob("*.so"))


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or os.environ.get("HEADRACE_COMPILE") != "on":
            return
        if not has_compiler():
            self.app.display_warning("no C compiler: headrace is installed as plain Python, which is slower")
            return
        self._folder = tempfile.mkdtemp()
        built = compile_into(Path(self._folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(Path(self._folder) / path): str(path) for path in built})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if folder := getattr(self, "_folder", None):
            shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where the compiled package goes")
    directory = parser.parse_args().directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    if has_compiler():
        print("compiling headrace; this takes a minute or two", flush=True)
        compile_into(directory)
    else:
        print("no C compiler: headrace runs as plain Python, which is slower; install gcc and run this again")
        copy_into(directory)
