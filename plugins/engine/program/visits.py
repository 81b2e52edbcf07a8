"""Visits: requested visits of an application, as a note in its log, and the progress of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import (
    Application,
    ConfigError,
    IncompatibleStateError,
    Log,
    Processor,
    ProcessorNode,
    TaskId,
    TopicPartition,
)
from penstock.plugins.engine.task import notes
from penstock.processor import Visitor
from penstock.program.visited import check_visitors_of, visitor_name
from penstock.program.wrapping import innermost
from penstock.support.names import did_you_mean
from penstock.task.making import make_processor
from penstock.task.visits import Visit, VisitProgress, saved_visits

from .preparation import resolve

Tasks = Mapping[TaskId, Sequence[TopicPartition]]


@dataclass(frozen=True)
class VisitStatus:
    """How far a visit is: `done` of `tasks` tasks are over, and `visited` entries were visited in all."""

    visit: Visit
    tasks: int
    done: int
    visited: int

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left to do."""
        return self.visit.is_stopped or (self.done == self.tasks > 0)


def program_visitors(application: Application) -> dict[str, tuple[int, Visitor]]:
    """Return all visitors by their names, each with the number of its sub-topology; makes each processor once."""
    found = {}
    for subtopology in application.program.subtopologies:
        for node in subtopology.nodes:
            made = innermost(make_processor(node)) if isinstance(node, ProcessorNode) else None
            if isinstance(node, ProcessorNode) and isinstance(made, Processor):
                for name, each in check_visitors_of(node, type(made)).items():
                    found[visitor_name(node, name)] = subtopology.id, each
    return found


def asked_visits(application_id: str, log: Log) -> list[Visit]:
    """Return the visits that were asked for, the oldest first; none if there is no note."""
    visits: list[Visit] = notes.VISITS.read(application_id, log)
    return visits


def ask_for_visit(application: Application, log: Log, visitor: str, now_ms: int, argument: Any = None) -> Visit:
    """Ask for a visit by NODE.METHOD, or by METHOD where one node alone has it; return it.

    Runs read the note within seconds; visits that are over are dropped from it. `argument` is JSON data. Raises
    ConfigError for an unknown visitor, and for an argument that is wrong or missing.
    """
    known = program_visitors(application)
    name = _full_name(application, visitor, list(known))
    _, found = known[name]
    if argument is not None and not found.takes_argument:
        raise ConfigError(
            f"visitor {name!r} takes no argument: write its method with (self, key, value, argument) to get one"
        )
    if argument is None and found.needs_argument:
        raise ConfigError(
            f"visitor {name!r} takes an argument, and the visit has none: give one other than null (`penstock visit "
            f"MODULE:ATTR {name} --argument JSON`), or write `argument=DEFAULT` in its method"
        )
    try:
        json.dumps(argument, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"visitor {name!r}: its argument is no JSON data: {error}") from error
    over = _over(application, log)
    states = _states(application, log, resolve(application, log).tasks)
    newest = max((each.number for of_task in states.values() for each in of_task.values()), default=-1)
    visit = Visit(now_ms, name, argument)

    def add(asked: list[Visit]) -> list[Visit]:
        nonlocal visit
        visit = Visit(max(now_ms, newest + 1, *(each.number + 1 for each in asked)), name, argument)
        return [*(each for each in asked if each.number not in over), visit]

    notes.VISITS.change(application.id, log, add)
    return visit


def stop_visits(application: Application, log: Log, visitor: str) -> int:
    """Stop a visitor's visits that are not over, whose work stays; return how many. Raises as `ask_for_visit`."""
    asked = asked_visits(application.id, log)
    name = _full_name(application, visitor, [*program_visitors(application), *(each.visitor for each in asked)])
    over, stopped = _over(application, log), set[int]()

    def stop(asked: list[Visit]) -> list[Visit]:
        nonlocal stopped
        stopped = {each.number for each in asked if each.visitor == name and each.number not in over}
        return [each._replace(is_stopped=each.is_stopped or each.number in stopped) for each in asked]

    notes.VISITS.change(application.id, log, stop)
    return len(stopped)


def visit_statuses(application: Application, log: Log, tasks: Tasks | None = None) -> list[VisitStatus]:
    """Return the progress of each visit in the note, by the last commits of `tasks`; None: the present tasks."""
    asked = asked_visits(application.id, log)
    if not asked:
        return []
    known = program_visitors(application)
    states = _states(application, log, resolve(application, log).tasks if tasks is None else tasks)
    found = []
    for visit in asked:
        part = known[visit.visitor][0] if visit.visitor in known else None
        of_tasks = [states[task].get(visit.visitor) for task in states if task.subtopology == part]
        done = sum(each is not None and _is_over(each, visit) for each in of_tasks)
        visited = sum(each.visited for each in of_tasks if each is not None and each.number == visit.number)
        found.append(VisitStatus(visit, len(of_tasks), done, visited))
    return found


def check_no_visits(application: Application, log: Log, tasks: Tasks) -> None:
    """Raise IncompatibleStateError while a visit is not over in all tasks: other tasks could not continue it."""
    left = [status.visit.visitor for status in visit_statuses(application, log, tasks) if not status.is_over]
    if left:
        raise IncompatibleStateError(
            f"application {application.id!r}: a visit of {left[0]} is not over, and tasks of another number of "
            "partitions could not continue it: let it end, or stop it with `penstock visit MODULE:ATTR "
            f"{left[0]} --stop`"
        )


def _over(application: Application, log: Log) -> set[int]:
    """Return the numbers of the visits that are over, for ever."""
    return {status.visit.number for status in visit_statuses(application, log) if status.is_over}


def _is_over(state: VisitProgress, visit: Visit) -> bool:
    return state.number > visit.number or (state.number == visit.number and state.at is None)


def _states(application: Application, log: Log, tasks: Tasks) -> Mapping[TaskId, Mapping[str, VisitProgress]]:
    found = {}
    for task, partitions in tasks.items():
        commit = log.last_commit(application.id, str(task), partitions)
        found[task] = saved_visits(b"" if commit is None else commit.engine_state)
    return found


def _full_name(application: Application, given: str, known: Sequence[str]) -> str:
    if given in known:
        return given
    found = sorted({each for each in known if each.endswith(f".{given}")})
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"several nodes have a visitor {given!r}: name one of {', '.join(found)}")
    advice = did_you_mean(given, known) or f"it has: {', '.join(sorted(known)) or 'none'}"
    raise ConfigError(
        f"application {application.id!r} has no visitor {given!r}; {advice}. A visitor is a method of a processor that "
        "is marked with @visitor(STORE)"
    )
