"""Two operators at the same time: neither loses what the other one asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import Application, Processor, Record, Topology, key_value_store, visitor
from penstock.plugins.engine.program.pausing import pause, read_paused, resume
from penstock.plugins.engine.program.visits import ask_for_visit, asked_visits, stop_visits
from penstock.plugins.logs.memory import MemoryLog


class Keep(Processor):
    def process(self, record: Record) -> None: ...

    @visitor()
    def check(self, key: str, value: str) -> None: ...

    @visitor()
    def repair(self, key: str, value: str, argument: Any) -> None: ...


class Overtaken(MemoryLog):
    """A log in which another operator acts, once, after one has read a note and before that one writes it."""

    meanwhile: Callable[[], object] | None = None

    def _act(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        self._act()
        super().put_meta(application_id, key, value)

    def change_meta(self, application_id: str, key: str, change: Callable[[bytes | None], bytes]) -> None:
        self._act()
        super().change_meta(application_id, key, change)


def made() -> tuple[Application, Overtaken]:
    topology = Topology()
    for name in ("a", "b", "c"):
        topology.add_source(f"in-{name}", name)
        topology.add_processor(name, Keep, f"in-{name}", stores=[key_value_store(f"{name}-kept")])
    log = Overtaken()
    for name in ("a", "b", "c"):
        log.create_topic(name, 1)
    return Application("shop", topology), log


def test_pauses() -> None:
    app, log = made()
    log.meanwhile = lambda: pause(app, log, [1])
    assert pause(app, log, [0]).subtopologies == frozenset({0, 1})
    log.meanwhile = lambda: resume(app, log, [0])
    assert pause(app, log, [2]).subtopologies == read_paused("shop", log).subtopologies == frozenset({1, 2})
    log.meanwhile = lambda: pause(app, log)
    assert resume(app, log, [1]).subtopologies == frozenset({0, 2})


def test_visits() -> None:
    app, log = made()
    log.meanwhile = lambda: ask_for_visit(app, log, "a.check", 7)
    ask_for_visit(app, log, "a.repair", 7, {"by": 2})
    first, second = asked_visits("shop", log)
    assert [each.visitor for each in (first, second)] == ["a.check", "a.repair"] and first.number < second.number
    log.meanwhile = lambda: ask_for_visit(app, log, "b.check", 7)
    assert stop_visits(app, log, "a.check") == 1
    assert [(each.visitor, each.is_stopped) for each in asked_visits("shop", log)] == [
        ("a.check", True),
        ("a.repair", False),
        ("b.check", False),
    ]
    log.meanwhile = lambda: stop_visits(app, log, "a.repair")
    ask_for_visit(app, log, "c.check", 7)
    assert {each.visitor for each in asked_visits("shop", log) if not each.is_stopped} == {"b.check", "c.check"}
