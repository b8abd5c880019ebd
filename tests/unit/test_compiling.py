"""The compiled form: its modules, silent mistakes of the compiler, and machines without one."""

import ast
import builtins
import functools
import os
import re
import subprocess
import sys
import time
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import hatch_build
import pytest

_ROOT = Path(hatch_build.__file__).parent
_NO_COMPILER = {"CC": "no-such-compiler", "HEADRACE_COMPILE": ""}


def test_a_function_names_errors_of_one_kind_alike() -> None:
    """mypyc gives a variable one type: another kind of our errors, caught under the same name, is a TypeError."""
    mixed: list[str] = []
    for name, node in _nodes():
        if isinstance(node, ast.FunctionDef):
            kinds: defaultdict[str, set[str]] = defaultdict(set)
            for inner in _own(node):
                if isinstance(inner, ast.ExceptHandler) and inner.name and inner.type:
                    kinds[inner.name].add(ast.unparse(inner.type))
            mixed += [f"{name} {node.name}: {found}" for found in kinds.values() if len(found) > 1 and _has_ours(found)]

    assert mixed == []


def test_a_function_uses_the_name_of_an_error_for_nothing_else() -> None:
    """mypyc gives a variable one type: an error caught under the name of a text is a TypeError."""
    mixed: list[str] = []
    for name, node in _nodes():
        if isinstance(node, ast.FunctionDef):
            inner = list(_own(node))
            caught = {each.name for each in inner if isinstance(each, ast.ExceptHandler) and each.name}
            bound = {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
            bound |= {each.arg for each in [*node.args.args, *node.args.kwonlyargs]}
            mixed += [f"{name} {node.name}: {each}" for each in sorted(caught & bound)]

    assert mixed == []


def test_a_build_has_all_that_the_compiled_modules_are_typed_by() -> None:
    """In the environment that pip builds in, a package that is missing makes a type Any, and mypyc refuses it."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    tools = {re.split(r"[\[<>=]", name)[0].replace("-", "_") for name in project["build-system"]["requires"]}
    untyped = {name.removesuffix(".*") for each in project["tool"]["mypy"]["overrides"] for name in each["module"]}
    waiting = [Path(name) for name in hatch_build.modules()]
    seen: set[Path] = set()
    packages: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or not (hatch_build.SOURCES / path).exists():
            continue
        seen.add(path)
        source = (hatch_build.SOURCES / path).read_bytes()
        waiting += [Path(name) for name in hatch_build._imported(source)]
        waiting += [folder / "__init__.py" for folder in path.parents if folder.name]
        packages |= {name.split("/")[0].removesuffix(".py") for name in hatch_build._imported(source)}

    known = {"argon2_cffi": "argon2", "mypy": "mypy_extensions"}
    typed = {known.get(name, name) for name in tools}
    assert len(seen) > 150
    assert packages - sys.stdlib_module_names - {"headrace"} - untyped <= typed


def test_what_python_reads_from_a_class_is_final() -> None:
    """mypyc makes anything else that is assigned in a class the default of an attribute, which the class has not."""
    assert [
        f"{name}: {ast.unparse(assigned)}"
        for name, node in _nodes()
        if isinstance(node, ast.ClassDef)
        for assigned in node.body
        if isinstance(assigned, ast.Assign) and ast.unparse(assigned.targets[0]) == "__match_args__"
    ] == []


def test_a_class_does_not_declare_an_attribute_of_its_base_again() -> None:
    """mypyc has the garbage collector count it twice, which then clears objects that are still in use."""
    classes = {(name, node.name): node for name, node in _nodes() if isinstance(node, ast.ClassDef)}
    imported = {
        (name, alias.asname or alias.name): (f"{node.module.replace('.', '/')}.py", alias.name)
        for name, node in _nodes()
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }

    def bases_of(place: tuple[str, str]) -> Iterator[tuple[str, str]]:
        for base in classes[place].bases:
            written = (place[0], ast.unparse(base))
            found = imported.get(written, written)
            if found in classes:
                yield found
                yield from bases_of(found)

    again = [
        f"{place[0]} {place[1]}: {attribute}"
        for place in classes
        for base in bases_of(place)
        for attribute in sorted(_declared(classes[place]) & _declared(classes[base]))
    ]

    assert again == []


def test_what_types_the_compiled_modules_is_there_when_pip_builds() -> None:
    """pip builds in an environment of its own, with nothing but this; untyped, the modules are not compiled at all."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    building = set(project["build-system"]["requires"])
    used = {
        imported.split(".")[0].replace("_", "-")
        for _, node in _nodes()
        if isinstance(node, ast.ImportFrom | ast.Import)
        for imported in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }

    needed = {
        line for line in project["project"]["dependencies"] if re.split("[<>=]", line)[0] in used | {"argon2-cffi"}
    }

    assert {"pamqp>=4.0,<5", "mypy-extensions>=1.0,<2"} <= needed
    assert needed - {"mypy-extensions>=1.0,<2"} <= building  # mypy brings that itself


@functools.cache
def _nodes() -> list[tuple[str, ast.AST]]:
    """Everything in every module that is compiled."""
    return [
        (name, node)
        for name in hatch_build.modules()
        for node in ast.walk(ast.parse((hatch_build.SOURCES / name).read_text()))
    ]


def _declared(node: ast.ClassDef) -> set[str]:
    """The attributes that a class declares itself, in its body or in a method; no constants, no plain true or false."""
    found = {
        inner.target.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Attribute)
    }
    for each in node.body:
        if isinstance(each, ast.AnnAssign | ast.Assign):
            targets = [each.target] if isinstance(each, ast.AnnAssign) else each.targets
            is_final = isinstance(each, ast.AnnAssign) and "Final" in ast.unparse(each.annotation)
            is_flag = isinstance(each.value, ast.Constant) and isinstance(each.value.value, bool)
            found |= {ast.unparse(target) for target in targets if not (is_final or is_flag)} - {"__slots__"}
    return found


def _has_ours(kinds: set[str]) -> bool:
    return any(kind.isidentifier() and not hasattr(builtins, kind) for kind in kinds)


def _own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield node
            waiting += ast.iter_child_nodes(node)


def test_nothing_is_both_compiled_and_left_interpreted() -> None:
    modules = hatch_build.modules()

    assert "headrace/core/broker.py" in modules
    assert not hatch_build.INTERPRETED & set(modules)
    assert all((hatch_build.SOURCES / name).exists() for name in hatch_build.INTERPRETED)
    assert set(modules) >= hatch_build.MOST | hatch_build.LEAST
    assert not hatch_build.MOST & hatch_build.LEAST


def test_without_a_compiler_the_copy_is_plain_and_runs(tmp_path: Path) -> None:
    copy = tmp_path / "copy"

    said = _update(copy, _NO_COMPILER)
    version = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"],
        env={**os.environ, "PYTHONPATH": str(copy)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert "there is no C compiler (no-such-compiler); it runs as plain Python" in said
    assert not list(copy.rglob("*.so"))
    assert not (copy / ".current").exists()  # `make run` compiles once there is a compiler
    assert version.endswith("(interpreted)\n")


def test_a_copy_follows_its_sources(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    _update(copy, _NO_COMPILER)
    (copy / "headrace" / "model.py").write_text("changed")
    (copy / "headrace" / "left_over.py").write_text("")

    _update(copy, _NO_COMPILER)

    assert (copy / "headrace" / "model.py").read_bytes() == (hatch_build.SOURCES / "headrace/model.py").read_bytes()
    assert not (copy / "headrace" / "left_over.py").exists()


def test_a_source_that_is_edited_while_it_compiles_makes_the_copy_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "sources" / "headrace" / "model.py"
    source.parent.mkdir(parents=True)
    source.write_text("before")

    def compile_while_somebody_edits(work: Path) -> list[Path]:
        (work / "model.so").write_bytes(b"")
        os.utime(source, ns=(0, time.time_ns()))
        return [Path("model.so")]

    monkeypatch.setattr(hatch_build, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(hatch_build, "_compiled", compile_while_somebody_edits)
    hatch_build.update(tmp_path / "build" / "copy")

    assert source.stat().st_mtime_ns > (tmp_path / "build" / "copy" / ".current").stat().st_mtime_ns


def test_where_compiling_is_required_its_lack_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        _update(tmp_path / "copy", {**_NO_COMPILER, "HEADRACE_COMPILE": "on"})

    assert "there is no C compiler (no-such-compiler)" in failed.value.stderr


def test_without_a_compiler_a_wheel_is_plain(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        env={**os.environ, **_NO_COMPILER},
        cwd=_ROOT,
        capture_output=True,
        check=True,
    )

    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "headrace/core/broker.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_a_build_with_a_compiler_says_that_it_compiles_and_how_long_it_took(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hatch_build, "obstacle", lambda: "")
    monkeypatch.setattr(hatch_build, "compile_in", lambda folder: [])
    hook = hatch_build.CompileHook.__new__(hatch_build.CompileHook)

    hook.initialize("standard", {"dependencies": [], "force_include": {}})
    hook.finalize("standard", {}, "")

    first, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"headrace: compiling \d+ modules, which takes some minutes; HEADRACE_COMPILE=off does without", first
    )
    assert re.fullmatch(r"headrace: compiled in \d+ s", last)


def _update(copy: Path, environment: dict[str, str]) -> str:
    command = [sys.executable, str(_ROOT / "hatch_build.py"), str(copy)]
    ended = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return ended.stdout
