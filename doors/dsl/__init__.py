"""What programs of the DSL import: streams, tables, windows and aggregations. It is `penstock.plugins.dsl`."""

from typing import Any

from penstock.plugins.dsl import *  # noqa: F403
from penstock.plugins.dsl import __all__ as __all__
from penstock.plugins.dsl.missing_verbs import name_of_kafka


def __getattr__(name: str) -> Any:
    return name_of_kafka(__name__, name)
