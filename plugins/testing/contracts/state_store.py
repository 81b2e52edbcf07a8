"""The tests that the stores of every kind must pass; subclass `StateStoreContract` to run them over a kind of yours."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import StoreKind, StoreSpec
from penstock.hooks import registry
from penstock.program.serdes import resolve_serde
from penstock.stores.memory import MemoryBackend

from .expectations import declared, shown
from .serde_tests import same_value, spoil
from .store_kinds import MisuseError, StoreUnderTest, everything
from .surroundings import run_elsewhere

Call = tuple[Any, ...]
"""The name of a method, and its arguments."""

_STEPS = ("commit", "fail", "open again", "move", "flush", "fail in a commit", "another commits")
"""What happens between calls, as a task and the copy of a global store do it."""
_WAITS = {
    "a second later": 1_000,
    "an hour later": 3_600_000,
    "a day later": 86_400_000,
    "a year later": 31_536_000_000,
    "in the year 2026": 1_767_225_600_000,
}
"""How much time passes, in ms."""
_TIMES = 300
"""How often a call is made in a row."""
_MANY_CALLS, _OF_MANY_CALLS = 1_100, 2
_FEW_KEYS = 4
_SHORT, _LONG = (1, 500, 10_000, 30_000), (60_000, 3_600_000, 86_400_000)
"""Lengths of time, in ms: numbers of calls are so far from one another, and as far as their sums and differences."""


class StateStoreContract:
    """The contract of a kind of store, as tests; run them in a test class of yours.

    >>> from penstock import key_value_store
    >>> class TestKeyValue(StateStoreContract):
    ...     spec = key_value_store("s", key_serde="str", value_serde="int")
    ...     calls = st.tuples(st.just("put"), st.text(), st.integers()) | st.tuples(st.just("get"), st.text())

    Needs pytest and hypothesis (`pip install 'penstock-streams[testing]'`).
    """

    spec: ClassVar[StoreSpec] = declared("a declared store of the kind")
    """A declared store of the kind."""
    calls: ClassVar[st.SearchStrategy[Call]] = declared("a hypothesis strategy of tuples (method, *arguments)")
    """What a processor calls: tuples of a method's name and its arguments."""
    reference: ClassVar[Callable[[], Any] | None] = None
    """A class in plain Python that is made without arguments and answers as the store does (None: there is none).

    If it has an attribute `now`, this is set to stream time and wall clock, which are one here, in ms. Where it raises
    an error, the store has to raise one of that type."""
    examples: ClassVar[int] = 60
    """How many random histories are tried."""
    shrinks: ClassVar[bool] = True
    """Whether the smallest history that fails is looked for."""

    def test_any_history(self) -> None:
        """Each call answers as in a store that was never closed, whatever is committed, lost, opened and moved."""
        self._try(
            st.lists(st.one_of(self.calls, self.calls, st.sampled_from(_STEPS)), min_size=20, max_size=40),
            self._compare,
        )

    def test_it_answers_as_the_reference(self) -> None:
        """Each call: of any keys and of few, years later, and where one is made hundreds of times.

        The other tests compare a store with one that was never closed, which may be as wrong.
        """
        made = type(self).reference
        if made is None:
            pytest.skip("the suite has no `reference`")

        def repeated(calls: Sequence[Call], place: int) -> list[Any]:
            at = place % len(calls)
            return [*calls[: at + 1], *[calls[at]] * _TIMES, *calls]

        any_calls = st.lists(st.one_of(self.calls, self.calls, st.sampled_from([*_WAITS])), min_size=20, max_size=60)
        many = st.builds(repeated, _of_two_keys(self.calls, 10, 20, ()), st.integers(0, 19))
        for histories, most in ((any_calls, 60), (_of_two_keys(self.calls, 20, 60, [*_WAITS]), 60), (many, 5)):
            self._try(histories, lambda history: self._check_reference(_Reference(made()), history), most)

    def _check_reference(self, reference: _Reference, history: Sequence[Any]) -> None:
        with _opened(self.spec) as store:
            for number, step in enumerate(history):
                store.now += _WAITS.get(step, 1) if isinstance(step, str) else 1
                if not isinstance(step, str):
                    reference.show(store.now)
                    found, expected = _answer(store, step), _answer(reference, step)
                    assert same_value(found, expected), (
                        f"step {number}, {shown(step)}, after {shown(history[:number])}: the store answers "
                        f"{shown(found)}, and the reference {shown(expected)}"
                    )

    def test_any_history_of_two_keys(self) -> None:
        """The store answers the same when calls share keys: first arguments are two values of each type."""
        self._try(_of_two_keys(self.calls, 20, 40), self._compare)

    def test_any_history_of_years(self) -> None:
        """The store answers as the reference when seconds, days and years pass between calls: entries expire."""
        waits = (*_STEPS, *_WAITS, *_WAITS)
        self._try(_of_two_keys(self.calls, 20, 40, waits), self._compare)

    def test_a_long_history(self) -> None:
        """The store answers the same when calls are made hundreds of times: one key has many entries."""

        def repeated(history: Sequence[Any], places: Sequence[int]) -> list[Any]:
            many = {place % len(history) for place in places}
            each = [step for at, step in enumerate(history) if not isinstance(step, str) and step not in history[:at]]
            long = list[Any]()
            for place, step in enumerate(history):
                long.append(step)
                if place in many and not isinstance(step, str):
                    long += [*[step] * _TIMES, "commit", "open again", *each]
            return long

        histories = _of_two_keys(self.calls, 20, 40, ("commit", "open again", "flush"))
        self._try(
            st.builds(repeated, histories, st.lists(st.integers(0, 80), min_size=3, max_size=6)), self._compare, 10
        )

    def test_restarts(self) -> None:
        """The store answers the same if each commit ends a run of the task: nothing may be in memory alone."""
        self._try(_close_calls(self.calls, 40, 60), self._restarted)

    def test_many_calls(self) -> None:
        """Restarts change nothing after over a thousand calls of a method: row numbers have more digits then."""

        def check(calls: Sequence[Call]) -> None:
            for method in dict.fromkeys(call[0] for call in calls):
                some = [call for call in calls if call[0] == method]
                many = (some * -(-_MANY_CALLS // len(some)))[:_MANY_CALLS]
                if self._leaves_rows(some):
                    self._restarted([*many, "open again", *calls, "move", *calls])

        self._try(st.lists(self.calls, min_size=30, max_size=40), check, _OF_MANY_CALLS)

    def _leaves_rows(self, calls: Sequence[Call]) -> bool:
        with _opened(self.spec, enumerate(calls)) as store:
            store.commit()
            return bool(store.rows())

    def _restarted(self, history: Sequence[Any]) -> None:
        """Compare a store that is committed before each step between calls with a store that is never closed."""
        with ExitStack() as stack:
            store, model = (StoreUnderTest(self.spec, MemoryBackend, _directory(stack)) for _ in range(2))
            for number, step in enumerate(history):
                store.now = model.now = number
                if isinstance(step, str):
                    store.commit()
                    if step == "move":
                        store.move(_directory(stack))
                    else:
                        store.open_again()
                else:
                    self._check_answer(store, model, step, history[:number])
            store.close()
            model.close()

    def _check_answer(self, store: StoreUnderTest, model: StoreUnderTest, call: Call, before: Sequence[Any]) -> None:
        found, expected = _answer(store, call), _answer(model, call)
        assert same_value(found, expected), (
            f"step {len(before)}, {shown(call)}, after {shown(before)}: the store answers {shown(found)}, and one that "
            f"was never closed {shown(expected)}"
        )
        spoil(found)  # a processor may change what it got

    def test_its_calls_write_rows(self) -> None:
        """Suites whose calls change nothing compare nothing."""
        written: list[int] = []

        def check(calls: Sequence[Call]) -> None:
            with _opened(self.spec, enumerate(calls)) as store:
                store.commit()
                written.append(len(store.rows()))

        self._try(st.lists(self.calls, min_size=20, max_size=40), check)
        assert any(written), (
            f"{type(self).__name__}: no `calls` left a row in store {self.spec.name!r} ({type(self.spec).__name__}): "
            "have methods among them that change it; a store writes what it keeps to the BytesStore below, by `flush` "
            "at the latest"
        )

    def test_iterators_beside_changes(self) -> None:
        """A processor may change the store between two steps of what a method iterates over: it never fails."""

        def check(calls: Sequence[Call]) -> None:
            with _opened(self.spec) as store:
                begun: list[tuple[Call, Iterator[Any]]] = []
                for store.now, call in enumerate(calls):
                    try:
                        answer = store.begin(*deepcopy(call))
                    except MisuseError:
                        raise
                    except Exception:
                        continue
                    if isinstance(answer, Iterator):
                        begun = [*begun[-3:], (call, answer)]
                    if store.now % 7 == 6:
                        store.commit()
                    for each, iterator in begun:
                        _next(iterator, each, 1, calls[: store.now + 1])
                for each, iterator in begun:
                    _next(iterator, each, 10_000, calls)

        self._try(_of_two_keys(self.calls, 20, 40, ()), check)

    def _compare(self, history: Sequence[Any]) -> None:
        with ExitStack() as stack:
            store, model = (StoreUnderTest(self.spec, MemoryBackend, _directory(stack)) for _ in range(2))
            done: list[tuple[int, Call]] = []
            committed = 0
            now = 0
            for number, step in enumerate(history):
                now += _WAITS.get(step, 1) if isinstance(step, str) else 1
                store.now = model.now = now
                if step == "commit":
                    store.commit()
                    committed = len(done)
                elif step == "flush":
                    store.store.flush()
                elif step == "another commits":
                    other = store.beside()
                    _replay(other, done[committed:])
                    other.now = now
                    # And one more call, of which this object never learns.
                    call = next((each for each in history[number:] if not isinstance(each, str)), None)
                    if call is not None:
                        done.append((now, call))
                        _answer(other, call)
                        _answer(model, call)
                    other.commit()
                    other.close()
                    store.fail()
                    committed = len(done)
                elif step in _STEPS:
                    if step == "move":
                        store.move(_directory(stack))
                    elif step == "open again":
                        store.open_again()
                    else:
                        if step == "fail in a commit":
                            store.store.flush()
                        store.fail()
                    del done[committed:]
                    model.close()
                    model = StoreUnderTest(self.spec, MemoryBackend, _directory(stack))
                    _replay(model, done)
                    store.now = model.now = now
                elif not isinstance(step, str):
                    done.append((now, step))
                    self._check_answer(store, model, step, history[:number])
            store.close()
            model.close()

    def test_tasks_are_apart(self) -> None:
        """Two tasks of one process share no store: no class or module keeps data."""

        def check(calls: Sequence[tuple[bool, Call]]) -> None:
            with ExitStack() as stack:
                both = [StoreUnderTest(self.spec, MemoryBackend, _directory(stack)) for _ in range(2)]
                mixed = [(which, call, _answer(both[which], call)) for which, call in calls]
                for which in (False, True):
                    alone = StoreUnderTest(self.spec, MemoryBackend, _directory(stack))
                    for each, call, found in mixed:
                        if each == which:
                            expected = _answer(alone, call)
                            assert same_value(found, expected), (
                                f"{shown(call)} in one of two tasks answers {shown(found)}, alone {shown(expected)}: a "
                                "store keeps nothing in its class or module"
                            )
                    alone.close()
                for store in both:
                    store.close()

        self._try(st.lists(st.tuples(st.booleans(), self.calls), min_size=10, max_size=20), check)

    def test_what_was_flushed_is_all(self) -> None:
        """After a commit no change waits, and the next commit writes none."""

        def check(calls: Sequence[Call]) -> None:
            with _opened(self.spec) as store:
                for call in calls:
                    _answer(store, call)
                    waiting = store.store.unflushed()
                    assert type(waiting) is int and waiting >= 0, f"unflushed must return an int >= 0: {waiting!r}"
                store.commit()
                waiting = store.store.unflushed()
                assert waiting == 0, (
                    f"after flush nothing waits, and unflushed returned {waiting}, after {shown(calls)}"
                )
                store.store.flush()
                again = store.uncommitted()
                assert not again, f"after a commit flush has nothing to write, and wrote {shown(again)}"

        self._try(st.lists(self.calls, min_size=8, max_size=20), check)

    def test_equal_histories_have_equal_rows(self) -> None:
        """Equal histories have equal rows and answers, without any clock, hash, random number or setting."""
        found: list[list[Call]] = []
        self._try(st.lists(self.calls, min_size=5, max_size=20), found.append)
        histories = found[:20]
        here = _done((self.spec, histories))
        for seed in ("1", "2"):
            elsewhere = run_elsewhere(_done, (self.spec, histories), seed, "a store")
            for history, (answers, rows), (others, other) in zip(histories, here, elsewhere, strict=True):
                where = f"in another process, with other hashes, time zone and decimal context, after {shown(history)}"
                assert rows == other, f"the rows are {shown(rows)} here, and {shown(other)} {where}"
                for call, one, answer in zip(history, answers, others, strict=True):
                    assert same_value(one, answer), (
                        f"{shown(call)} answers {shown(one)} here, and {shown(answer)} {where}"
                    )

    def test_reading_changes_nothing(self) -> None:
        """Tasks read a global store by the methods of its reading half: these write nothing."""

        def check(calls: Sequence[Call]) -> None:
            with _opened(self.spec) as store:
                half = type(store.store).reading_half
                for call in calls:
                    store.store.flush()
                    before = store.uncommitted()
                    _answer(store, call)
                    store.store.flush()
                    if half is not None and hasattr(half, call[0]):
                        after = store.uncommitted()
                        assert after == before, f"{shown(call)} is of the reading half, and wrote {shown(after)}"

        self._try(st.lists(self.calls, min_size=8, max_size=20), check)

    def test_rows_are_records_of_a_changelog_topic(self) -> None:
        """Every row comes back from its record, and a deleted one is of the same record."""
        installed = self.spec.kind in registry().names("store kind")
        kind = registry().load("store kind", self.spec.kind) if installed else None
        if not isinstance(kind, StoreKind):
            pytest.skip("key and value of a row of this kind are those of its record")
        topic_rows = kind.topic_rows(self.spec.traits.fixed_options)

        def check(calls: Sequence[Call]) -> None:
            with _opened(self.spec, enumerate(calls)) as store:
                store.commit()
                for row in store.rows().items():
                    key, content, timestamp = topic_rows.record_of(*row)
                    back = topic_rows.row_of(key, content, 0 if timestamp is None else timestamp)
                    assert back == row, f"the row {row} became the record {(key, content, timestamp)}, and that {back}"
                    gone = topic_rows.record_of(row[0], None)[0]
                    assert gone == key, f"a deleted row {row[0]!r} is of the record {key!r}, and has {gone!r}"

        self._try(st.lists(self.calls, min_size=8, max_size=20), check)

    def test_rows_have_the_keys_of_entries(self) -> None:
        """`row_keys` finds in each row a key of its serde, or says that the row is of the whole store."""
        keys = self.spec.row_keys
        if keys is None:
            pytest.skip("the kind does not say where its rows have their keys: `penstock reshard` refuses its stores")
        serde = resolve_serde(keys.serde(self.spec), "msgpack", f"store {self.spec.name!r}", {}).bind(
            "contract", is_key=True
        )

        def check(calls: Sequence[Call]) -> None:
            with _opened(self.spec, enumerate(calls)) as store:
                store.commit()
                for row, data in store.rows().items():
                    key = keys.key_of(row)
                    assert key is None or type(key) is bytes, (
                        f"row_keys.key_of({row!r}) returned {key!r}: bytes or None"
                    )
                    if key is not None:
                        try:
                            again = serde.serialize(serde.deserialize(key))
                        except Exception as error:
                            raise AssertionError(
                                f"row {row!r}: its serde cannot read the key {key!r}: {error!r}"
                            ) from error
                        assert again == key, (
                            f"row {row!r}: its serde reads the key {key!r}, and writes {again!r} for it"
                        )
                    elif keys.merged is not None:
                        both = keys.merged(data, data)
                        assert type(both) is bytes, f"row_keys.merged returned {both!r} for row {row!r}: expected bytes"

        self._try(st.lists(self.calls, min_size=8, max_size=20), check)

    def test_its_declaration_travels(self) -> None:
        """A spec is sent to other processes with the program, and the store has its name."""
        try:
            sent = pickle.loads(pickle.dumps(self.spec))
        except Exception as error:
            raise AssertionError(
                f"a declared store is sent to other processes, and cannot be pickled: {error!r}"
            ) from error
        for what in ("name", "backend", "logged", "traits"):
            found, expected = getattr(sent, what), getattr(self.spec, what)
            assert found == expected, f"{what} of a declared store is {found!r} after pickling, and was {expected!r}"
        with _opened(sent) as store:
            assert store.store.name == self.spec.name, f"a store's name is that of its spec, not {store.store.name!r}"

    def _try(self, histories: st.SearchStrategy[Any], check: Any, most: int = 1_000_000) -> None:
        @settings(
            max_examples=min(self.examples, most),
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink] if self.shrinks else [Phase.generate],
        )
        @given(histories)
        def each(history: Any) -> None:
            check(history)

        each()


def _of_two_keys(
    calls: st.SearchStrategy[Call], least: int, most: int, steps: Sequence[str] = _STEPS
) -> st.SearchStrategy[list[Any]]:
    """Return a strategy of calls with steps between them, whose first arguments are few.

    They are keys in most kinds of stores, and keys that are drawn from all texts would hardly ever be equal.
    """
    between = st.sampled_from((*[""] * 8, *steps))

    def met(drawn: list[tuple[Call, int, str]]) -> list[Any]:
        found: list[Any] = []
        keys = dict[type, list[Any]]()
        for call, which, step in drawn:
            if len(call) > 1:
                two = keys.setdefault(type(call[1]), [])
                if len(two) < 2:
                    two.append(call[1])
                call = (call[0], two[which % len(two)], *call[2:])
            found += [step, call] if step else [call]
        return found

    return st.lists(st.tuples(calls, st.integers(0, 1), between), min_size=least, max_size=most).map(met)


def _close_calls(calls: st.SearchStrategy[Call], least: int, most: int) -> st.SearchStrategy[list[Any]]:
    """Return a strategy of calls with restarts between them, of few keys, and of numbers that are near one another.

    Numbers of a method that lie far apart, as times do, are usual lengths of time from the greatest one so far, and
    between the least and the greatest of those that are drawn.
    """
    restart = st.sampled_from(["", "", "", "", "open again", "move"])

    def close(short: int, long: int, drawn: list[tuple[Call, int, int, str]]) -> list[Any]:
        lengths = [0, short, -short, long, -long, -long - short, -long + short, short]
        numbers: dict[tuple[str, int], list[int]] = {}
        for call, *_ in drawn:
            for at, each in enumerate(call[1:], 1):
                if type(each) is int:
                    numbers.setdefault((call[0], at), []).append(each)
        wide = {where: (min(all_), max(all_)) for where, all_ in numbers.items() if max(all_) - min(all_) > 1_000}
        found: list[Any] = []
        keys, used = dict[type, list[Any]](), list[int]()
        for call, which, length, between in drawn:
            changed = list(call)
            for at in range(1, len(call)):
                if (call[0], at) in wide:
                    low, high = wide[call[0], at]
                    if used and which:
                        changed[at] = min(high, max(low, max(used) + lengths[length]))
                    used.append(changed[at])
                elif at == 1:
                    few = keys.setdefault(type(call[1]), [])
                    if len(few) < _FEW_KEYS:
                        few.append(call[1])
                    changed[1] = few[which % len(few)]
            found += [between, tuple(changed)] if between else [tuple(changed)]
        return found

    drawn = st.tuples(calls, st.integers(0, _FEW_KEYS), st.integers(0, 7), restart)
    lists = st.lists(drawn, min_size=least, max_size=most)
    return st.builds(close, st.sampled_from(_SHORT), st.sampled_from(_LONG), lists)


class _Reference:
    """The suite's reference; it gets copies of all arguments, and callers get copies of its results."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def show(self, now: int) -> None:
        if hasattr(self._made, "now"):
            self._made.now = now

    def call(self, method: str, *given: Any) -> Any:
        called = getattr(self._made, method, None)
        if called is None:
            raise MisuseError(f"`calls` has {method!r}, and the reference, {self._made!r}, has no such method")
        return deepcopy(everything(called(*deepcopy(given))))


def _answer(store: StoreUnderTest | _Reference, call: Call) -> Any:
    """Return a call's result, or the type of its error; the arguments are changed afterwards."""
    method, *given = deepcopy(call)
    try:
        answer = store.call(method, *given)
    except MisuseError:
        raise
    except Exception as error:
        return type(error).__name__
    for each in given:
        spoil(each)
    return answer


def _next(iterator: Iterator[Any], call: Call, count: int, calls: Sequence[Call]) -> None:
    try:
        for _ in islice(iterator, count):
            pass
    except Exception as error:
        raise AssertionError(
            f"what {shown(call)} iterates over must not fail where the store is changed between two steps, and raised "
            f"{error!r}, after {shown(calls)}"
        ) from error


@contextmanager
def _opened(spec: Any, calls: Iterable[tuple[int, Call]] = ()) -> Iterator[StoreUnderTest]:
    """Open an empty store, make the calls, each at its time, and close it unless the block fails."""
    with ExitStack() as stack:
        store = StoreUnderTest(spec, MemoryBackend, _directory(stack))
        _replay(store, calls)
        yield store
        store.close()


def _replay(store: StoreUnderTest, calls: Iterable[tuple[int, Call]]) -> None:
    """Make calls, each at its time."""
    for store.now, call in calls:
        _answer(store, call)


def _directory(stack: ExitStack) -> str:
    """Return a name under which the memory backend keeps stores until the stack ends."""
    name = f"contract-{uuid4()}"
    stack.callback(lambda: MemoryBackend(Path(name), ()).destroy())
    return name


def _done(cargo: tuple[Any, Sequence[Sequence[Call]]]) -> list[tuple[list[Any], dict[bytes, bytes]]]:
    """Return the answers of each history, as far as they can be pickled, and its rows."""
    spec, histories = cargo
    found = []
    for history in histories:
        with _opened(spec) as store:
            answers = []
            for store.now, call in enumerate(history):
                answers.append(_sendable(_answer(store, call)))
            store.commit()
            found.append((answers, store.rows()))
    return found


def _sendable(answer: Any) -> Any:
    try:
        return pickle.loads(pickle.dumps(answer))
    except Exception:
        return type(answer).__name__
