"""The answers that a program should give, and how those of a history differ from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock import Record

from ..driver import TopologyTestDriver

Answers = Mapping[str, Sequence[tuple[Any, ...]]]
"""By output topic: (key, value) or (key, value, timestamp), or all of a Record."""

_MANY = 1_000
"""Records between two commits: a history may have any number."""


def of_driver(program: Any, records: Mapping[str, Sequence[Record]], partitions: int, **settings: Any) -> Answers:
    """Return a program's answers without faults: those of the test driver, which has all records at once."""
    with TopologyTestDriver(program, partitions=partitions, commit_every=_MANY, **settings) as driver:
        driver.pipe_many(records)
        return {topic: [tuple(each) for each in driver.read_all(topic)] for topic in driver.output_topics()}


def of_reference(reference: Callable[[list[Record]], Iterable[Any]], parts: Iterable[Sequence[Record]]) -> list[Any]:
    """Return the answers of a function in plain Python for the records of each partition."""
    return [tuple(answer) for part in parts if part for answer in reference(list(part))]


def difference(expected: Answers, found: Mapping[str, Sequence[Record]], compared: str) -> str | None:
    """Return the first difference, by topic and key; None if there is none.

    `compared`: the answers of a key "in order", "in any order", or the "latest" of each key only; "at least once" where
    some come again; where records were deleted before they were read, "with gaps", or "any of them" where some come
    again, too. What an expected answer leaves out is not compared.
    """
    for topic in sorted({*expected, *found}):
        wanted, given = _by_key(expected.get(topic, ())), _by_key(found.get(topic, ()))
        for key in sorted({*wanted, *given}):
            answers = wanted.get(key, [])
            length = max((len(each) for each in answers), default=2)
            got = [tuple(each[:length]) for each in given.get(key, [])]
            if compared == "latest":
                got, answers = got[-1:], answers[-1:]
            if not _COMPARED.get(compared, list.__eq__)(answers, got):
                return f"topic {topic!r}, key {key}: expected {answers}, found {got}"
    return None


def difference_before_reset(expected: Answers, found: Mapping[str, Sequence[Record]], compared: str) -> str | None:
    """Return the first answer, by topic and key, that the program would not have given up to some record, as above."""
    for topic in sorted({*expected, *found}):
        wanted, given = _by_key(expected.get(topic, ())), _by_key(found.get(topic, ()))
        for key, got in given.items():
            answers = wanted.get(key, [])
            got = [tuple(each[: len(answers[0]) if answers else None]) for each in got]
            is_right = got == answers[: len(got)] if compared == "in order" else not Counter(got) - Counter(answers)
            if compared in ("in order", "in any order") and not is_right:
                return f"topic {topic!r}, key {key}, before a reset: expected the first of {answers}, found {got}"
    return None


def _are_among(some: list[Any], every: list[Any]) -> bool:
    """Return whether some answers are among others, in the same order."""
    left = iter(every)
    return all(each in left for each in some)


_COMPARED: Mapping[str, Callable[[list[Any], list[Any]], bool]] = {
    "in any order": lambda expected, found: Counter(map(repr, expected)) == Counter(map(repr, found)),
    "at least once": lambda expected, found: _are_among(expected, found) and all(each in expected for each in found),
    "with gaps": lambda expected, found: _are_among(found, expected),
    "any of them": lambda expected, found: all(each in expected for each in found),
}


def _by_key(answers: Iterable[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for answer in answers:
        found.setdefault(repr(answer[0]), []).append(tuple(answer))
    return found
