"""The contract of engines finds each of these planted bugs, and none in the embedded engine."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import pytest

from penstock import Application
from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.plugins.engine.run.embedded import EmbeddedEngine
from penstock.plugins.engine.run.engine import Engine
from penstock.plugins.engine.run.order import RunOrder
from penstock.plugins.engine.run.progress import RunSummary

from ..waiting import wait_until
from .engine_contract import EngineContract


class TestEmbedded(EngineContract):
    engine = EmbeddedEngine


class Planted(EmbeddedEngine):
    at_end = threading.Event()
    """Ends runs that do not see their stop."""

    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        return super().run(*self.changed(application, order), **options)

    def changed(self, application: Application, order: RunOrder) -> tuple[Application, RunOrder]:
        return application, order


class NeverStops(Planted):
    """A stop counts only before the start."""

    def changed(self, application: Application, order: RunOrder) -> tuple[Application, RunOrder]:
        is_set = order.stop is not None and order.stop.is_set()
        return application, order if is_set else replace(order, stop=self.at_end)


class LooksForAStopLater(Planted):
    """A stop before the start is not seen."""

    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        if order.stop is not None and order.stop.is_set():
            order = replace(order, stop=self.at_end)
        return super().run(application, order, **options)


class SaysNothingOfItsStart(Planted):
    def changed(self, application: Application, order: RunOrder) -> tuple[Application, RunOrder]:
        return application, replace(order, on_start=None)


class SaysThatItStartedAtTheEnd(Planted):
    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        summary = super().run(application, replace(order, on_start=None), **options)
        order.note_start()
        return summary


class StartsTwice(Planted):
    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        order.note_start()
        return super().run(application, order, **options)


class SaysNothingOfItsProgress(Planted):
    def changed(self, application: Application, order: RunOrder) -> tuple[Application, RunOrder]:
        return application, replace(order, on_progress=None)


class HasAClockOfItsOwn(Planted):
    def changed(self, application: Application, order: RunOrder) -> tuple[Application, RunOrder]:
        return application, replace(order, clock=SystemClock())


class SwallowsErrors(Planted):
    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        try:
            return super().run(application, order, **options)
        except PenstockError:
            return RunSummary(application.id)


class WrapsErrors(Planted):
    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        try:
            return super().run(application, order, **options)
        except PenstockError as error:
            raise RuntimeError(str(error)) from error


class BeginsAnewEachTime(Planted):
    """An application's id has to be the user's: positions and state hang on it."""

    number = 0

    def changed(self, application: Application, order: RunOrder) -> tuple[Application, RunOrder]:
        type(self).number += 1
        return Application(f"{application.id}-{self.number}", application.topology, **given(application)), order


class AtLeastOnceWithoutState(Planted):
    """State beside the user's: what a run counted is gone at the next one."""

    number = 0

    def changed(self, application: Application, order: RunOrder) -> tuple[Application, RunOrder]:
        type(self).number += 1
        return application.with_settings(changelog=f"memory:{self.number}", state_dir=f"state-{self.number}"), order


class CountsOutputsTwice(Planted):
    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        summary = super().run(application, order, **options)
        return replace(summary, records_out=2 * summary.records_out)


class ForgetsWhoStoppedIt(Planted):
    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        return replace(super().run(application, order, **options), stopped_by=None)


class SaysItWasStoppedWhereItCouldBe(Planted):
    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        summary = super().run(application, order, **options)
        return summary if order.stop is None else replace(summary, stopped_by="stop")


class TakesAnyOption(Planted):
    def check_options(self, application: Application, options: Any) -> None:
        pass


class WaitsForTheOther(Planted):
    """A second run of the application is not refused, but waits."""

    def changed(self, application: Application, order: RunOrder) -> tuple[Application, RunOrder]:
        return application, replace(order, waits=True)


class ReadsOnlyWhatIsThere(Planted):
    """Every trigger is available_now."""

    def run_with(self, application: Application, trigger: str, **order: Any) -> RunSummary:
        return super().run_with(application, "available_now", **order)

    def start(self, application: Application, trigger: str, **order: Any) -> Any:
        return super().start(application, "available_now", **order)


class EndsBeforeItIsDrained(Planted):
    def changed(self, application: Application, order: RunOrder) -> tuple[Application, RunOrder]:
        return application, replace(order, trigger=replace(order.trigger, drains_loops=False))


class LeavesThreads(Planted):
    """One of each run waits for ever."""

    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        threading.Thread(target=self.at_end.wait, daemon=True, name="penstock-run-left").start()
        return super().run(application, order, **options)


class LeavesDescriptors(Planted):
    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        LEFT.append(open(__file__))  # noqa: SIM115
        return super().run(application, order, **options)


LEFT: list[TextIO] = []


def given(application: Application) -> dict[str, Any]:
    return {str(name): value for name, value in application.given.values.items()}


PLANTED = {
    EndsBeforeItIsDrained: "a_run_until_it_is_drained",
    NeverStops: "a_run_goes_on_until_it_is_stopped",
    LooksForAStopLater: "a_stop_before_the_start",
    SaysNothingOfItsStart: "it_tells_of_its_start_and_progress",
    SaysThatItStartedAtTheEnd: "it_tells_of_its_start_and_progress",
    StartsTwice: "it_tells_of_its_start_and_progress",
    SaysNothingOfItsProgress: "it_tells_of_its_start_and_progress",
    HasAClockOfItsOwn: "the_clock_is_the_order_s",
    SwallowsErrors: "a_record_that_fails_ends_the_run",
    WrapsErrors: "a_record_that_fails_ends_the_run",
    BeginsAnewEachTime: "each_record_once_and_on_from_there",
    AtLeastOnceWithoutState: "each_record_once_and_on_from_there",
    CountsOutputsTwice: "each_record_once_and_on_from_there",
    ForgetsWhoStoppedIt: "a_run_goes_on_until_it_is_stopped",
    SaysItWasStoppedWhereItCouldBe: "each_record_once_and_on_from_there",
    TakesAnyOption: "bad_input_is_refused_before_anything_is_done",
    WaitsForTheOther: "one_run_of_an_application_at_a_time",
    LeavesThreads: "each_record_once_and_on_from_there",
    LeavesDescriptors: "each_record_once_and_on_from_there",
    ReadsOnlyWhatIsThere: "a_run_goes_on_until_it_is_stopped",
}
"""Each planted bug, and the rule that it breaks."""


@pytest.mark.parametrize(("engine", "rule"), PLANTED.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_planted_bugs_are_found(engine: type[Engine], rule: str, tmp_path: Path) -> None:
    suite = type("Suite", (EngineContract,), {"engine": engine, "seconds": 2.0, "triggers": ("0s",)})()
    Planted.at_end.clear()
    try:
        with pytest.raises((Exception, pytest.fail.Exception)):
            getattr(suite, f"test_{rule}")(tmp_path)
    finally:
        Planted.at_end.set()
        while LEFT:
            LEFT.pop().close()
        wait_until(lambda: not any(each.name.startswith("penstock-run") for each in threading.enumerate()))
