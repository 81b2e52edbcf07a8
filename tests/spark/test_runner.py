"""`run` on Spark: records once each, restarts, retried batches, lost workers, limits, stops and refusals."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Application,
    IncompatibleStateError,
    LogError,
    ProcessingError,
    RuntimeUnavailableError,
    SystemClock,
    Topology,
    TopologyError,
)
from penstock.plugins.spark import RunProgress, RunSummary, run

from ..small_disk import small_disk
from ..waiting import wait_until
from . import apps
from .surroundings import Surroundings

pytestmark = pytest.mark.spark


def records(count: int, keys: int = 7, value: str = "v") -> list[tuple[str, str, int]]:
    return [(f"k{number % keys}", value, number) for number in range(count)]


def counts(count: int, keys: int = 7) -> dict[str, list[str]]:
    """What a count forwards for `records(count)`: for each key 1, 2, 3 ..."""
    return {f"k{key}": [str(n + 1) for n in range(len(range(key, count, keys)))] for key in range(keys)}


@contextmanager
def heard(spark: Any) -> Iterator[list[dict[str, Any]]]:
    """What a listener of the given session hears of batches: the name of the query, and its observed metrics."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    progress: list[dict[str, Any]] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            observed = event.progress.observedMetrics.get("penstock")
            if observed is not None and observed["messages"]:
                progress.append({"name": event.progress.name, **observed.asDict()})

        def onQueryTerminated(self, event: Any) -> None:
            pass

    listener = Listener()
    spark.streams.addListener(listener)
    try:
        yield progress
    finally:
        spark.streams.removeListener(listener)


def checkpoint(application: Application) -> Path:
    pointer = Path(application.settings.data_dir, "checkpoint", application.id, "current.json")
    return Path(json.loads(pointer.read_text())["directory"])


def last_number(folder: Path) -> int:
    return max(int(each.name) for each in folder.iterdir() if each.name.isdigit())


def run_until(application: Application, spark: Any, enough: Callable[[], Any]) -> RunSummary:
    """Run with as many batches as possible until `enough`, then stop as SIGTERM would."""
    stop, done = threading.Event(), []
    thread = threading.Thread(target=lambda: done.append(run(application, "0s", session=spark, stop=stop)))
    thread.start()
    try:
        wait_until(lambda: enough() or not thread.is_alive(), "the application has done enough", 120)
    finally:
        stop.set()
        thread.join()
    summary: RunSummary = done[0]
    return summary


def test_counts_go_on_after_a_restart_and_a_batch_that_spark_repeats_does_nothing(
    surroundings: Surroundings, spark: Any
) -> None:
    surroundings.create(**{"in": 4, "out": 4})
    application = surroundings.application("counts", apps.count())
    surroundings.put("in", records(100))
    news: list[RunProgress] = []
    summary = run(application, session=spark, on_progress=news.append)
    assert (summary.records_in, summary.records_out, summary.lag, summary.tasks) == (100, 100, 0, 4)
    assert summary.nodes["count"] == {"in": 100, "out": 100, "dropped": {}, "user": {}}
    assert (summary.stopped_by, summary.workers_lost) == (None, 0)
    last = [each for each in news if each.reports][-1]
    assert (last.records_in, last.lag, {report.task_id for report in last.reports}) == (
        100,
        0,
        {"0_0", "0_1", "0_2", "0_3"},
    )
    assert last.ends == last.positions
    assert surroundings.values_by_key("out") == counts(100)

    # Spark believes that its last batch did not end: it runs it again, with the same offsets.
    folder = checkpoint(application)
    (folder / "commits" / str(last_number(folder / "commits"))).unlink()
    before = surroundings.everything("counts", "in", "out")
    summary = run(application, session=spark)
    assert summary.batches == 2, "the repeated one, and the one that always runs at the start"
    assert (summary.records_in, summary.commits) == (0, 0)
    assert surroundings.everything("counts", "in", "out") == before

    surroundings.put("in", records(200)[100:])
    assert run(application, session=spark).records_in == 100
    assert surroundings.values_by_key("out") == counts(200)


def test_a_checkpoint_is_disposable(surroundings: Surroundings, spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    application = surroundings.application("app", apps.count())
    surroundings.put("in", records(30))
    run(application, session=spark)
    first = checkpoint(application)
    for each in (first / "offsets").iterdir():
        each.write_text("not an offset")
    surroundings.put("in", records(60)[30:])
    with caplog.at_level(logging.WARNING):
        summary = run(application, session=spark)
    assert "with a new checkpoint" in caplog.text
    assert summary.records_in == 30
    second = checkpoint(application)
    assert second != first
    assert not first.exists()
    surroundings.put("in", records(90)[60:])
    run(application.with_settings(parallelism=1), session=spark)
    assert checkpoint(application) != second, "the number of Spark partitions is frozen in a checkpoint"
    assert surroundings.values_by_key("out") == counts(90)


def test_a_checkpoint_of_another_log_is_refused(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 1, "out": 1})
    application = surroundings.application("app", apps.pipe())
    run(application, session=spark)
    surroundings.log.delete_commits("app")
    with pytest.raises(IncompatibleStateError, match=r"application 'app'.*Is it the right log\?.*delete"):
        run(application, session=spark)


def test_repartition_topics_drain_with_more_tasks_than_cores(surroundings: Surroundings, spark: Any) -> None:
    """But for what the newest commit read: if the log loses that, reset --from-state goes back to the one before."""
    surroundings.create(**{"in": 4, "out": 1})
    surroundings.put("in", [(f"k{number}", f"v{number % 5}", number) for number in range(200)])
    summary = run(surroundings.application("app", apps.count_by_value()), session=spark)
    assert (summary.tasks, summary.lag, summary.records_in) == (7, 0, 400)
    assert {key: len(values) for key, values in surroundings.values_by_key("out").items()} == {
        f"v{n}": 40 for n in range(5)
    }
    assert surroundings.log.topics()["app-by-value-repartition"].internal
    surroundings.put("in", [(f"k{number}", f"v{number % 5}", number) for number in range(200, 205)])
    run(surroundings.application("app", apps.count_by_value()), session=spark)
    left = surroundings.log.start_offsets(surroundings.partitions("app-by-value-repartition"))
    assert sum(left.values()) == 200, "what was read of a repartition topic is purged"


def test_a_limit_divides_what_there_is_into_batches(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 4, "out": 4})
    surroundings.put("in", records(100, keys=20))
    read: list[int] = []
    with heard(spark) as progress:
        summary = run(
            surroundings.application("app", apps.count(), max_records_per_batch=40),
            session=spark,
            on_progress=lambda news: read.append(sum(report.records_in for report in news.reports)),
        )
        wait_until(lambda: sum(each["records_in"] for each in progress) == 100, "the listener hears of it")
    assert [each for each in read if each] == [40, 40, 20]
    assert [each["records_in"] for each in progress if each["records_in"]] == [40, 40, 20]
    assert [each["lag"] for each in progress if each["records_in"]] == [60, 20, 0]
    assert [each["state_rows"] for each in progress if each["records_in"]] == [20] * 3
    assert {each["name"] for each in progress} == {"app"}
    assert [each["counters"].get("count.in") for each in progress if each["records_in"]] == [40, 40, 20]
    assert (summary.records_in, summary.lag) == (100, 0)
    assert surroundings.values_by_key("out") == counts(100, keys=20)


def test_a_new_application_starts_with_what_is_at_most_an_hour_old(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    now, minute = SystemClock().now_ms(), 60_000
    for partition in (0, 1):
        old = [("k", f"{partition} old", now - age * minute) for age in (300, 200, 100)]
        new = [("k", f"{partition} {age} min", now - age * minute) for age in (40, 90, 0)]
        surroundings.put("in", [*old, *new], partition)
    application = surroundings.application("app", apps.pipe(), offset_reset="1h", max_records_per_batch=4)
    summary = run(application, session=spark)
    assert (summary.records_in, summary.lag) == (6, 0), "what is older after the first one is read, too"
    surroundings.put("in", [("k", "later", now - 300 * minute)], 0)
    assert run(application, session=spark).records_in == 1
    values = [value for rows in surroundings.read("out").values() for _, value, _ in rows]
    assert sorted(map(str, values)) == [
        *(f"{partition} {age} min" for partition in (0, 1) for age in (0, 40, 90)),
        "later",
    ]


def test_the_wall_clock_ticks_without_data_until_it_is_stopped(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 1, "out": 1})
    application = surroundings.application("app", apps.real_ticks(), punctuation_interval="300ms")
    summary = run_until(application, spark, lambda: len(surroundings.read("out")[0]) >= 3)
    assert (summary.stopped_by, summary.records_in) == ("stop", 0)
    times = [timestamp for _, _, timestamp in surroundings.read("out")[0]]
    assert times == sorted(set(times))


def test_timers_of_both_clocks_fire(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 1, "out": 1})
    surroundings.put("in", records(100, keys=20))
    application = surroundings.application("app", apps.later(), punctuation_interval="300ms")

    def said(clock: str) -> list[tuple[str | None, int]]:
        return [(key, timestamp) for key, value, timestamp in surroundings.read("out")[0] if value == clock]

    run_until(application, spark, lambda: len(said("wall")) == 20)
    assert said("stream") == [(f"k{at % 20}", at + 5) for at in range(95)]
    assert sorted(key for key, _ in said("wall") if key) == sorted(f"k{key}" for key in range(20))


def test_without_ticks_and_data_no_batch_runs_and_new_partitions_are_taken_up(
    surroundings: Surroundings, spark: Any
) -> None:
    surroundings.create(**{"in-a": 1, "out": 1})
    topology = Topology().add_source("in", pattern="in-.*").add_sink("out", "out", "in")
    application = surroundings.application("app", topology)

    def put_into_another_topic() -> bool:
        if "in-b" not in surroundings.log.topics() and surroundings.read("out")[0]:
            surroundings.create(**{"in-b": 2})
            surroundings.put("in-b", records(5))
        return len(surroundings.read("out")[0]) == 8

    surroundings.put("in-a", records(3))
    summary = run_until(application, spark, put_into_another_topic)
    assert summary.tasks == 2
    assert summary.batches <= 3, "one at the start and one after the new topic came, which may see it in two steps"


def test_a_worker_that_is_killed_costs_nothing(surroundings: Surroundings, spark: Any, tmp_path: Path) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    surroundings.put("in", [*records(50), ("k1", "die", 50), *records(50)[:0]])
    flag = tmp_path / "died"
    summary = run(surroundings.application("app", apps.count(apps.DiesOnce, flag=str(flag))), session=spark)
    assert flag.exists()
    assert summary.records_in == 51
    expected = counts(50)
    expected["k1"].append(str(len(expected["k1"]) + 1))
    assert surroundings.values_by_key("out") == expected


def test_a_batch_that_spark_cuts_off_is_counted(surroundings: Surroundings, spark: Any, tmp_path: Path) -> None:
    """One slot has committed, and the job ends before the other one has."""
    surroundings.create(**{"in": 2, "out": 2})
    flag = tmp_path / "go"
    for number, values in enumerate((["v"] * 100, ["wait"] * 100)):
        surroundings.put("in", [(f"k{number}", value, 1) for value in values], partition=number)
    application = surroundings.application("app", apps.count(apps.Waits, flag=str(flag)), parallelism=2)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run, application, session=spark)
        try:
            wait_until(lambda: len(surroundings.values_by_key("out").get("k0", ())) == 100, "a slot has committed")
            spark.sparkContext.cancelAllJobs()
        finally:
            flag.touch()
        summary = running.result()
    assert (summary.records_in, summary.records_out) == (200, 200)


def test_what_a_task_fails_with_is_said_once_and_plainly(
    surroundings: Surroundings, spark: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    application = surroundings.application("app", apps.count(apps.Poisoned))
    surroundings.put("in", records(20), partition=0)
    surroundings.put("in", [("a", "fine", 1), ("b", "poison", 2), ("c", "fine", 3)], partition=1)
    with pytest.raises(ProcessingError) as caught:
        run(application, session=spark)
    assert str(caught.value).startswith(
        "application 'app', task 0_1, node 'count', at topic 'in' partition 1 offset 1: ValueError: cannot stand this"
    )
    assert "in process" in caught.value.__notes__[0], "the worker's traceback goes along for who wants it"
    assert "org.apache.spark" not in capfd.readouterr().err
    assert surroundings.log.committed("app", surroundings.partitions("in"))[surroundings.partitions("in")[1]] == 0
    healed = surroundings.application("app", apps.count())
    run(healed, session=spark)
    assert {key: values[-1] for key, values in surroundings.values_by_key("out").items() if key in ("a", "b", "c")} == {
        "a": "1", "b": "1", "c": "1",
    }  # fmt: skip


def test_workers_log_lines_reach_the_driver_with_task_and_node(
    surroundings: Surroundings, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    surroundings.create(**{"in": 1, "out": 1})
    surroundings.put("in", [("a", "strange", 1)])
    with caplog.at_level(logging.WARNING):
        run(surroundings.application("app", apps.count(apps.Warns)), session=spark)
    lines = [each for each in caplog.records if each.name == "tests.apps"]
    assert [each.getMessage() for each in lines] == ["task 0_0, node 'count': strange record a"]
    assert [(each.levelno, each.task, each.node) for each in lines] == [(logging.WARNING, "0_0", "count")]  # type: ignore[attr-defined]


def test_a_global_store_follows_a_topic_that_is_made_again(surroundings: Surroundings, spark: Any) -> None:
    """While the application runs, with more partitions and as many records as before."""
    surroundings.create(**{"in": 2, "out": 1, "table": 1})
    surroundings.put("table", [("a", "old", 0), ("b", "old", 0)])
    surroundings.put("in", [("a", "?", 0), ("b", "?", 0)], 0)

    def go_on() -> bool:
        answers = surroundings.values_by_key("out")
        if answers == {"a": ["old"], "b": ["old"]} and len(surroundings.partitions("table")) == 1:
            surroundings.log.delete_topic("table")
            surroundings.create(table=2)
            surroundings.put("table", [("a", "new", 0)], 0)
            surroundings.put("table", [("c", "new", 0)], 1)
            surroundings.put("in", [(key, "?", 1) for key in "abc"], 1)
        return sum(map(len, answers.values())) == 5

    run_until(surroundings.application("app", apps.look_up()), spark, go_on)
    assert surroundings.values_by_key("out") == {"a": ["old", "new"], "b": ["old", "None"], "c": ["new"]}


def test_a_second_driver_is_refused(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 1, "out": 1})
    lease = surroundings.log.lease("app", "somebody", 60_000)
    with pytest.raises(LogError, match="already run by somebody"):
        run(surroundings.application("app", apps.pipe()), session=spark)
    lease.release()


def test_what_does_not_fit_is_refused_with_the_reason(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 2, "out": 1})
    run(surroundings.application("app", apps.count()), session=spark)
    with pytest.raises(IncompatibleStateError, match=r"application 'app'.*store 'counts' was written with value_serde"):
        run(surroundings.application("app", apps.count(), state_serde="json"), session=spark)
    surroundings.log.delete_topic("in")
    surroundings.create(**{"in": 3})
    with pytest.raises(IncompatibleStateError, match=r"'in' had 2 partitions and has 3"):
        run(surroundings.application("app", apps.count()), session=spark)
    surroundings.log.delete_topic("out")
    with pytest.raises(TopologyError, match=r"no topic 'out' \(sink 'out'\).*penstock topics create"):
        run(surroundings.application("other", apps.count()), session=spark)


def test_a_full_disk_under_the_checkpoint_ends_the_run_at_once(
    surroundings: Surroundings, spark: Any, tmp_path: Path
) -> None:
    surroundings.create(**{"in": 1, "out": 1})
    surroundings.put("in", records(10))
    with small_disk(tmp_path / "small", 12) as disk:
        application = surroundings.application("counts", apps.count(), checkpoint_dir=str(disk / "checkpoint"))
        with pytest.raises(RuntimeUnavailableError) as raised:
            run(application, session=spark)
    message = str(raised.value)
    assert message.startswith(
        "application 'counts': Spark ended the query: java.io.IOException: No space left on device; the disk is full"
    )
    assert f"set `checkpoint_dir` (now {disk}/checkpoint/counts/" in message
    assert run(application.with_settings(checkpoint_dir="checkpoint"), session=spark).records_in == 10


def test_processors_find_the_files_of_the_spark_application(
    spark: Any, surroundings: Surroundings, tmp_path: Path
) -> None:
    (tmp_path / "words.txt").write_text("found")
    spark.sparkContext.addFile(str(tmp_path / "words.txt"))
    surroundings.create(**{"in": 1, "out": 1})
    surroundings.put("in", records(1))
    run(surroundings.application("files", apps.read_file("words.txt")), session=spark)
    assert surroundings.values_by_key("out") == {"k0": ["found"]}
