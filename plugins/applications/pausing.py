"""Paused: which sub-topologies of an application process no records for now, as a note in its log."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from penstock import Application, ConfigError, Log

_META = "paused"


@dataclass(frozen=True)
class Paused:
    """The paused sub-topologies, by number; None: all, also those that a later program adds."""

    subtopologies: frozenset[int] | None = frozenset()

    def of(self, application: Application) -> frozenset[int]:
        """Return the numbers of the paused sub-topologies of an application."""
        every = _numbers(application)
        return every if self.subtopologies is None else self.subtopologies & every


def read_paused(application_id: str, log: Log) -> Paused:
    """Return what is paused; nothing if there is no note."""
    saved = log.get_meta(application_id, _META)
    numbers = [] if saved is None else json.loads(saved)["subtopologies"]
    return Paused(None if numbers is None else frozenset(numbers))


def pause(application: Application, log: Log, subtopologies: Collection[int] = ()) -> Paused:
    """Pause some sub-topologies more, or all without a number; return what is paused now.

    Its run reads the note within some seconds, and so does each later run. Raises ConfigError for a number that the
    program does not have.
    """
    _check(application, subtopologies)
    before = read_paused(application.id, log).subtopologies
    more = None if not subtopologies or before is None else before | frozenset(subtopologies)
    return _write(application, log, more)


def resume(application: Application, log: Log, subtopologies: Collection[int] = ()) -> Paused:
    """Resume some sub-topologies, or all without a number; return what is paused now. Raises as `pause`."""
    _check(application, subtopologies)
    before = read_paused(application.id, log).of(application)
    return _write(application, log, before - frozenset(subtopologies) if subtopologies else frozenset())


def _write(application: Application, log: Log, subtopologies: frozenset[int] | None) -> Paused:
    numbers = None if subtopologies is None else sorted(subtopologies)
    log.put_meta(application.id, _META, json.dumps({"subtopologies": numbers}).encode())
    return Paused(subtopologies)


def _check(application: Application, subtopologies: Collection[int]) -> None:
    every = _numbers(application)
    for number in subtopologies:
        if number not in every:
            raise ConfigError(
                f"application {application.id!r} has no sub-topology {number}; it has "
                f"{', '.join(map(str, sorted(every)))} (`penstock describe` shows them)"
            )


def _numbers(application: Application) -> frozenset[int]:
    return frozenset(each.id for each in application.program.subtopologies)
