"""What another machine has from before a reset or a restore is no answer, however many versions it had."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, StoreUnavailableError, World
from penstock.client import Client, Store
from penstock.plugins.operate.cli.target import load
from penstock.plugins.state.queries.copies import Bounds
from penstock.plugins.state.queries.noted_servers import TaskServer, note_task_servers
from penstock.plugins.state.queries.stores import keys_of, subscribed
from penstock.plugins.state.queries.subscription import Subscription
from penstock.queries import Queries
from penstock.world import ThreadTicker

from ..cli.applications import TARGET, counting, run
from ..cli.conftest import console as console_fixture
from ..cli.console import Console
from ..cli.test_reset import append, logs
from ..waiting import wait_until
from .served import served

console = console_fixture


def counted(machine: Path, **options: Any) -> Any:
    """Return the count of "a" in the local state of a machine."""
    application: Application = load(TARGET).with_settings(state_dir=str(machine))
    with Queries.of_this_machine(application) as queries:
        return queries.store("counts", wait="0ms", **options).get("a")


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
def test_a_machine_with_an_earlier_incarnation_does_not_answer(console: Console, changelog: str) -> None:
    counting(console)
    old, new = console.directory / "old", console.directory / "new"
    settings = ("--set", f"changelog={changelog}")
    with logs(console) as log:
        for number in range(6):
            append(log, 0, "a", number)
            run(state_dir=str(old), changelog=changelog)
    assert counted(old) == 6
    console("reset", TARGET, "--to-latest", "--yes", *settings)
    with logs(console) as log:
        append(log, 0, "a", 9)
    run(state_dir=str(new), changelog=changelog)
    assert counted(new) == 1
    for options in ({}, {"stale_ok": True}):
        with pytest.raises(StoreUnavailableError, match="from before the application was reset or restored"):
            counted(old, **options)


def test_a_restored_application_is_another_incarnation(console: Console) -> None:
    counting(console)
    old, new = console.directory / "old", console.directory / "new"
    with logs(console) as log:
        append(log, 0, "a", 1)
    run(state_dir=str(old))
    console("state", "backup", TARGET, "backups", "--set", f"state_dir={old}")
    with logs(console) as log:
        append(log, 0, "a", 2)
    run(state_dir=str(old))
    assert counted(old) == 2
    console("reset", TARGET, "--yes", "--set", f"state_dir={new}")
    console("state", "restore", TARGET, "backups", "--set", f"state_dir={new}")
    with pytest.raises(StoreUnavailableError, match="from before the application was reset or restored"):
        counted(old)


WORDS = """
from penstock import Application, Processor, Topology, key_value_store

class Count(Processor):
    def process(self, record):
        counts = self.context.get_store("counts")
        counts.put(record.value, (counts.get(record.value) or 0) + 1)

topology = (
    Topology()
    .add_source("in", "words", value_serde="str")
    .add_processor("count", Count, "in", stores=[key_value_store("counts", key_serde="str", value_serde="int")])
)
application = Application("counting", topology)
"""


class Far:
    """Replicas of the application's stores, whose threads the test moves, by name, and a stopwatch at `now`."""

    def __init__(self, console: Console, changelog: str) -> None:
        self.calls: dict[str, Callable[[], object]] = {}
        self.now = 0.0
        self.application: Application = load(TARGET).with_settings(changelog=changelog)
        world = World(ticker=self._ticker, seconds=lambda: self.now)
        self.queries = Queries.from_changelog(self.application, directory=console.directory / "far", world=world)

    def _ticker(self, name: str, seconds: float, call: Callable[[], object]) -> ThreadTicker:
        self.calls[name] = call
        return ThreadTicker(name, 86_400.0, lambda: None)

    def pass_over(self) -> None:
        self.calls["penstock-replicas"]()

    def look(self) -> None:
        self.calls["penstock-changes"]()

    def counts(self, **options: Any) -> Any:
        """Return the counts of "a" and "b"; what cannot be answered at once is an error."""
        return self.queries.store("counts", wait="0ms", all_tasks=True, **options).get_many(["a", "b"])

    def subscribed(self) -> Subscription:
        reading = self.queries.reading("counts", Bounds())
        return subscribed(reading, keys_of(reading, None, None, None, None), None, None, lambda: None)


@pytest.fixture(params=["directory:changelog", "topic:"])
def far(console: Console, request: pytest.FixtureRequest) -> Iterator[Far]:
    console.write("counting.py", WORDS)
    console("topics", "create", "words", "--partitions", "2")
    with logs(console) as log:
        append(log, 1, "a", 1)
    run(changelog=request.param)
    made = Far(console, request.param)
    with made.queries:
        made.pass_over()
        assert made.counts() == [1, None]
        console("reset", TARGET, "--to-latest", "--yes", "--set", f"changelog={request.param}")
        made.now += 0.1
        yield made


def run_again(console: Console, far: Far) -> None:
    with logs(console) as log:
        append(log, 0, "b", 2)
    run(changelog=far.application.settings.changelog)


def test_a_replica_follows_to_the_next_incarnation_at_once(console: Console, far: Far) -> None:
    """The reset and the next run were between two passes: nothing was answered until its next look, ten seconds."""
    run_again(console, far)
    far.now += 1.1  # until the note of the program is read again
    far.pass_over()
    assert far.counts() == [None, 1]


def test_a_reader_that_begins_after_a_reset_reads_nothing_from_before(console: Console, far: Far) -> None:
    """It had keys of before in its picture, which no change took away: the copy here was at the last version."""
    reader = far.subscribed()
    far.look()
    assert reader.has_begun and set(reader.position().values()) == {None}
    with pytest.raises(StoreUnavailableError):
        far.counts()
    assert far.counts(stale_ok=True) == [1, None]
    run_again(console, far)
    far.now += 1.1
    far.pass_over()
    assert far.counts() == [None, 1]
    far.look()
    assert [(each["key"], each["value"]) for _ in "01" for each in reader.take()] == [("b", 1)]


def test_what_is_forwarded_for_such_a_reader_is_from_after_the_reset(console: Console, far: Far) -> None:
    elsewhere = far.application.with_settings(state_dir=str(console.directory / "elsewhere"))
    with (
        logs(console) as log,
        served(far.queries) as owner,
        Queries.of_this_machine(elsewhere, World(seconds=lambda: far.now)) as lacks,
        served(lacks) as url, Client(url) as client,
    ):  # fmt: skip
        run_again(console, far)  # of the tasks, one has made no commit since
        note_task_servers("counting", log, [TaskServer(owner, socket.gethostname())])
        store = client.store("counts", wait="0ms", all_tasks=True)
        wait_until(lambda: _values(client.store("counts", stale_ok=True)) == {"a": 1}, "it forwards")
        with client.store("counts", wait="20s").changes():
            for ask in (lambda: _values(store), lambda: store.get("a"), lambda: store.get_many(["a"])):
                with pytest.raises(StoreUnavailableError):
                    ask()
            far.now += 1.1
            far.pass_over()
            assert _values(store) == {"b": 1}


def _values(store: Store) -> dict[Any, Any]:
    return {each.key: each.value for each in store.entries()}
