"""Records in flight in runs of the embedded engine: what the next run makes of them, and when a run ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, ConfigError, DeadLetter, ProcessingError, Retry, TopologyError, run
from penstock.plugins.dsl import KStream, StreamsBuilder, tumbling

from ..spark.surroundings import Surroundings
from ..waiting import wait_until


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path) as made:
        made.create(**{"in": 1, "out": 1, "letters": 1})
        yield made


def application(surroundings: Surroundings, function: Callable[..., Any], **options: Any) -> Application:
    names = ("retries", "max_pending", "capacity", "order")
    given = {name: options.pop(name) for name in names if name in options}
    builder = StreamsBuilder()
    builder.stream("in").map_values_async(function, name="look", **given).to("out")
    return surroundings.application("app", builder, engine="embedded", commit_interval="10ms", **options)


class Lost(Exception):
    pass


def test_a_handler_that_comes_with_the_next_program_gets_the_record_as_it_was_read(surroundings: Surroundings) -> None:
    """As the message of a call that failed advises; its record was committed under a program that needs no content."""
    goes = threading.Event()

    def fail(value: str) -> str:
        goes.wait()
        raise Lost(value)

    surroundings.put("in", [("a", "1", 5)])
    (partition,) = surroundings.partitions("in")
    with (
        pytest.raises(ProcessingError, match="processing_handler"),
        application(surroundings, fail).start("continuous") as running,
    ):
        wait_until(lambda: surroundings.log.committed("app", [partition])[partition] == 1, seconds=30)
        goes.set()
        wait_until(lambda: running.state == "failed", seconds=30)
    run(application(surroundings, fail, processing_handler=DeadLetter("letters")))
    assert surroundings.read("letters") == {0: [("a", "1", 5)]}


@pytest.mark.parametrize(("delay", "limits"), [("10ms", {}), ("2s", {}), ("10ms", {"max_pending": 2, "capacity": 1})])
def test_a_run_that_ends_by_itself_waits_for_calls_that_are_made_again(
    surroundings: Surroundings, delay: str, limits: dict[str, int]
) -> None:
    """Else their records would be done by a later run, one attempt each, though the lag is 0."""
    tries: dict[str, int] = {}

    def fail_twice(value: str) -> str:
        tries[value] = tries.get(value, 0) + 1
        if tries[value] < 3:
            raise Lost(value)
        return value

    surroundings.put("in", [(f"k{number}", str(number), number) for number in range(6)])
    run(application(surroundings, fail_twice, retries=Retry(5, delay), **limits))
    assert surroundings.values_by_key("out") == {f"k{number}": [str(number)] for number in range(6)}


@pytest.mark.parametrize("trigger", ["continuous", "0s"])
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_window_stays_open_for_a_record_in_flight(surroundings: Surroundings, trigger: str, is_behind: bool) -> None:
    def wait_if_slow(value: str) -> str:
        threading.Event().wait(4.0 if value == "slow" else 0)
        return value

    builder = StreamsBuilder()
    looked_up: KStream[str, str] = builder.stream("in").map_values_async(wait_if_slow, name="look")
    if is_behind:
        looked_up = looked_up.repartition("again")
    windows = looked_up.group_by_key().windowed_by(tumbling("1s", grace="0s"), emit="on_close", idle="300ms")
    windows.count("counts").to_stream(lambda key, value: key.key, with_key=True).map_values(str).to("out")
    surroundings.put("in", [("a", "fast", 5), ("a", "slow", 6)])
    with surroundings.application("app", builder, engine="embedded", commit_interval="10ms").start(trigger):
        wait_until(lambda: surroundings.values_by_key("out"), seconds=30)
    assert surroundings.values_by_key("out") == {"a": ["2"]}


@pytest.mark.parametrize(
    ("topic", "said"), [("lost", r"no topic 'lost' \(dead letters\)"), ("in", "node 'look', retries: its dead letters")]
)
def test_the_dead_letters_of_a_verb_are_checked_at_the_start(surroundings: Surroundings, topic: str, said: str) -> None:
    with pytest.raises((ConfigError, TopologyError), match=said):
        run(application(surroundings, str, retries=Retry(1, "1s", then=DeadLetter(topic))))
