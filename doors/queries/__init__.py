"""What services import that read the stores of an application. The names are those of the plugin."""

from penstock.plugins.state.queries.copies import Bounds, TaskLag
from penstock.plugins.state.queries.queries import KeyMetadata, Queries
from penstock.plugins.state.queries.stores import Changes
from penstock.plugins.state.queries.subscription import ChangesEndedError

__all__ = ["Bounds", "Changes", "ChangesEndedError", "KeyMetadata", "Queries", "TaskLag"]
