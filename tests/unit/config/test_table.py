"""Models of typed values: read from JSON and from query parameters, and described."""

from dataclasses import dataclass

import pytest

from headrace.config.kinds import Choice, Flag, Number, Secret, Text, Unicode
from headrace.config.table import Fault, option, parse_model, read_model, required, table_of


@dataclass(frozen=True)
class Inner:
    size: int = option(3, Number(1, 9), "Its size.")


@dataclass(frozen=True)
class Outer:
    name: str = required(Text())
    is_on: bool = option(False, Flag())
    inner: Inner = option(Inner(), Inner)
    mode: str = option("slow", Choice("slow", "fast"))
    password: str = option("", Secret())
    word: str = option("", Unicode())


def test_a_model_has_the_values_given_and_the_defaults_of_the_others() -> None:
    assert read_model(Outer, {"name": "a", "inner": {"size": 5}}) == Outer("a", inner=Inner(5))
    assert read_model(Outer, {"name": "a", "inner": None, "mode": None}) == Outer("a")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "the body: the key 'name' is missing"),
        ({"name": None}, "the body: the key 'name' is missing"),
        ({"name": 5}, "the body: 'name' must be a text, not 5"),
        (
            {"name": "a", "nam": 1},
            "the body: there is no key 'nam'; known are inner, is_on, mode, name, password, word",
        ),
        ({"name": "a", "is_on": "true"}, "the body: 'is_on' must be true or false, not 'true'"),
        ({"name": "a", "inner": {"size": 10}}, "the body, inner: 'size' must be a whole number from 1 to 9, not 10"),
        ({"name": "a", "inner": []}, "the body: 'inner' must be a table of keys, not []"),
        ({"name": "a", "mode": "soon"}, "the body: 'mode' must be one of slow, fast, not 'soon'"),
        ({"name": "a", "password": 1234}, "the body: 'password' must be a text, not a number"),
        ({"name": "a", "word": "\ud800"}, "the body: 'word' is not Unicode at character 1, not '\\ud800'"),
        ([], "the body: must be a table of keys, not []"),
    ],
)
def test_a_fault_says_what_is_wrong_and_where(values: object, said: str) -> None:
    with pytest.raises(Fault) as caught:
        read_model(Outer, values, "the body")

    assert str(caught.value) == said


def test_a_lenient_reader_ignores_unknown_keys_and_takes_texts() -> None:
    given = {"name": "a", "is_on": "true", "inner": {"size": "7", "colour": 1}, "more": {}}

    assert read_model(Outer, given, is_lenient=True) == Outer("a", is_on=True, inner=Inner(7))
    with pytest.raises(Fault, match="'is_on' must be true or false, not 'yes'"):
        read_model(Outer, {"name": "a", "is_on": "yes"}, is_lenient=True)


def test_query_parameters_are_texts_and_an_empty_number_is_its_default() -> None:
    assert parse_model(Inner, {"size": "4", "other": "x"}) == Inner(4)
    assert parse_model(Inner, {"size": ""}) == Inner()
    with pytest.raises(Fault, match="'is_on' must be true or false, not ''"):
        parse_model(Outer, {"name": "a", "is_on": ""})


def test_the_schema_comes_from_the_same_declaration() -> None:
    schema = table_of(Outer).schema()

    assert schema["required"] == ["name"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert isinstance(properties, dict)
    assert properties["inner"]["properties"]["size"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "description": "Its size.",
        "default": 3,
    }
