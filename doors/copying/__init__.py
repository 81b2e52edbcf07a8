"""What programs import that copy files, tables or rows into a topic. The names are those of the plugin."""

from penstock.plugins.copying import *  # noqa: F403 (it has the list)
from penstock.plugins.copying import __all__ as __all__
