"""A global store can be read in tasks by the methods that the reading half of its kind has, and by no other."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from penstock import (
    KeyValueStore,
    ListStore,
    SessionStore,
    StateStore,
    StoreError,
    VersionedKeyValueStore,
    WindowStore,
)
from penstock.task.context import ReadOnlyView

KINDS = (KeyValueStore, ListStore, SessionStore, VersionedKeyValueStore, WindowStore)
WRITES = {"put", "put_if_absent", "put_all", "delete", "remove", "add", "flush", "discard", "close"}


def methods(kind: type[Any]) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}


def made(kind: type[Any], **more: Any) -> Any:
    """Return a store of a kind whose methods answer with their name."""
    answers = {name: lambda self, name=name: name for name in methods(kind)}
    return type("Store", (kind,), {"name": "s", **answers, **more, "__abstractmethods__": frozenset()})()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_kind_can_be_read_and_not_written(kind: type[Any]) -> None:
    view = ReadOnlyView(made(kind))
    names = methods(kind)
    assert names - WRITES
    for name in names - WRITES:
        assert getattr(view, name)() == name
    for name in names & WRITES:
        with pytest.raises(
            StoreError, match=f"'s' is a global store.*{name!r} cannot be used here.*there is .*get|fetch"
        ):
            getattr(view, name)
    assert view.name == "s"
    with pytest.raises(AttributeError):
        view.nothing  # noqa: B018


def test_a_method_that_only_the_class_has_is_no_way_around() -> None:
    view = ReadOnlyView(made(KeyValueStore, clear=lambda self: None))
    with pytest.raises(StoreError, match="'clear' cannot be used"):
        view.clear()


def test_a_kind_without_a_reading_half_says_how_to_declare_it() -> None:
    class Set(StateStore):
        name = "seen"

        def has(self, item: str) -> bool:
            return True

    with pytest.raises(StoreError, match="'seen'.*Set does not say which methods read.*reads_only=True"):
        ReadOnlyView(Set()).has("a")

    class ReadOnlySet(StateStore, reads_only=True):
        name = "seen"

        def has(self, item: str) -> bool:
            return True

    class WritableSet(ReadOnlySet):
        def add(self, item: str) -> None:
            raise AssertionError("written")

    view = ReadOnlyView(WritableSet())
    assert view.has("a")
    with pytest.raises(StoreError, match="'add' cannot be used"):
        view.add("a")
