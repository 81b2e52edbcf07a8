"""The answers that a program should give, and how those of a history differ from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from penstock import Record

from ..driver import TopologyTestDriver

Answers = Mapping[str, Sequence[tuple[Any, ...]]]
"""By output topic: (key, value) or (key, value, timestamp), or all of a Record."""


def of_driver(program: Any, records: Mapping[str, Sequence[Record]], partitions: int, **settings: Any) -> Answers:
    """Return a program's answers without faults: those of the test driver, for one record after the other."""
    with TopologyTestDriver(program, partitions=partitions, **settings) as driver:
        if len(records) > 1:
            driver.pipe_many(records)
        for topic, of_topic in records.items() if len(records) == 1 else ():
            driver.pipe_all(topic, of_topic)
        return {topic: [tuple(each) for each in driver.read_all(topic)] for topic in driver.output_topics()}


def of_reference(reference: Callable[[list[Record]], Iterable[Any]], parts: Iterable[Sequence[Record]]) -> list[Any]:
    """Return the answers of a function in plain Python for the records of each partition."""
    return [tuple(answer) for part in parts if part for answer in reference(list(part))]


def difference(expected: Answers, found: Mapping[str, Sequence[Record]], compared: str) -> str | None:
    """Return the first difference, by topic and key; None if there is none.

    `compared`: the answers of a key "in order", "in any order", or the "latest" of each key only. What an expected
    answer leaves out is not compared.
    """
    for topic in sorted({*expected, *found}):
        wanted, given = _by_key(expected.get(topic, ())), _by_key(found.get(topic, ()))
        for key in sorted({*wanted, *given}):
            answers = wanted.get(key, [])
            length = max((len(each) for each in answers), default=2)
            got = [tuple(each[:length]) for each in given.get(key, [])]
            if compared == "latest":
                got, answers = got[-1:], answers[-1:]
            any_order = compared == "in any order"
            same = Counter(map(repr, got)) == Counter(map(repr, answers)) if any_order else got == answers
            if not same:
                return f"topic {topic!r}, key {key}: expected {answers}, found {got}"
    return None


def _by_key(answers: Iterable[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for answer in answers:
        found.setdefault(repr(answer[0]), []).append(tuple(answer))
    return found
