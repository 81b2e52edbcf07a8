"""The tests that every serde must pass; subclass `SerdeContract` to run them over yours."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Serde, SerdeError
from penstock.plugins.serdes.of import typed_serde

from .expectations import shown
from .serde_tests import BUILT_IN, EndsTests, SerdeTests, reads, same_value, spoil, twins, what_can_be_changed
from .surroundings import SurroundingsTests, run_elsewhere


@dataclass
class Answer:
    """What the other process found."""

    form: str
    unreadable: str
    written: list[tuple[bytes | None, bytes | str]]
    """For each sample: the bytes of the value (None: it cannot be sent), and those of what its bytes are read as.

    A str is an error.
    """


def in_another_process(
    make: Callable[[], Serde[Any]], samples: Sequence[tuple[Any, bytes]], form: str, seed: str
) -> Answer:
    """Read and write the samples, values with their bytes, in a process whose hashes begin with `seed`."""
    cargo = make, [(_sent(value), written) for value, written in samples], form
    answer: Answer = run_elsewhere(_answer, cargo, seed, "a serde")
    return answer


def _sent(value: Any) -> bytes | None:
    import cloudpickle

    try:
        sent: bytes = cloudpickle.dumps(value)
    except Exception:
        return None
    return sent


def _answer(cargo: Any) -> Answer:
    make, samples, form = cargo
    unreadable = make().unreadable(form)
    serde = make()
    # In another order than there, and read before anything is written.
    again = [_again(make(), data) for _, data in reversed(samples)][::-1]
    own = [None if sent is None else serde.serialize(pickle.loads(sent)) for sent, _ in reversed(samples)][::-1]
    return Answer(serde.written_form(), unreadable, list(zip(own, again, strict=True)))


def _again(serde: Serde[Any], data: bytes) -> bytes | str:
    try:
        return serde.serialize(serde.deserialize(data))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


_EACH, _FEW = SerdeTests._each, SerdeTests._few


class SerdeContract(EndsTests, SurroundingsTests):
    """The contract of a serde, as tests; run them in a test class of yours.

    >>> from penstock.serde import StrSerde
    >>> class TestStr(SerdeContract):
    ...     serde = StrSerde
    ...     values = st.text()

    Needs pytest and hypothesis (`pip install 'penstock-streams[testing]'`).
    """

    @settings(_EACH, max_examples=_EACH.max_examples * 5 // 2)
    @given(st.data())
    def test_a_value_comes_back_as_it_was(self, data: st.DataObject) -> None:
        """Bytes, exactly; and the value, its type included."""
        serde = self.made()
        value = data.draw(self.values)
        written = serde.serialize(value)
        assert type(written) is bytes, f"serialize({value!r}) must return bytes, and returned {written!r}"
        read = serde.deserialize(written)
        assert self._is_back(serde, read, value), f"{value!r} came back as {read!r}"

    @_FEW
    @given(st.data())
    def test_a_value_always_has_the_same_bytes(self, data: st.DataObject) -> None:
        """Stores are ordered and looked up by bytes, so they must not depend on earlier calls, also failed ones."""
        serde = self.made()
        value, other = data.draw(st.tuples(self.values, self.values))
        written = serde.serialize(value)
        serde.serialize(other)
        for wrong in self.refused:
            with pytest.raises(SerdeError):
                serde.serialize(wrong)
        for again in (serde.serialize(value), self.made().serialize(value)):
            assert again == written, (
                f"{value!r} was written as {written!r} and later as {again!r}: always the same bytes"
            )

    @_FEW
    @given(st.data())
    def test_equal_values_have_equal_bytes(self, data: st.DataObject) -> None:
        """Whichever of their parts are one object, and whatever values equal to them were written before."""
        value = data.draw(self.values)
        written = self.made().serialize(value)
        if self.for_keys:
            for other in (_rebuilt(value, None), _rebuilt(value, {}), *([] if self.keeps_order else [_turned(value)])):
                again = self.made().serialize(other)
                assert again == written, (
                    f"{value!r} was written as {written!r}, and an equal value made of other objects as {again!r}: "
                    "equal keys must have equal bytes (or say so, and set for_keys = False in this suite, or "
                    "keeps_order = True where only the order of a dict's entries changes them)"
                )
        for twin in islice(twins(value), 8):
            serde = self.made()
            ways = serde.serialize, serde.serializer()
            for write in ways:
                with suppress(Exception):
                    write(twin)
            for write in ways:
                try:
                    again = write(value)
                except Exception:
                    assert write != serde.serialize, f"{value!r} is refused after {twin!r}, which is equal to it"
                    continue
                assert again == written, (
                    f"{value!r} was written as {written!r}, and as {again!r} after {twin!r}, which is equal and differs"
                )
            with suppress(Exception):
                serde.serialize(twin)
            read = serde.deserialize(written)
            assert self._is_back(serde, read, value), (
                f"{written!r} is read as {read!r}, not {value!r}, after {twin!r} was written"
            )

    def test_earlier_values_change_nothing(self) -> None:
        """Earlier values change no result: equal or similar ones, or ones at the same address, accepted or refused."""
        for values in self._neighbourhoods():
            alone = [_trace(self.made(), value) for value in values]
            for step in (1, -1):
                serde = self.made()
                for value, (written, read) in zip(values[::step], alone[::step], strict=True):
                    again = _trace(serde, value)
                    assert again[0] == written, (
                        f"{shown(value)} is {shown(written)} for a new serde, and {shown(again[0])} after "
                        f"{shown(values[:9])} and others: always the same bytes"
                    )
                    assert self._are_alike(again[1], read), (
                        f"{shown(written)} is read as {shown(read)} by a new serde, and as {shown(again[1])} after "
                        f"{shown(values[:9])} and others"
                    )
        samples, serde = self._samples(60), self.made()
        for value, data in [(value, self.made().serialize(value)) for value in samples]:
            later = serde.serialize(pickle.loads(pickle.dumps(value)))
            assert later == data or (not self.for_keys and self._is_back(serde, reads(serde, later), value)), (
                f"{shown(value)} is {shown(data)}, and {shown(later)} after others that are no longer in memory"
            )

    @_FEW
    @given(st.data())
    def test_a_key_that_was_read_has_the_same_bytes(self, data: st.DataObject) -> None:
        """A row is found by the key that a scan shows, and a key that was read from a topic stays in its partition.

        So it is for values that are only equal to those of the serde, if it takes them: an int in place of a float.
        """
        value = data.draw(self.values)
        for given_value in [value, *islice(twins(value), 8)] if self.for_keys else []:
            serde = self.made()
            try:
                written = serde.serialize(given_value)
            except Exception:  # it takes no such value
                continue
            read = serde.deserialize(written)
            again = serde.serialize(read)
            assert again == written, (
                f"{given_value!r} was written as {written!r}, which is read as {read!r}, and that is written as "
                f"{again!r}: a key that was read must have the same bytes (or set for_keys = False in this suite)"
            )

    @_FEW
    @given(st.data())
    def test_values_are_not_changed(self, data: st.DataObject) -> None:
        """What is written may still be used by the program."""
        serde = self.made()
        value = data.draw(self.values)
        before = deepcopy(value)
        serde.serialize(value)
        with suppress(Exception):
            serde.serializer()(value)
        assert self.same(value, before), f"serialize must not change its value: {before!r} became {value!r}"

    @pytest.mark.parametrize("seed", ["1", "2"])
    def test_another_process_writes_and_reads_the_same(self, seed: str) -> None:
        """Tasks move between processes, whose strings have other hashes; so `written_form` is the same there, too."""
        if self.in_one_process:
            pytest.skip("no other process can read what this serde writes")
        serde = self.made()
        samples = [(value, serde.serialize(value)) for value in self._samples(40)]
        form = serde.written_form()
        other = in_another_process(type(self).serde, samples, form, seed)
        rule = "in another process, where hashes differ,"
        assert other.form == form, f"{rule} written_form is {other.form!r}, and was {form!r}"
        assert other.unreadable == "", f"{rule} unreadable refuses the serde's own form: {other.unreadable}"
        for (value, written), (own, again) in zip(samples, other.written, strict=True):
            assert not isinstance(again, str), f"{rule} {written!r}, which {value!r} is written as, is refused: {again}"
            if self.for_keys:
                for found, what in ((again, "is written again"), (own, "is written there")):
                    assert found in (None, written), f"{rule} {value!r} {what} as {found!r}, and was {written!r} here"

    @_FEW
    @given(st.data())
    def test_it_survives_pickling(self, data: st.DataObject) -> None:
        """Serdes travel to Spark's executors with the topology."""
        serde = self.made()
        value = data.draw(self.values)
        written = serde.serialize(value)
        sent = pickle.loads(pickle.dumps(serde))
        assert sent.serialize(value) == written, f"{value!r} is written in other bytes after pickling the serde"
        assert self._is_back(sent, sent.deserialize(written), value), (
            f"{written!r} is read as another value after pickling"
        )

    @_FEW
    @given(st.data())
    def test_what_it_reads_is_not_shared(self, data: st.DataObject) -> None:
        """Values read are not shared: changing one changes no later result."""
        serde = self.made()
        value = data.draw(self.values)
        written = serde.serialize(value)
        spoil(serde.deserialize(written))
        read = serde.deserialize(written)
        assert self._is_back(serde, read, value), (
            f"{written!r} is read as {read!r} after what was read before was changed"
        )

    @_EACH
    @given(st.data())
    def test_foreign_bytes_are_read_or_refused(self, data: st.DataObject) -> None:
        """Only SerdeError, which the deserialization handler expects, and the serde works afterwards."""
        serde = self.made()
        value = data.draw(self.values)
        foreign = data.draw(self.foreign | _cut(serde.serialize(value)))
        try:
            serde.deserialize(foreign)
        except SerdeError:
            pass
        read = serde.deserialize(serde.serialize(value))
        assert self._is_back(serde, read, value), (
            f"after {foreign!r} was read or refused, {value!r} came back as {read!r}"
        )

    def test_values_it_cannot_hold_are_refused(self) -> None:
        """Only SerdeError, with a message."""
        for value in self.refused:
            with pytest.raises(SerdeError, match=r"\w"):
                self.made().serialize(value)

    @_EACH
    @given(st.data())
    def test_immutable_types_never_fail(self, data: st.DataObject) -> None:
        """A store serializes such values only at the next commit, when it is too late to refuse them."""
        serde = self.made()
        for kind in sorted(serde.immutable_types, key=repr):
            value = data.draw(self._of_type(kind, "immutable_types"))
            self._expect_unchangeable(value, "immutable_types")
            read = serde.deserialize(serde.serialize(value))
            assert same_value(read, value), f"immutable_types has {kind.__name__}: {value!r} came back as {read!r}"

    @_EACH
    @given(st.data())
    def test_checked_types_come_back_or_fail(self, data: st.DataObject) -> None:
        """Values of `checked_types` are read back unchanged or refused: a store may return them without reading."""
        serde = self.made()
        for kind in sorted(serde.checked_types, key=repr):
            value = data.draw(self._of_type(kind, "checked_types"))
            self._expect_unchangeable(value, "checked_types")
            try:
                written = serde.serialize(value)
            except SerdeError:
                continue
            read = serde.deserialize(written)
            assert same_value(read, value), f"checked_types has {kind.__name__}: {value!r} came back as {read!r}"

    def test_values_are_of_its_value_type(self) -> None:
        """Typed columns of a Spark pipeline are converted to that type, and not by the serde."""
        kind = self.made().value_type
        if kind is not None:
            of_kind = typed_serde(kind)
            for value in self._samples(5):
                try:
                    of_kind.serialize(value)
                except SerdeError as error:
                    raise AssertionError(f"value_type is {kind!r}, of which {value!r} is none: {error}") from error

    @_FEW
    @given(st.data())
    def test_a_column_is_read_as_its_values_are(self, data: st.DataObject) -> None:
        """A list of the same length, None for None, and no object twice that could be changed."""
        serde = self.made()
        once = [serde.serialize(value) for value in data.draw(st.lists(self.values, min_size=1, max_size=4))]
        # Nothing, None only, None at each end and in the middle, equal bytes beside one another and apart, many rows.
        for column in ([], [None], [*once, None, *once], [None, *once, *once[::-1], None], [*once, None] * 50):
            given = list(column)
            read = serde.deserialize_column(given)
            assert given == column, f"deserialize_column changed the column that it was given: {column!r} to {given!r}"
            assert isinstance(read, list), (
                f"deserialize_column must return a list, and returned a {type(read).__name__}"
            )
            assert len(read) == len(column), f"deserialize_column returned {len(read)} values for {len(column)}"
            for row, raw in enumerate(column):
                expected = None if raw is None else serde.deserialize(raw)
                assert self.same(read[row], expected), (
                    f"deserialize_column returned {read[row]!r} for {raw!r}, where deserialize returns {expected!r}"
                )
                spoil(read[row])  # no later row, and no later call, may see it

    @pytest.mark.parametrize("rows", [1000, 1001, 4097, 10_000])
    def test_a_column_of_thousands(self, rows: int) -> None:
        """A column may have thousands of rows, as a fetch has; each row is the result of `deserialize`."""
        serde = self.made()
        known = [None, *(serde.serialize(value) for value in self._samples(12))]
        column = [known[row * 7 % len(known)] for row in range(rows)]
        read = serde.deserialize_column(column)
        assert len(read) == rows, f"deserialize_column returned {len(read)} values for {rows}"
        for row, raw in enumerate(column):
            expected = None if raw is None else serde.deserialize(raw)
            assert self.same(read[row], expected), (
                f"of {rows} rows, deserialize_column returned {read[row]!r} for number {row}, {raw!r}, where "
                f"deserialize returns {expected!r}"
            )

    @_FEW
    @given(st.data())
    def test_a_column_has_nothing_that_is_refused(self, data: st.DataObject) -> None:
        """A column with a refused value is refused as a whole: the engine then reads value by value."""
        serde = self.made()
        written = serde.serialize(data.draw(self.values))
        foreign = data.draw(self.foreign | _cut(written))
        try:
            serde.deserialize(foreign)
        except SerdeError:
            for column in ([foreign], [written, None, foreign]):
                try:
                    read = serde.deserialize_column(column)
                except Exception:
                    continue
                raise AssertionError(
                    f"deserialize refuses {foreign!r}, but deserialize_column({column!r}) returned {read!r}"
                ) from None

    @_FEW
    @given(st.data())
    def test_the_fast_function_writes_the_same_bytes(self, data: st.DataObject) -> None:
        """The fast function writes the same bytes as `serialize`, or raises. It must raise where `serialize` does."""
        serde = self.made()
        fast = serde.serializer()
        values = data.draw(st.lists(self.values, min_size=1, max_size=3))
        for value in [*values, *values[::-1]]:
            try:
                written = fast(value)
            except Exception:
                continue
            expected = serde.serialize(value)
            assert type(written) is bytes and written == expected, (
                f"serializer()({value!r}) returned {written!r}, where serialize returns {expected!r}"
            )
        for wrong in self.refused:
            try:
                written = fast(wrong)
            except Exception:
                continue
            raise AssertionError(f"serialize refuses {wrong!r}, but serializer()({wrong!r}) returned {written!r}")

    def test_the_fast_function_takes_no_more(self) -> None:
        """The fast function refuses every value that `serialize` refuses, also values similar to the suite's."""
        serde = self.made()
        fast = serde.serializer()
        for value in (each for values in self._neighbourhoods() for each in values):
            expected = _trace(serde, value)[0]
            try:
                written = fast(value)
            except Exception:
                continue
            assert not isinstance(expected, type), (
                f"serialize refuses {shown(value)}, but serializer()({shown(value)}) returned {shown(written)}"
            )
            assert type(written) is bytes and written == expected, (
                f"serializer()({shown(value)}) returned {shown(written)}, where serialize returns {shown(expected)}"
            )

    @_FEW
    @given(st.data())
    def test_bound_to_a_topic_it_is_a_serde(self, data: st.DataObject) -> None:
        """`bind` returns the serde for one topic's keys or values."""
        value = data.draw(self.values)
        for is_key in (True, False):
            bound = self.made().bind("orders", is_key=is_key)
            read = bound.deserialize(bound.serialize(value))
            assert self._is_back(bound, read, value), f"bound to a topic, {value!r} came back as {read!r}"

    @_FEW
    @given(st.data())
    def test_binding_changes_nothing_but_the_answer(self, data: st.DataObject) -> None:
        """One serde may be that of several topics, of keys and of values: each has its own from `bind`."""
        value = data.draw(self.values)
        serde = self.made()
        alone = _outcome(serde, value)
        places = [(topic, is_key) for topic in ("orders", "others") for is_key in (True, False)]
        bound = [serde.bind(topic, is_key=is_key) for topic, is_key in places]
        before = [_outcome(each, value) for each in bound]
        self._check_unchanged(serde, value, alone, "bind")
        for (topic, is_key), each, expected in zip(places, bound, before, strict=True):
            sent = pickle.loads(pickle.dumps(each))
            for again, what in (
                (_outcome(each, value), "what was bound to another topic before"),
                (_outcome(self.made().bind(topic, is_key=is_key), value), "a new serde bound to that topic alone"),
                (_outcome(sent, value), "what was bound and then pickled"),
            ):
                assert again[0] == expected[0], (
                    f"bind must not change {what}: {value!r} was {expected[0]!r} for {'keys' if is_key else 'values'} "
                    f"of {topic}, and is {again[0]!r}"
                )
                assert again[1] == expected[1], (
                    f"bind must not change the written form of {what}: {again[1]!r}, expected {expected[1]!r}"
                )
        assert isinstance(serde.configure({}), Serde), "configure must return the serde to use"
        self._check_unchanged(serde, value, alone, "configure")

    def _check_unchanged(self, serde: Serde[Any], value: Any, before: tuple[object, str], method: str) -> None:
        again = _outcome(serde, value)
        assert again == before, f"{method} must not change the serde itself: {value!r} was {before!r} and is {again!r}"

    @_FEW
    @given(st.data())
    def test_its_text_form_is_the_value(self, data: st.DataObject) -> None:
        """Tools and queries show and take values in this form of JSON; a value that has none is refused."""
        serde = self.made()
        value = data.draw(self.values)
        try:
            form = serde.to_json(value)
        except SerdeError:
            return
        read = serde.from_json(json.loads(json.dumps(form, allow_nan=False)))
        assert self._is_back(serde, read, value), (
            f"to_json made {form!r} of {value!r}, and from_json made {read!r} of that"
        )
        if self.for_keys:
            written, again = serde.serialize(value), serde.serialize(read)
            assert again == written, f"{value!r} is {written!r}, and {again!r} after to_json and from_json"

    def test_its_written_form_lasts(self) -> None:
        """It is saved with the state: always the same, and the serde reads what was written under it."""
        form = self.made().written_form()
        for make in (self.made, lambda: pickle.loads(pickle.dumps(self.made()))):
            other = make()
            assert other.written_form() == form, f"written_form is {other.written_form()!r} and was {form!r}"
            assert other.unreadable(form) == "", f"unreadable refuses the serde's own form: {other.unreadable(form)}"
            assert other.unfindable(form) == "", f"unfindable refuses the serde's own form: {other.unfindable(form)}"
            foreign = "of.nobody.knows.Serde(0123abcd)"
            assert other.unreadable(foreign), f"unreadable must say why a form is not read that nobody knows: {foreign}"
            assert other.unfindable(foreign), f"unfindable must refuse a form that nobody knows: {foreign}"

    def _expect_unchangeable(self, value: Any, declared: str) -> None:
        assert not (part := what_can_be_changed(value)), (
            f"{declared} has {type(value).__name__}, and {part} can be changed: stores keep such values as objects"
        )

    def _of_type(self, kind: type, declared: str) -> st.SearchStrategy[Any]:
        assert kind.__hash__ is not None, (
            f"{declared} has {kind.__name__}, whose values can be changed: stores keep them as objects"
        )
        return BUILT_IN.get(kind, self.values.filter(lambda value: type(value) is kind))


def _rebuilt(value: Any, shared: dict[Any, Any] | None) -> Any:
    """Return an equal value of new objects; those that are equal are one object if there is a dict for them."""
    kind = type(value)
    made = value
    if kind is str:
        made = "".join(list(value))
    elif kind is bytes:
        made = bytes(bytearray(value))
    elif kind is int:
        made = int(str(value))
    elif kind in (list, tuple):
        made = kind(_rebuilt(each, shared) for each in value)
    elif kind in (set, frozenset):
        made = kind([_rebuilt(each, shared) for each in value][::-1])
    elif kind is dict:
        made = {_rebuilt(key, shared): _rebuilt(each, shared) for key, each in value.items()}
    if shared is None or kind not in (str, bytes, int):
        return made
    return shared.setdefault((kind, made), made)


def _turned(value: Any) -> Any:
    """Return an equal value, the entries of whose dicts have the opposite order."""
    if type(value) is dict:
        return {key: _turned(each) for key, each in reversed(value.items())}
    return type(value)(map(_turned, value)) if type(value) in (list, tuple) else value


def _outcome(serde: Serde[Any], value: Any) -> tuple[object, str]:
    """Return the bytes of a value, or the type of the error (some serdes need a topic); and the written form."""
    written: object
    try:
        written = serde.serialize(value)
    except SerdeError as error:
        written = type(error)
    return written, serde.written_form()


def _trace(serde: Serde[Any], value: Any) -> tuple[Any, Any]:
    """Return the bytes of a value and the value read from them; the class SerdeError for a refused one."""
    try:
        written = serde.serialize(value)
    except Exception:
        return SerdeError, None
    return written, reads(serde, written)


def _cut(data: bytes) -> st.SearchStrategy[bytes]:
    """Return strategy of `data` cut short, prolonged, or with one byte changed."""
    if not data:
        return st.just(b"\x00")
    place = st.integers(0, len(data) - 1)
    byte = st.binary(min_size=1, max_size=1)
    return (
        place.map(lambda at: data[:at])
        | byte.map(lambda more: data + more)
        | st.tuples(place, byte).map(lambda change: data[: change[0]] + change[1] + data[change[0] + 1 :])
    )
