"""Joins of two streams equal what the documentation says, and mistakes are said at the verb."""

from __future__ import annotations

from collections import Counter
from typing import Any, assert_type

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Application, TopologyError, window_store
from penstock.plugins.dsl import JoinWindows, KStream, StreamsBuilder, within
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples

Input = tuple[str, str, int]
"""Side, key and time."""

INPUTS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from(["a", "long" * 100]), st.integers(0, 40)), max_size=25
)
LENGTHS = st.tuples(st.integers(-3, 12), st.integers(-3, 12)).filter(lambda pair: sum(pair) >= 0)


def joined(kind: str, windows: JoinWindows, **options: Any) -> StreamsBuilder:
    builder = StreamsBuilder()
    left, right = builder.stream("left"), builder.stream("right")
    join: Any = {"inner": KStream.join, "left": KStream.left_join, "outer": KStream.outer_join}[kind]
    join(left, right, lambda one, two: f"{one}|{two}", windows, name="j", **options).to("out")
    return builder


def results(builder: StreamsBuilder, inputs: list[Input], **driver_options: Any) -> list[tuple[str, str, int]]:
    """Return (key, value, timestamp) of what comes out; a last record on each side closes all windows."""
    application = Application("joined", builder, key_serde="str", value_serde="str", store_backend="memory")
    with TopologyTestDriver(application, **driver_options) as driver:
        for number, (side, key, time) in enumerate(inputs):
            driver.pipe(side, key, f"{side[0]}{number}", time)
        driver.pipe("left", "z", "end", 10_000)
        driver.pipe("right", "z", "end", 20_000)
        driver.pipe("left", "z", "end", 30_000)
        return [(record.key, record.value, record.timestamp) for record in driver.read_all("out") if record.key != "z"]


def expected(kind: str, windows: JoinWindows, inputs: list[Input]) -> Counter[tuple[str, str, int]]:
    """Return what a join with a long grace has: every pair, and who has none.

    Of those whose window had passed when they came, who had none at that time: they do not wait.
    """
    found: Counter[tuple[str, str, int]] = Counter()
    for number, (side, key, time) in enumerate(inputs):
        mine = f"{side[0]}{number}"
        before, after = windows.before_ms, windows.after_ms
        if side == "right":
            before, after = after, before
        has_passed = time + after < max(each[2] for each in inputs[: number + 1])
        matches = [
            (other, inputs[other][2])
            for other in range(len(inputs))
            if inputs[other][:2] != (side, key)
            if inputs[other][1] == key and time - before <= inputs[other][2] <= time + after
        ]
        if side == "left":
            found.update((key, f"{mine}|r{other}", max(time, at)) for other, at in matches)
        can_be_alone = kind == "outer" or (side == "left" and kind == "left")
        if can_be_alone and not [other for other, _ in matches if other < number or not has_passed]:
            found[key, f"{mine}|None" if side == "left" else f"None|{mine}", time] += 1
    return found


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
@given(inputs=INPUTS, lengths=LENGTHS)
@example([("right", "a", 0), ("left", "a", 1)], (5, -2))  # the window ends before the epoch
@settings(max_examples=examples(40), deadline=None)
def test_every_pair_within_the_window_and_who_has_none(
    kind: str, inputs: list[Input], lengths: tuple[int, int]
) -> None:
    before, after = lengths
    windows = JoinWindows(before, after, 50)
    found = results(joined(kind, windows), inputs)
    assert Counter(found) == expected(kind, windows, inputs)


STEPS = st.lists(st.tuples(st.sampled_from(["left", "right"]), st.integers(0, 6), st.integers(0, 4)), max_size=25)
"""Of each record: its side, how much later it comes than the one before, and how much of that it is late itself."""


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
@given(steps=STEPS, lengths=LENGTHS, grace=st.integers(0, 4), retains=st.booleans())
@example([(side, 1, 0) for _ in range(15) for side in ("right", "left")], (10, -5), 0, False)
@example([(side, 1, 0) for _ in range(15) for side in ("right", "left")], (10, 0), 0, False)
@example([step for _ in range(15) for step in (("right", 1, 0), ("left", 0, 0))], (10, 0), 0, True)
@settings(max_examples=examples(40), deadline=None)
def test_no_pair_within_the_grace_is_lost(
    kind: str, steps: list[tuple[str, int, int]], lengths: tuple[int, int], grace: int, retains: bool
) -> None:
    """The stores keep what may still be joined, also with the shortest `retention` that is taken."""
    windows, now, inputs = JoinWindows(*lengths, grace), 15, []
    for side, later, late in steps:
        now += later
        inputs.append((side, "a", now - min(late, grace)))
    options = {"retention": f"{windows.retention_ms}ms"} if retains else {}
    found = results(joined(kind, windows, **options), inputs)
    assert Counter(found) == expected(kind, windows, inputs)


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
@given(inputs=INPUTS, lengths=LENGTHS, grace=st.integers(0, 8))
@settings(max_examples=15, deadline=None)
def test_a_task_that_is_opened_again_after_each_record_answers_the_same(
    kind: str, inputs: list[Input], lengths: tuple[int, int], grace: int
) -> None:
    windows = JoinWindows(*lengths, grace)
    assert results(joined(kind, windows), inputs) == results(joined(kind, windows), inputs, reopen_tasks=True)


@given(inputs=INPUTS, lengths=LENGTHS, grace=st.integers(1, 8))
@example([("left", "a", 0)], (-2, 6), 1)
@settings(max_examples=examples(30), deadline=None)
def test_a_self_join_with_one_store_answers_as_with_two(
    inputs: list[Input], lengths: tuple[int, int], grace: int
) -> None:
    def play(optimization: str) -> tuple[list[Any], int]:
        builder = StreamsBuilder()
        stream = builder.stream("in")
        stream.join(stream, lambda one, two: f"{one}|{two}", JoinWindows(*lengths, 40 + grace), name="j").to("out")
        application = Application(
            "joined", builder, value_serde="str", store_backend="memory", topology_optimization=optimization
        )
        with TopologyTestDriver(application) as driver:
            for number, (_, key, time) in enumerate(inputs):
                driver.pipe("in", key, str(number), time)
            return [(each.key, each.value, each.timestamp) for each in driver.read_all("out")], len(
                application.program.stores
            )

    (plain, two), (optimised, one) = play("none"), play("all")
    assert sorted(plain) == sorted(optimised)
    assert (two, one) == (2, 1)


@pytest.mark.parametrize(("form", "expected"), [("default", b"closes"), ("headers", b"own")])
def test_headers_of_what_waits_for_a_match(form: str, expected: bytes) -> None:
    builder = joined("left", within("1s", grace="0s"))
    application = Application("joined", builder, value_serde="str", dsl_store_format=form)
    with TopologyTestDriver(application, reopen_tasks=True) as driver:
        driver.pipe("left", "a", "one", 0, (("h", b"own"),))
        driver.pipe("left", "a", "two", 5_000, (("h", b"closes"),))
        (record,) = driver.read_all("out")
    assert (record.value, record.headers) == ("one|None", (("h", expected),))


# ------------------------------------------------------------------ names and stores


def test_a_name_names_nodes_stores_and_repartition_topics() -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("left").select_key(str), builder.stream("right").select_key(str)
    left.outer_join(right, lambda one, two: None, within("1s", grace="1s"), name="j")
    program = builder.build().build()
    assert set(program.stores) == {
        "j-outer-this-join-store", "j-outer-other-join-store", "j-outer-shared-join-store"
    }  # fmt: skip
    assert set(program.internal_topics) == {"j-left-repartition", "j-right-repartition"}


def test_stores_can_be_declared_and_kept_for_longer() -> None:
    given: Any = {"logged": False, "topic_config": {"segment.bytes": 5}}
    mine = window_store("mine", retention="1h", window_size="2s", retain_duplicates=True, **given)
    builder = StreamsBuilder()
    left, right = builder.stream("left"), builder.stream("right")
    window = within("1s", grace="0s")
    left.left_join(right, lambda one, two: None, window, this_store=mine, retention="1m", name="j")
    stores: dict[str, Any] = dict(builder.build().build().stores)
    assert set(stores) == {"mine", "j-outer-other-join-store", "mine-left-shared-join-store"}
    assert (stores["mine"].retention_ms, stores["j-outer-other-join-store"].retention_ms) == (3_600_000, 60_000)
    assert not stores["mine-left-shared-join-store"].logged
    assert stores["mine-left-shared-join-store"].topic_config == {"segment.bytes": "5"}


def test_several_joins_of_a_stream_without_a_name_share_a_repartition_topic() -> None:
    builder = StreamsBuilder()
    keyed, window = builder.stream("left").select_key(str), within("1s", grace="1s")
    for topic in ("one", "two"):
        keyed.join(builder.stream(topic), lambda one, two: None, window)
    assert len(builder.build().build().internal_topics) == 1


# ------------------------------------------------------------------ mistakes


def streams() -> tuple[KStream[Any, Any], KStream[Any, Any]]:
    builder = StreamsBuilder()
    return builder.stream("left"), builder.stream("right")


def test_a_window_is_needed() -> None:
    left, right = streams()
    with pytest.raises(TopologyError, match=r'join of two streams needs a window.*within\("10m", grace="1m"\)'):
        left.join(right, lambda one, two: None)  # type: ignore[call-overload]


def test_a_joiner_takes_both_values() -> None:
    left, right = streams()
    with pytest.raises(TopologyError, match="its joiner is called with"):
        left.join(right, str.upper, within("1s", grace="1s"))  # type: ignore[arg-type]


def test_grace_is_always_said() -> None:
    with pytest.raises(TopologyError, match=r'write within\("10m", grace="1m"\), or grace="0s"'):
        within("1s")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"difference": "-1s"}, "expected 0s or longer"),
        ({"before": "1s"}, "before and after are both said"),
        ({"before": "1s", "after": "-2s"}, "leave no time"),
        ({"difference": "1s", "before": "1s"}, "write within"),
    ],
)
def test_windows_that_are_none(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        within(**arguments, grace="0s")


def test_keys_with_different_serdes_are_not_joined() -> None:
    builder = StreamsBuilder()
    left, right = builder.stream("left", key_serde="str"), builder.stream("right", key_serde="int")
    with pytest.raises(TopologyError, match=r'equal keys would be in different partitions.*repartition\("NAME"'):
        left.join(right, lambda one, two: None, within("1s", grace="1s"))
    builder.stream("other").join(right, lambda one, two: None, within("1s", grace="1s"))
    with pytest.raises(TopologyError, match="equal keys would be in different partitions"):
        builder.build()


def test_a_declared_store_must_retain_duplicates_for_long_enough() -> None:
    left, right = streams()
    window = within("1h", grace="1s")
    for store in (
        window_store("s", retention="3h", window_size="1h"),
        window_store("s", retention="1h", window_size="1h", retain_duplicates=True),
    ):
        with pytest.raises(TopologyError, match="retain_duplicates=True"):
            left.join(right, lambda one, two: None, window, this_store=store)


def test_an_option_that_does_not_exist() -> None:
    left, right = streams()
    with pytest.raises(TopologyError, match="there is no option 'retain' here; there is: key_serde"):
        left.join(right, lambda one, two: None, within("1s", grace="1s"), retain="1h")  # type: ignore[call-overload]


# ------------------------------------------------------------------ batches and crashes


class BatchDriver(TopologyTestDriver):
    """Processes what was piped only when `step` is called, in one batch, and then opens the task again."""

    def _drain(self) -> None:
        """Leave everything to `step`."""

    def __enter__(self) -> BatchDriver:
        return self

    def step(self) -> None:
        for task, partitions in self._tasks.items():
            self._run(task, self.log.end_offsets(partitions))
        self.reopen()


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
@given(inputs=INPUTS, lengths=LENGTHS, cuts=st.sets(st.integers(0, 24)))
@settings(max_examples=15, deadline=None)
def test_however_batches_are_cut_the_results_are_the_same(
    kind: str, inputs: list[Input], lengths: tuple[int, int], cuts: set[int]
) -> None:
    def play(cuts: set[int]) -> list[tuple[str, str, int]]:
        application = Application(
            "joined", joined(kind, JoinWindows(*lengths, 3)), value_serde="str", store_backend="memory"
        )
        with BatchDriver(application) as driver:
            for number, (side, key, time) in enumerate(inputs):
                driver.pipe(side, key, f"{side[0]}{number}", time)
                if number in cuts:
                    driver.step()
            driver.step()
            return [(record.key, record.value, record.timestamp) for record in driver.read_all("out")]

    # At different times, records of both topics have one order, wherever a batch ends.
    inputs = sorted({time: (side, key, time) for side, key, time in inputs}.values(), key=lambda each: each[2])
    assert play(cuts) == play(set())


# ------------------------------------------------------------------ types


def test_types_follow_a_join() -> None:
    builder = StreamsBuilder()
    left: KStream[str, int] = builder.stream("left")
    right: KStream[str, float] = builder.stream("right")
    window = within("1s", grace="1s")

    def or_zero(one: int, two: float | None) -> float:
        return one + (two or 0.0)

    assert_type(left.join(right, lambda one, two: f"{one}{two}", window, name="a"), KStream[str, str])
    assert_type(left.left_join(right, or_zero, window, name="b"), KStream[str, float])
    assert_type(
        left.outer_join(right, lambda key, one, two: [key], window, with_key=True, name="c"), KStream[str, list[str]]
    )
