"""docs/kafka_streams.md answers every method of Kafka Streams, and what it names is there."""

from __future__ import annotations

import inspect
import re
import sys
import typing
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.dsl
import penstock.testing
from tests.core.test_config_names import KAFKA_STREAMS_4_4

from .methods import LIST

PAGE = Path(__file__).parents[2] / "docs/kafka_streams.md"
LISTED = {name: each.split() for name, _, each in (line.partition(": ") for line in LIST.read_text().splitlines())}
SETTINGS = LISTED.pop("StreamsConfig")
METHODS = {name: [tuple(each.split("@")) for each in listed] for name, listed in LISTED.items()}
_HEADING = re.compile(r"^### `([\w.$]+)`\n\nHere: `([\w.]+)`", re.MULTILINE)
_ROW = re.compile(r"^\| `(\w+)` \| ([\d.]+) \| (.*?) \| ?(.*?) ?\|$", re.MULTILINE)
_NAMED = re.compile(r"`([\w.]+)(?:\(([\w=, ]*)\))?`")


@cache
def sections() -> dict[str, tuple[str, list[tuple[str, str, str, str]]]]:
    """Return for each class of the page its name here, and the rows of its methods."""
    parts = re.split(r"^(?=##+ )", PAGE.read_text(), flags=re.MULTILINE)
    found = {}
    for part in parts:
        if heading := _HEADING.match(part):
            found[heading[1]] = (heading[2], _ROW.findall(part))
    return found


def test_the_page_has_every_class() -> None:
    assert list(sections()) == list(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_page_answers_every_method_of_a_class(name: str) -> None:
    assert [(method, since) for method, since, _, _ in sections()[name][1]] == METHODS[name]


@pytest.mark.parametrize("name", METHODS)
def test_what_the_page_names_is_there(name: str) -> None:
    home, rows = sections()[name]
    place = resolved(home)
    for method, _, here, why in rows:
        named = _NAMED.findall(here)
        if here == "—":
            assert why, f"{name}.{method}: say why it is missing"
            assert "not yet" not in why, f"{name}.{method}: a reason is not a time"
        assert bool(named) != (here == "—"), f"{name}.{method}: {here!r} is neither a name nor missing"
        for path, keywords in named:
            thing = found(place, path)
            assert thing is not None, f"{name}.{method}: there is no {path} in {home}"
            for keyword in re.findall(r"(\w+)=", keywords):
                assert keyword in parameters(thing), f"{name}.{method}: {path} has no argument {keyword}"


def test_every_setting_is_among_those_that_are_tried() -> None:
    assert SETTINGS
    assert not set(SETTINGS) - set(KAFKA_STREAMS_4_4.split())


def resolved(path: str) -> Any:
    """Return a class or module by its whole name."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)


def found(place: Any, path: str) -> Any:
    """Return what a name means in a section: of its class, or a public class or function with the rest behind a dot."""
    if path.startswith("penstock."):
        return resolved(path)
    first, _, rest = path.partition(".")
    for each in (place, penstock.dsl, penstock, penstock.testing):
        if has(each, first):
            thing = getattr(each, first, None)
            thing = each if thing is None else thing  # an attribute of instances
            return found(thing, rest) if rest else thing
        if getattr(each, "__name__", "") == first:
            return found(each, rest) if rest else each
    return None


def has(place: Any, name: str) -> bool:
    """Whether a class or module has this name, the attributes of its instances included."""
    if hasattr(place, name) or not inspect.isclass(place):
        return hasattr(place, name)
    annotated = any(name in getattr(each, "__annotations__", {}) for each in place.__mro__)
    return annotated or name in getattr(place.__init__, "__code__", has.__code__).co_names


def parameters(function: Any) -> set[str]:
    """Return the names of the arguments of a function, those of its overloads and of the DSL's options included."""
    names: set[str] = set()
    for each in (function, *typing.get_overloads(function)):
        for parameter in inspect.signature(each).parameters.values():
            names.add(parameter.name)
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                options = re.search(r"\w+(?=\])", str(parameter.annotation))
                names |= options_of(options[0]) if options else set()
    return names


def options_of(name: str) -> set[str]:
    """Return the keys of a TypedDict of the DSL."""
    for module in [each for key, each in sys.modules.items() if key.startswith("penstock.plugins.dsl")]:
        if typing.is_typeddict(kind := getattr(module, name, None)):
            return set(typing.get_type_hints(kind))
    return set()
