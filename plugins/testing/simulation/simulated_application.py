"""A program as an application of a simulation, and its topics."""

from __future__ import annotations

from collections.abc import Mapping
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


def outside_topics(application: Application) -> list[str]:
    """Return the topics of a program that are not its own. Raises ConfigError if functions or patterns choose some."""
    named = named_topics(application)
    if named is None:
        raise ConfigError("a simulation needs a program that names its topics; here a function or pattern chooses some")
    internal = application.program.internal_topics
    return [topic for topic in named if topic not in internal and not topic.startswith(f"{application.id}-")]
