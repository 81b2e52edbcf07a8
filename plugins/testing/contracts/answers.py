"""The answers of a program: read from a driver, and compared with those of its reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock import Record

from ..driver import TopologyTestDriver


def answers_by_key(driver: TopologyTestDriver, topics: Sequence[str], by_partition: bool) -> dict[str, object]:
    """Return the records of topics by topic and key, in order where a partition's answers are in one order."""
    found: dict[str, list[Record]] = {}
    for topic in topics:
        for record in driver.read_all(topic):
            found.setdefault(f"topic {topic}, key {record.key!r}", []).append(record)
    return {name: records if by_partition else sorted(records, key=repr) for name, records in found.items()}


def stored(driver: TopologyTestDriver) -> dict[str, object]:
    """Return the rows of logged stores as bytes, by store, task and key."""
    process = driver._processes.running(looking=True)
    found: dict[str, object] = {}
    for task, partitions in driver._tasks.items():
        driver._stores(process, task)
        state = process.worker(task, partitions, len(driver._tasks))._state
        assert state is not None, f"task {task} is not open after a look into it"
        found |= {f"store {store}, task {task}, row {key!r}": value for store, key, value in state.rows()}
    return found


def compare(expected: Sequence[Sequence[Any]], found: Sequence[Record], where: str, how: str) -> None:
    """Compare the answers of each key: in order if one partition gives them, else how many there are of each.

    Numbers are to be of the same type, too: 3 and 3.0 are equal in Python, and other bytes in most serdes.
    """
    wanted: dict[str, list[tuple[int, tuple[Any, ...]]]] = {}
    for partition, answers in enumerate(expected):
        for answer in answers:
            wanted.setdefault(repr(answer[0]), []).append((partition, tuple(answer)))
    got: dict[str, list[Record]] = {}
    for record in found:
        got.setdefault(repr(record.key), []).append(record)
    for key in sorted(wanted.keys() | got.keys()):
        of_key = wanted.get(key, [])
        answers = [answer for _, answer in of_key]
        lengths = {len(answer) for answer in answers} or {len(Record._fields)}
        given = [tuple(record[: max(lengths)]) for record in got.get(key, [])]
        if len({partition for partition, _ in of_key}) < 2:
            same = given == answers and list(map(_numbers, given)) == list(map(_numbers, answers))
        else:
            same = Counter(map(_text, given)) == Counter(map(_text, answers))
        assert same, f"{where}key {key}: the program answered {given}, the reference {answers}; with {how}"


def _text(value: Any) -> str:
    """Return a text that is the same for equal values whose dicts have another order."""
    if type(value) is dict:
        return f"{{{', '.join(sorted(f'{_text(key)}: {_text(each)}' for key, each in value.items()))}}}"
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    return repr(value)


def _numbers(value: Any) -> Any:
    """Return the types of the numbers in a value, which is equal for values that agree in them."""
    if type(value) is dict:
        return {key: _numbers(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return list(map(_numbers, value))
    return type(value) if type(value) in (bool, int, float) else None
