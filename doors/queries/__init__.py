"""What services import that read the stores of an application. The names are those of `penstock.plugins.queries`."""

from penstock.plugins.queries.copies import Bounds, TaskLag
from penstock.plugins.queries.queries import KeyMetadata, Queries

__all__ = ["Bounds", "KeyMetadata", "Queries", "TaskLag"]
