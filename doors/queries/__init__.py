"""What services import that read the stores of an application. The names are those of `penstock.plugins.queries`."""

from penstock.plugins.queries.changes import Changes
from penstock.plugins.queries.copies import Bounds, TaskLag
from penstock.plugins.queries.queries import KeyMetadata, Queries
from penstock.plugins.queries.subscription import ChangesEndedError

__all__ = ["Bounds", "Changes", "ChangesEndedError", "KeyMetadata", "Queries", "TaskLag"]
