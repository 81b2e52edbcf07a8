"""Companions: what a run has beside its tasks, from any package: when they begin and end, and what they may answer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, ConfigError, run
from penstock.hooks import Component, registry
from penstock.plugins.engine.program.run_status import StatusTopic
from penstock.plugins.engine.run.companion import Companion, OpenApplication

from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path) as made:
        made.create(**{"in": 1, "out": 1})
        made.put("in", [("k", "v", 1)] * 10)
        yield made


class Noting(Companion):
    """Notes what it is called with, in the order of the calls."""

    calls: list[str] = []

    @contextmanager
    def around(self) -> Iterator[None]:
        assert self.run.application.id == "app" and self.run.has_tasks_here
        self.calls.append("around")
        yield
        self.calls.append(f"closed after {sum(each.records_in for each in self.run.status().tasks)} records")

    @contextmanager
    def beside(self, running: OpenApplication) -> Iterator[None]:
        running.lease.renew()  # the application is open
        self.calls.append("beside")
        yield
        running.lease.renew()
        self.calls.append("left")

    @classmethod
    def queries(cls, application: Application) -> Any:
        return Answers()


class Answers:
    """Another package's way to read stores."""

    def store(self, name: str) -> str:
        return f"the store {name}"

    def close(self) -> None:
        Noting.calls.append("queries closed")


class Broken(Companion):
    @contextmanager
    def beside(self, running: OpenApplication) -> Iterator[None]:
        raise ConfigError("setting 'acme.port': it is in use")
        yield


def install(monkeypatch: pytest.MonkeyPatch, name: str, target: object) -> None:
    """Add a companion, as an installed package does."""
    component = Component("companion", name, target, "acme", "acme", "1.0")
    known = dict(registry().components)
    added = {("companion", name): component}
    monkeypatch.setattr(registry(), "components", known | added)
    Noting.calls = []


def test_they_begin_around_the_application_and_beside_its_tasks(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "acme.noting", Noting)
    run(surroundings.application("app", apps.count(), engine="embedded"))
    assert Noting.calls == ["around", "beside", "left", "closed after 10 records"]


def test_what_one_raises_ends_the_run_and_is_in_its_status(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "acme.broken", Broken)
    install(monkeypatch, "acme.noting", Noting)
    with pytest.raises(ConfigError, match="it is in use"):
        run(surroundings.application("app", apps.count(), engine="embedded"))
    assert Noting.calls == ["around"]
    status = StatusTopic(surroundings.log, "app").read()
    assert status is not None and status.error == "setting 'acme.port': it is in use"


class FailsAtTheEnd(Companion):
    @contextmanager
    def beside(self, running: OpenApplication) -> Iterator[None]:
        yield
        raise ConfigError("the audit is not written")


def test_what_one_raises_at_the_end_is_in_the_status(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "acme.fails", FailsAtTheEnd)
    with pytest.raises(ConfigError, match="the audit is not written"):
        run(surroundings.application("app", apps.count(), engine="embedded"))
    status = StatusTopic(surroundings.log, "app").read()
    assert status is not None and status.error == "the audit is not written"


def test_one_that_cannot_be_loaded_is_left_out(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, "acme.lost", "acme_lost:Companion")
    install(monkeypatch, "acme.function", print)
    with caplog.at_level(logging.WARNING):
        run(surroundings.application("app", apps.count(), engine="embedded"))
    assert "companion 'acme.lost' of package acme 1.0 cannot be loaded from 'acme_lost:Companion'" in caplog.text
    assert "companion 'acme.function' of package acme 1.0 is left out: expected a class of Companion" in caplog.text


def test_one_of_another_package_answers_queries_before_ours(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "acme.noting", Noting)
    with surroundings.application("app", apps.count(), engine="embedded").start("0s") as running:
        assert running.store("counts") == "the store counts"
        wait_until(lambda: running.state == "running", "the tasks run")
    assert "queries closed" in Noting.calls


def test_without_one_that_answers_queries_it_is_said(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {key: each for key, each in registry().components.items() if key != ("companion", "queries")}
    monkeypatch.setattr(registry(), "components", known)
    with (
        surroundings.application("app", apps.count(), engine="embedded").start("0s") as running,
        pytest.raises(ConfigError, match="no installed companion answers queries"),
    ):
        running.store("counts")
