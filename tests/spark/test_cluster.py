"""On a standalone cluster: shipping, speculation, executors that come and go, and queries on them."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import PenstockError
from penstock.client import Client
from penstock.plugins.engine.host.executor_identity import executor_id
from penstock.plugins.engine.program.saved_program import saved_tasks
from penstock.plugins.state.queries.copies import MOST_AGE_SECONDS
from penstock.plugins.state.queries.noted_servers import TaskServer, task_servers
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..processes import ROOT
from ..rotation import WHOLE, by_turns
from ..waiting import wait_until
from .standalone import Standalone, java_options, spark_home
from .surroundings import Surroundings
from .test_processes import driver, summary_of
from .test_runner import counts, records

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("cluster")]

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with pytest.MonkeyPatch.context() as patch:
        # Each of the many JVMs starts as that of a local session does.
        patch.delenv("SPARK_HOME", raising=False)
        options = java_options()
        patch.setenv("SPARK_HOME", str(spark_home()))
        with Standalone(tmp_path_factory.mktemp("cluster"), options) as started:
            started.add_workers(*map(bindable, HOSTS[:2]))
            yield started


@pytest.fixture
def master(cluster: Standalone) -> list[str]:
    """The options that a driver needs for the cluster."""
    options = java_options()
    return [
        f"master={cluster.master}", "spark.executor.memory=512m", "spark.driver.host=127.0.0.1",
        f"spark.executor.extraJavaOptions={options}", f"spark.driver.extraJavaOptions={options}",
    ]  # fmt: skip


def bindable(host: str) -> str:
    """Return an address of loopback for a worker: macOS has one."""
    return host if can_bind(host) else HOSTS[0]


def can_bind(host: str) -> bool:
    with socket.socket() as attempt:
        try:
            attempt.bind((host, 0))
        except OSError:
            return False
    return True


@by_turns(1, WHOLE)
@pytest.mark.broker
def test_a_slot_whose_host_lingers_goes_to_a_speculative_attempt_in_the_end(master: list[str], tmp_path: Path) -> None:
    """Spark makes no second attempt on the host of the first."""
    if not can_bind(HOSTS[1]):
        pytest.skip("needs two addresses of loopback")
    flag = tmp_path / "lingers"
    with KafkaBroker() as broker, Surroundings(tmp_path / "data", f"kafka:{broker.bootstrap}") as surroundings:
        surroundings.create(**{"in": 4, "out": 4})
        surroundings.put("in", [*records(300), ("k6", "linger", 300), *records(400)[301:]])
        speculation = [
            f"log={surroundings.log_name}", "spark.speculation=true", "spark.speculation.quantile=0.5",
            "spark.speculation.multiplier=1.1", "spark.speculation.interval=100ms",
            "spark.speculation.minTaskRuntime=500ms", "patience=3",
        ]  # fmt: skip
        topology = f"count(LingersOnce, flag={str(flag)!r})"
        with driver(surroundings, topology, "available_now", *master, *speculation) as process:
            wait_until(lambda: flag.exists() or process.poll() is not None, "a task lingers", 240)
            # Only another executor can bring its records to an end: the first one still waits. Until the driver orders
            # the move, attempts there leave the slot to it.
            wait_until(
                lambda: sum(map(len, surroundings.values_by_key("out").values())) == 400 or process.poll() is not None,
                "another attempt did its work",
                240,
            )
            assert process.poll() is None or process.returncode == 0, process.communicate()[1]
            assert not Path(f"{flag}.awake").exists()
            Path(f"{flag}.release").touch()
            # No move is counted if the second attempt came before the first one's host had claimed the slot.
            assert summary_of(process)["lag"] == 0
        assert surroundings.values_by_key("out") == counts(400)


SHIPPED = """
import logging
from tests.spark.apps import Count, count

class Says(Count):
    def process(self, record):
        if record.value == "first":
            logging.getLogger("shipped").warning("here")
        super().process(record)

def topology():
    return count(Says)
"""


@by_turns(4, WHOLE)
def test_slots_stay_at_their_executors_and_move_when_one_is_lost_added_or_decommissioned(
    cluster: Standalone, master: list[str], surroundings: Surroundings, tmp_path: Path
) -> None:
    """The application is of a module that no executor could import, and its lines reach the driver."""
    (tmp_path / "only_here").mkdir()
    (tmp_path / "only_here" / "shipped.py").write_text(SHIPPED)
    partitions = 6
    surroundings.create(**{"in": partitions, "out": partitions})
    progress = tmp_path / "progress"
    put = 0
    options = [
        f"path={tmp_path / 'only_here'}", "module=shipped", f"progress={progress}",
        "spark.speculation=true", "spark.locality.wait=0s", "spark.decommission.enabled=true",
        # Spark begins when two executors are there, however slowly they start.
        "spark.cores.max=6", "spark.scheduler.minRegisteredResourcesRatio=0.66",
    ]  # fmt: skip

    def news() -> list[dict[str, Any]]:
        lines = progress.read_text().split("\n")[:-1] if progress.exists() else []
        return [json.loads(line) for line in lines]

    def moves() -> dict[str, int]:
        found: dict[str, int] = news()[-1]["moves"]
        return found

    def slots_by_executor() -> dict[str, int]:
        """The executors whose hosts have claimed slots."""
        claims = [surroundings.log.get_meta("app", f"slot-{slot}") for slot in range(partitions)]
        return Counter(executor_id(json.loads(claim)["executor"]) for claim in claims if claim)

    def feed_until(condition: Callable[[], Any], what: str) -> None:
        """Put one record in each partition whenever a batch has ended."""
        nonlocal put
        seen = -1

        def is_so() -> bool:
            nonlocal put, seen
            if (batches := len(news())) > seen:
                seen = batches
                for number in range(partitions):
                    surroundings.put("in", [(f"k{number}", "v" if put else "first", put)], partition=number)
                put += 1
            return bool(condition()) or process.poll() is not None

        wait_until(is_so, what, 240)
        assert process.poll() is None, process.communicate()[1]

    with driver(surroundings, "topology()", "0s", *master, *options) as process:
        feed_until(lambda: len(news()) >= 12, "12 batches")
        assert moves() == {}
        assert slots_by_executor() == {"0": 2, "1": 2}
        opened = [task for each in news() for task in each["opened"]]
        assert sorted(opened) == [f"0_{number}" for number in range(partitions)], "no task was opened again"

        # Which executor has a slot is what counts: one that Spark gives back to its old executor moves a second time.
        def is_even(executors: int, without: str) -> bool:
            slots = slots_by_executor()
            return without not in slots and list(slots.values()) == [2] * executors

        os.kill(cluster.executors()["0"], signal.SIGKILL)
        feed_until(lambda: is_even(2, without="0"), "its successor has the slots of a lost executor")

        cluster.add_workers(bindable(HOSTS[2]))
        feed_until(lambda: is_even(3, without="0"), "one more executor brings more slots, and has them")
        # A slot that is still on its way to an executor does not move away from it.
        before = len(news())
        feed_until(lambda: len(news()) > before + 3 and is_even(3, without="0"), "batches in which no slot moves")

        lost, last = moves()["executor lost"], max(cluster.executors(), key=int)
        os.kill(cluster.executors()[last], signal.SIGPWR)
        feed_until(lambda: last not in slots_by_executor(), "slots of a decommissioned executor move")
        before = len(news())
        feed_until(lambda: len(news()) > before + 2, "batches without it")
        process.terminate()
        printed, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert err.count("node 'count': here") == partitions
    summary = json.loads(printed.splitlines()[-1])
    assert "rebalanced" in summary["moves"]
    assert summary["workers_lost"] >= 2, "the two hosts of the executor that was killed"
    # One on which nothing runs ends as soon as it is decommissioned, maybe before the driver looks at the executors.
    assert summary["moves"].get("executor decommissioned", 0) + summary["moves"]["executor lost"] > lost
    surroundings.log.lease("app", "a successor", 1_000).release()
    # What was put last may not have been processed before the end.
    done = surroundings.log.committed("app", surroundings.partitions("in")).values()
    out = surroundings.values_by_key("out")
    assert [out[f"k{number}"] for number in range(partitions)] == [
        [str(each + 1) for each in range(position or 0)] for position in done
    ]


TASKS = ["0_0", "0_1", "1_0", "1_1", "2_0", "2_1"]
GENRES = {"jazz": ["Blue", "Red", "Green"], "rock": ["Iron", "Gold", "Tin"]}


class Listener:
    """Asks servers for the chart of each genre.

    An answer was the last one at some time in two seconds: it has no fewer plays of a song than those before that.
    """

    def __init__(self) -> None:
        self._seen: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)

    def ask(self, url: str, genre: str) -> dict[str, int] | None:
        """Return the plays of the genre's songs; None if no version may answer now."""
        began = time.monotonic()
        try:
            with Client(url, timeout="20s") as client:
                found = client.store("chart").get(genre)
        except PenstockError:
            return None
        plays = {each["title"]: each["plays"] for each in found.value} if found is not None else {}
        ended = time.monotonic()
        for title, number in plays.items():
            earlier = [seen for at, seen in self._seen[title] if at < began - MOST_AGE_SECONDS]
            assert number >= max(earlier, default=0), (title, number, url)
            self._seen[title].append((ended, number))
        return plays


@by_turns(5, WHOLE)
def test_a_music_chart_is_asked_on_two_executors_of_which_one_is_killed(
    cluster: Standalone, master: list[str], surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each executor has local state, standbys of the other's tasks, and a server that forwards to the other one."""
    monkeypatch.setenv("MACHINE", "driver")
    surroundings.create(songs=2, plays=2)
    for genre, titles in GENRES.items():
        surroundings.put("songs", [(title, json.dumps({"title": title, "genre": genre}), 0) for title in titles])
    settings: dict[str, Any] = {"state_dir": "state-${MACHINE}", "queries": "127.0.0.1:0", "commit_interval": "20ms"}
    settings["num_standby_replicas"] = 1
    options = [
        f"path={ROOT / 'examples'}", "module=09_music_chart", f"settings={json.dumps(settings)}",
        "spark.cores.max=4", "spark.executor.cores=2", "spark.scheduler.minRegisteredResourcesRatio=1.0",
    ]  # fmt: skip
    put: Counter[str] = Counter()
    listener = Listener()

    def play() -> None:
        for number, title in enumerate(title for titles in GENRES.values() for title in titles):
            surroundings.put("plays", [(f"listener-{each}", title, 0) for each in range(number + 1)])
            put[title] += number + 1

    def servers() -> list[TaskServer]:
        return [each for each in task_servers("music-chart", surroundings.log) if each.tasks is not None]

    def with_servers() -> list[str]:
        return sorted(task for each in servers() for task in each.tasks or ())

    def agree(urls: list[str]) -> bool:
        return all(
            listener.ask(url, genre) == {title: put[title] for title in titles}
            for url in urls
            for genre, titles in GENRES.items()
        )

    with driver(surroundings, "application", "continuous", *master, *options) as process:

        def until(condition: Callable[[], Any], what: str) -> Any:
            found = wait_until(lambda: process.poll() is not None or condition(), what, 120)
            assert process.poll() is None, process.communicate()[1]
            return found

        play()
        until(lambda: len(servers()) == 2 and with_servers() == TASKS, "each executor has a server")
        first, second = servers()
        until(lambda: agree([first.url, second.url]), "both answer for all tasks")
        for each in (first, second):
            with Client(each.url) as client:
                found = client.request("/v1/stores/chart/metadata", [("key", "jazz")])
            owner = first if first.has(found["task"]) else second
            assert found["server"] == owner.url and owner.url in [copy["server"] for copy in found["copies"]]
        [all_tasks] = [each for each in task_servers("music-chart", surroundings.log) if each.tasks is None]
        if can_bind(HOSTS[1]):
            saved = saved_tasks("music-chart", surroundings.log).items()
            wanted = {name for name, each in saved if any(kept.logged for kept in each.layouts.now.values())}
            copies = "state-worker*/music-chart/*/incarnation"
            until(lambda: {each.parent.name for each in surroundings.directory.glob(copies)} == wanted, "standbys")

        os.kill(max(cluster.executors().items(), key=lambda each: int(each[0]))[1], signal.SIGKILL)
        answered = 0

        def answers_and_moved() -> bool:
            nonlocal answered
            play()
            left = [each.url for each in servers()]
            for url in {first.url, second.url, all_tasks.url, *left}:
                answered += sum(listener.ask(url, genre) is not None for genre in GENRES)
            return with_servers() == TASKS and left != [first.url, second.url]

        until(answers_and_moved, "the tasks of the killed executor have a server again")
        assert answered
        until(lambda: agree([each.url for each in servers()]), "all answer for all tasks again")
        process.terminate()
        printed, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(printed.splitlines()[-1])["workers_lost"] >= 2, "the two hosts of the executor that was killed"
    assert task_servers("music-chart", surroundings.log) == []

    def is_left() -> bool:
        found = (each.info["cmdline"] for each in psutil.process_iter(["cmdline"]))
        return any("music-chart" in " ".join(command or ()) for command in found)

    wait_until(lambda: not is_left(), "no process is left")
