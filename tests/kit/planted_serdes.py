"""Serdes with one wrong line each, most of which only another process, an equal value or a second topic shows."""

from __future__ import annotations

import functools
import json
import os
import pickle
from copy import copy
from dataclasses import dataclass
from typing import Any

from penstock.errors import SerdeError
from penstock.serde import Serde


class Words(Serde[Any]):
    """Right: sets of words as sorted JSON."""

    def serialize(self, value: Any) -> bytes:
        if type(value) is not frozenset or any(type(each) is not str for each in value):
            raise SerdeError(f"expected a frozenset of str, found {value!r}")
        return json.dumps(self._listed(value)).encode()

    def _listed(self, value: Any) -> list[str]:
        return sorted(value)

    def deserialize(self, data: bytes) -> Any:
        try:
            found = json.loads(data)
        except ValueError as error:
            raise SerdeError(f"expected JSON, found {data!r}") from error
        if type(found) is not list or any(type(each) is not str for each in found):
            raise SerdeError(f"expected a list of str, found {data!r}")
        return frozenset(found)


class Numbers(Serde[Any]):
    """Right: ints, floats and bools, and lists of them, as JSON."""

    def serialize(self, value: Any) -> bytes:
        self._check(value)
        return json.dumps(value).encode()

    def deserialize(self, data: bytes) -> Any:
        try:
            value = json.loads(data)
        except ValueError as error:
            raise SerdeError(f"expected JSON, found {data!r}") from error
        self._check(value)
        return value

    def _check(self, value: Any) -> None:
        for each in value if type(value) is list else [value]:
            if type(each) not in (int, float, bool):
                raise SerdeError(f"expected numbers, found {value!r}")


class SortedKeys(Serde[Any]):
    """Right: dicts as JSON with sorted keys, so that they come back in another order."""

    def serialize(self, value: Any) -> bytes:
        if type(value) is not dict or any(type(each) is not str for each in [*value, *value.values()]):
            raise SerdeError(f"expected a dict of str, found {value!r}")
        return json.dumps(value, sort_keys=True).encode()

    def deserialize(self, data: bytes) -> Any:
        try:
            found = json.loads(data)
        except ValueError as error:
            raise SerdeError(f"expected JSON, found {data!r}") from error
        if type(found) is not dict or any(type(each) is not str for each in found.values()):
            raise SerdeError(f"expected a dict of str, found {data!r}")
        return found


# ---------------------------------------------------------------- other processes


class OrderOfASet(Words):
    def _listed(self, value: Any) -> list[str]:
        return list(value)


class HashesOfWords(Words):
    def serialize(self, value: Any) -> bytes:
        return super().serialize(value) + b" " * sum(hash(each) % 3 for each in value)


class CodesOfWords(Words):
    """Words as numbers, in the order in which this process met them."""

    codes: dict[str, int] = {}

    def serialize(self, value: Any) -> bytes:
        super().serialize(value)
        return json.dumps(sorted(self.codes.setdefault(each, len(self.codes)) for each in value)).encode()

    def deserialize(self, data: bytes) -> Any:
        words = {code: word for word, code in self.codes.items()}
        try:
            return frozenset(words[each] for each in json.loads(data))
        except (ValueError, TypeError, KeyError) as error:
            raise SerdeError(f"unknown words: {data!r}") from error


class ProcessInBytes(Words):
    def serialize(self, value: Any) -> bytes:
        return super().serialize(value) + b" " * (os.getpid() % 50)


class FormByHash(Words):
    def written_form(self) -> str:
        return f"Words {hash('words')}"


class FormById(Words):
    def written_form(self) -> str:
        return f"Words {id(type(self))}"


class FormOfASet(Words):
    def __init__(self) -> None:
        self.known = {f"word {number}" for number in range(20)}

    def written_form(self) -> str:
        return f"Words {self.known}"


class FormReadHereOnly(Words):
    written_by: set[str] = set()

    def written_form(self) -> str:
        self.written_by.add("Words")
        return "Words"

    def unreadable(self, form: str) -> str:
        return "" if form in self.written_by else f"{form}, which is unknown"


class ReadsEveryForm(Words):
    def unreadable(self, form: str) -> str:
        return ""


# ---------------------------------------------------------------- equal values


class PickledParts(Serde[Any]):
    """A pickle refers to an object that comes twice: lists of equal words have several pickles."""

    def serialize(self, value: Any) -> bytes:
        if type(value) is not list or any(type(each) is not str for each in value):
            raise SerdeError(f"expected a list of str, found {value!r}")
        return pickle.dumps(value)

    def deserialize(self, data: bytes) -> Any:
        try:
            found = pickle.loads(data)
        except Exception as error:
            raise SerdeError(f"expected a pickle, found {data!r}") from error
        if type(found) is not list or any(type(each) is not str for each in found):
            raise SerdeError(f"expected a list of str, found {found!r}")
        return found


class RemembersEqualValues(Numbers):
    def __init__(self) -> None:
        self._known: dict[Any, bytes] = {}

    def serialize(self, value: Any) -> bytes:
        self._check(value)
        key = tuple(value) if type(value) is list else value
        return self._known.setdefault(key, super().serialize(value))


class RemembersInTheFastFunction(Numbers):
    def serializer(self) -> Any:
        return functools.lru_cache(self.serialize)


class RemembersAfterReading(Numbers):
    """Gives back the object that it wrote last for bytes of equal values."""

    last: Any = None

    def serialize(self, value: Any) -> bytes:
        written = super().serialize(value)
        self.last = value
        return written

    def deserialize(self, data: bytes) -> Any:
        value = super().deserialize(data)
        return self.last if type(value) is not list and value == self.last else value


class LosesTheSignOfZero(Numbers):
    def deserialize(self, data: bytes) -> Any:
        value = super().deserialize(data)
        return abs(value) if type(value) is float and value == 0 else value


class IntsStayInts(Numbers):
    """Floats; an int is taken for one, and written as an int."""

    def deserialize(self, data: bytes) -> Any:
        read = super().deserialize(data)
        return list(map(float, read)) if type(read) is list else float(read)


class SortsItsArgument(Numbers):
    def serialize(self, value: Any) -> bytes:
        written = super().serialize(value)
        if type(value) is list:
            value.sort()
        return written


# ---------------------------------------------------------------- topics and columns


class BindsItself(Numbers):
    topic = ""

    def bind(self, topic: str, *, is_key: bool) -> Serde[Any]:
        self.topic = topic
        return self

    def serialize(self, value: Any) -> bytes:
        return super().serialize(value) + b" " * len(self.topic)


class BoundOnesShareTheirTopic(Numbers):
    def __init__(self) -> None:
        self.bound: dict[str, bool] = {}

    def bind(self, topic: str, *, is_key: bool) -> Serde[Any]:
        made = copy(self)
        made.bound["key"] = is_key
        return made

    def serialize(self, value: Any) -> bytes:
        return super().serialize(value) + b" " * self.bound.get("key", False)


class FormOfTheLastTopic(Numbers):
    topics: list[str] = []

    def bind(self, topic: str, *, is_key: bool) -> Serde[Any]:
        type(self).topics = [topic]
        return self

    def written_form(self) -> str:
        return f"Numbers {self.topics}"


@dataclass(frozen=True)
class Place:
    """A name and a number."""

    name: str
    number: int


class Places(Serde[Any]):
    """Right: a place as JSON."""

    checked_types = frozenset({Place})

    def serialize(self, value: Any) -> bytes:
        if not isinstance(value, Place) or type(value.name) is not str or type(value.number) is not int:
            raise SerdeError(f"expected a place, found {value!r}")
        return json.dumps([value.name, value.number]).encode()

    def deserialize(self, data: bytes) -> Any:
        try:
            name, number = json.loads(data)
        except (ValueError, TypeError) as error:
            raise SerdeError(f"expected a place, found {data!r}") from error
        if type(name) is not str or type(number) is not int:
            raise SerdeError(f"expected a place, found {data!r}")
        return self._made(name, number)

    def _made(self, name: str, number: int) -> Any:
        return Place(name, number)


@dataclass(unsafe_hash=True)
class OpenPlace:
    """The same, and it can be changed: a store would have the change and its changelog would not."""

    name: str
    number: int


class ChangeablePlaces(Places):
    checked_types = frozenset({OpenPlace})

    def serialize(self, value: Any) -> bytes:
        return super().serialize(Place(value.name, value.number) if type(value) is OpenPlace else value)

    def _made(self, name: str, number: int) -> Any:
        return OpenPlace(name, number)


class ColumnsOfSomeThousands(Numbers):
    def deserialize_column(self, column: Any) -> Any:
        return [*super().deserialize_column(column[:4096]), *[None] * (len(column) - 4096)]


class ColumnsInPages(Numbers):
    """A page that has one row is lost."""

    def deserialize_column(self, column: Any) -> Any:
        found: list[Any] = []
        for at in range(0, len(column), 1000):
            page = column[at : at + 1000]
            found += [found[-1]] if at and len(page) == 1 else super().deserialize_column(page)
        return found


class ColumnsByEqualRows(Numbers):
    """In long columns, rows that are equal are read once, and so are those that are almost equal."""

    def deserialize_column(self, column: Any) -> Any:
        read = super().deserialize_column(column)
        known: dict[Any, Any] = {}
        return read if len(read) < 600 else [known.setdefault(repr(each), each) if type(each) is list else
                                             known.setdefault(each, each) for each in read]  # fmt: skip
