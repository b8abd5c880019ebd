"""Any name of 255 bytes has a path of its own that every file system takes."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.api import MAX_NAME_BYTES
from headrace.storage.local.files import decode_name, encode_name, is_partial

_characters = st.characters(codec="utf-8")
_tricky = st.text(st.sampled_from("aA.%+/-_é\x00"), min_size=1, max_size=MAX_NAME_BYTES)
_long = st.integers(60, MAX_NAME_BYTES).flatmap(lambda size: st.text("a./", min_size=size, max_size=size))
names = st.one_of(st.text(_characters, min_size=1), _tricky, _long).filter(
    lambda name: 0 < len(name.encode()) <= MAX_NAME_BYTES
)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("orders", "orders"),
        ("orders-2024_eu.v1", "orders-2024_eu.v1"),
        ("Orders", "%4frders"),
        ("a/b", "a%2fb"),
        (".", "%2e"),
        ("..", "%2e."),
        ("a+", "a%2b"),
        ("100%", "100%25"),
        ("ü", "%c3%bc"),
        ("a b", "a%20b"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 200 + "+/x"),
        ("." + "x" * 200, "%2e" + "x" * 197 + "+/xxx"),
        ("x" * 199 + "..", "x" * 199 + "%+/2e%2e"),
    ],
)
def test_a_name_has_this_path_for_good(name: str, path: str) -> None:
    assert encode_name(name) == path


@given(names)
def test_any_name_comes_back_from_its_path(name: str) -> None:
    assert decode_name(encode_name(name)) == name


@given(names)
def test_no_component_of_any_path_is_special_or_too_long_for_a_file_system(name: str) -> None:
    for component in encode_name(name).split("/"):
        assert 0 < len(component) <= 255
        assert not component.startswith(".")
        assert component.isascii()
        assert component == component.lower()


@given(names)
def test_only_the_components_before_the_last_are_partial(name: str) -> None:
    components = encode_name(name).split("/")

    assert [is_partial(component) for component in components] == [True] * (len(components) - 1) + [False]


@given(names, names)
def test_no_path_is_inside_another(one: str, other: str) -> None:
    assert one == other or PurePosixPath(encode_name(one)) not in PurePosixPath(encode_name(other)).parents


@given(names)
def test_no_path_is_inside_that_of_a_name_it_begins_with(name: str) -> None:
    for length in range(1, len(name)):
        assert PurePosixPath(encode_name(name[:length])) not in PurePosixPath(encode_name(name)).parents


@given(names, names)
def test_names_that_differ_have_paths_that_differ_even_without_case(one: str, other: str) -> None:
    assert one == other or encode_name(one).lower() != encode_name(other).lower()


@pytest.mark.parametrize("path", ["Orders", "a/b", ".hidden", "%2", "%zz", "%61", "a+", "%ff", "x" * 201, "a//b", ".."])
def test_a_path_that_no_name_has_is_told_apart(path: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_name(path)
