"""Tests without Spark: the test driver, a mock context, and contract suites for plugin authors."""

from .driver import TopologyTestDriver
from .mock_context import CapturedForward, CapturedPunctuator, MockProcessorContext
from .plugins import own_plugins
from .topics import InputTopic, OutputTopic

__all__ = [
    "CapturedForward",
    "CapturedPunctuator",
    "InputTopic",
    "MockProcessorContext",
    "OutputTopic",
    "TopologyTestDriver",
    "own_plugins",
]
