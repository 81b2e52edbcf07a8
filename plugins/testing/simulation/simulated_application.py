"""A program as an application of a simulation, and its topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from penstock import Application, ConfigError, Topology, TopologyBuilder

from ..topic_reader import named_topics
from .disk import CHANGELOG


def simulated(
    program: Topology | TopologyBuilder | Application, settings: Mapping[str, Any], directory: Path
) -> Application:
    """Return the application of a program on a simulated log; `settings` override its own."""
    given = {"store_backend": "memory", "commit_interval": "0ms", "changelog": "topic:", **settings}
    if given["changelog"] == "memory:":
        given["changelog"] = f"memory:{directory}"
    elif given["changelog"].startswith("directory:") and "://" not in given["changelog"]:
        given["changelog"] = given["changelog"].replace(":", f":{CHANGELOG}", 1)
    given |= {"log": "memory:", "data_dir": str(directory)}
    if isinstance(program, Application):
        return program.with_settings(**given)
    return Application("simulated", program, **given)


def check_options(mode: str, hosts: int, partitions: int) -> None:
    """Raise ConfigError for an option of a simulation that is none."""
    if mode not in ("batches", "continuous"):
        raise ConfigError(f'mode of a simulation: expected "batches" or "continuous", found {mode!r}')
    for what, number in (("hosts", hosts), ("partitions", partitions)):
        if type(number) is not int or number < 1:
            raise ConfigError(f"{what} of a simulation: expected a number from 1 on, found {number!r}")


def outside_topics(application: Application, given: Collection[str]) -> list[str]:
    """Return the topics of a program that are not its own, with those that are `given`.

    Raises ConfigError if functions or patterns choose some, and none are given.
    """
    named = named_topics(application)
    if named is None and not given:
        raise ConfigError(
            "a simulation needs the names of all topics; here a function or pattern chooses some: give them in `topics`"
        )
    named = tuple(dict.fromkeys([*(named or application.program.sink_topics()), *given]))
    internal = application.program.internal_topics
    return [topic for topic in named if topic not in internal and not topic.startswith(f"{application.id}-")]
