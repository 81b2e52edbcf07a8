"""What programs of the DSL import: streams, tables, windows and aggregations. It is `penstock.plugins.dsl`."""

from penstock.plugins.dsl import *  # noqa: F403
from penstock.plugins.dsl import __all__ as __all__
