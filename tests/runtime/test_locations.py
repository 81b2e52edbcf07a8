"""What a log is handed: its location, and the settings that concern it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, LogError, PenstockError, PluginError
from penstock.hooks import Component, registry
from penstock.log import Log
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.locations import Places, live_directory, open_deltas, open_log, state_directory
from penstock.plugins.logs.memory import MemoryLog
from penstock.program.builder import Topology
from penstock.settings.application import Application
from penstock.settings.secret import Secret
from penstock.settings.settings import Settings


class Distant(MemoryLog):
    """A log that is no directory; remembers what it was opened with."""

    def __init__(self, location: str = "", settings: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(location, settings, **more)
        self.location, self.settings = location, settings


@pytest.fixture
def distant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        registry().components, ("log", "distant"), Component("log", "distant", Distant, "test", "test", "1")
    )


@pytest.mark.usefixtures("distant")
def test_a_log_that_is_no_directory_gets_its_location_as_it_was_written() -> None:
    log = open_log(Settings(log="distant:one:9092,two:9092"))
    assert isinstance(log, Distant)
    assert log.location == "one:9092,two:9092"


def test_a_log_that_is_a_directory_lies_in_the_data_directory(tmp_path: Path) -> None:
    open_log(Settings(log="local:here", data_dir=str(tmp_path))).close()
    assert (tmp_path / "here" / "data.mdb").exists()


@pytest.mark.usefixtures("distant")
def test_a_log_gets_the_clients_settings_and_what_concerns_it_as_text() -> None:
    settings = Settings(
        log="distant:one",
        clients={"sasl.password": Secret("abc"), "consumer.fetch.min.bytes": 1, "enable.metrics.push": False},
        processing_guarantee="at_least_once",
        task_timeout="2s",
        replication_factor=3,
    )
    log = open_log(settings)
    assert isinstance(log, Distant)
    assert log.settings == {
        "sasl.password": "abc",
        "consumer.fetch.min.bytes": "1",
        "enable.metrics.push": "false",
        "processing.guarantee": "at_least_once",
        "task.timeout.ms": "2000",
        "replication.factor": "3",
    }
    assert all(type(value) is str for value in log.settings.values())


def test_a_changelog_of_neither_type_is_refused_when_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    component = Component("changelog", "wrong", lambda *where: "a history", "test", "test", "1")
    monkeypatch.setitem(registry().components, ("changelog", "wrong"), component)
    with pytest.raises(PluginError, match=r"changelog 'wrong' opened 'a history', expected a penstock\.DeltaChangelog"):
        open_deltas(Settings(changelog="wrong:x"), "app", "0_0")


@pytest.mark.parametrize("kind", [ConfigError, LogError, OSError, KeyError])
def test_an_error_of_a_log_that_shows_a_secret_is_shown_without_it(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(location: str, settings: Mapping[str, str]) -> Log:
        raise kind(f"no such user in {settings}")

    monkeypatch.setitem(
        registry().components, ("log", "broken"), Component("log", "broken", broken, "test", "test", "1")
    )
    with pytest.raises(kind if issubclass(kind, PenstockError) else LogError, match="no such user") as caught:
        open_log(Settings(log="broken:x", clients={"sasl.password": "canary-9", "acks": "all"}))
    shown = "".join(traceback.format_exception(caught.value))
    assert "canary-9" not in shown.replace('"canary-9"', "")  # this test's own line is in the traceback
    assert "'acks': 'all'" in str(caught.value)


def test_local_state_may_be_in_a_directory_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DISK", str(tmp_path))
    assert state_directory(Settings(state_dir="${DISK}/state")) == tmp_path / "state"
    assert state_directory(Settings(data_dir="/d", state_dir="state-${DISK}x")).parts[:2] == ("/", "d")
    assert state_directory(Settings(data_dir="/d", state_dir="$DISK")).name == "$DISK", "only ${NAME} is a variable"
    with pytest.raises(ConfigError, match="'NO_DISK'; set it on each machine .*spark.executorEnv.NO_DISK"):
        state_directory(Settings(state_dir="${NO_DISK}/state"))


def test_places_of_an_application(tmp_path: Path) -> None:
    """Copies that main has made are found: the directories keep their names."""
    places, root = Places(Settings(state_dir=str(tmp_path)), "app"), tmp_path / "app"
    assert (places.task("0_1"), places.globals) == (root / "0_1", root / "global")
    assert (places.replica("s", "0_1"), places.backup("0_1")) == (
        root / "replicas" / "s" / "0_1",
        root / "replicas" / ".all" / "0_1",
    )
    assert places.resharding == tmp_path / "app@resharding"


def test_nothing_has_the_place_of_an_application() -> None:
    """What an application keeps beside its own directory, or its own notes, has the name of no application."""
    places = Places(Settings(), "app")
    beside = {path.name for path in (places.resharding, places.cluster)}
    beside |= {f"app{note.suffix}" for note in vars(notes).values() if isinstance(note, notes.Note) and note.suffix}
    assert len(beside) == 3
    for name in beside:
        with pytest.raises(ConfigError, match="application id"):
            Application(name, Topology().add_source("orders", "orders"))


def test_the_newest_directory_is_the_live_one(tmp_path: Path) -> None:
    assert live_directory(tmp_path / "lmdb") is None
    for name in ("9", "10", "x", "8"):
        (tmp_path / "lmdb" / name).mkdir(parents=True)
    assert live_directory(tmp_path / "lmdb") == tmp_path / "lmdb" / "10"
