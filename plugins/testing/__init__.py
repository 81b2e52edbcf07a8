"""Tests without Spark: the test driver, a mock context, and contract suites for plugin authors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.hooks import PluginManager, plugins_in_use, read_plugins
from penstock.plugins.sinks.memory import MemorySink
from penstock.support.packages import DISTRIBUTION

from .driver import TopologyTestDriver
from .mock_context import CapturedForward, CapturedPunctuator, MockProcessorContext
from .topics import InputTopic, OutputTopic

__all__ = [
    "CapturedForward",
    "CapturedPunctuator",
    "InputTopic",
    "MemorySink",
    "MockProcessorContext",
    "OutputTopic",
    "TopologyTestDriver",
    "own_plugins",
]


@contextmanager
def own_plugins(*plugins: object) -> Iterator[PluginManager]:
    """Look up penstock's plugins and `plugins`, and no other package's, until the end of the block.

    Each of `plugins` is registered as by `PluginManager.register`, which also says what it raises, without a name. It
    holds for all threads of the process; processes that are started get `plugins` with an application.
    """
    found = read_plugins(only=DISTRIBUTION)
    for plugin in plugins:
        found.manager.register(plugin)
    with plugins_in_use(found):
        yield found.manager
