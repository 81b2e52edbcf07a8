"""FencedCatalog: lets one write commit only if the table's position is the one that the write follows.

Imported only where pyiceberg is there.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from penstock import SinkError, SinkMovedError, SinkPlace, SinkPosition
from penstock.support.packages import needed

from .library import SINK

with needed(SINK, "iceberg"):
    import pyiceberg
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, AssertTableUUID, SetPropertiesUpdate

_MAIN = "main"
_RETRIES = {
    "commit.retry.num-retries": "40",
    "commit.retry.min-wait-ms": "20",
    "commit.retry.max-wait-ms": "200",
    "commit.retry.total-timeout-ms": "60000",
}
"""How often pyiceberg commits the files of one write anew while others commit. The table's own properties stay."""


def property_of(place: SinkPlace) -> str:
    """Return the name of the table property that has the position of a place."""
    parts = (place.application_id, place.sink, place.topic, str(place.partition))
    return "penstock.position/" + "/".join(quote(part, safe="") for part in parts)


def position_in(properties: Any, name: str) -> SinkPosition | None:
    """Return the position in a table's properties. Raises SinkError for text that is none."""
    text = properties.get(name)
    if text is None:
        return None
    try:
        value = json.loads(text)
        return SinkPosition(value["topic_id"], int(value["next_offset"]))
    except (ValueError, TypeError, KeyError):
        raise SinkError(f"its property {name!r} is no position: {text!r}") from None


def text_of(position: SinkPosition) -> str:
    """Return the text of a position in a property."""
    return json.dumps({"topic_id": position.topic_id, "next_offset": position.next_offset})


class FencedCatalog(NoopCatalog):
    """A catalog for one write to one table. It can load the table and commit one snapshot, and nothing else.

    Each commit moves the branch "main" and the position together. So each commit carries the requirement that "main" is
    as it was in the metadata in which the position was read: a catalog refuses it if any other writer has come
    between. pyiceberg then loads the table here, with a new check of the position, and commits the same data files on
    top of the new snapshot. A version of pyiceberg that would commit in any other way is refused, not trusted.
    """

    def __init__(
        self, catalog: Any, uuid: Any, property_name: str, follows: SinkPosition | None, ends: SinkPosition
    ) -> None:
        super().__init__(catalog.name)
        self._catalog = catalog
        self._uuid = uuid
        self._property = property_name
        self._follows = follows
        self._ends = ends
        self._head: int | None = None
        self._snapshot_id: int | None = None

    def load_table(self, identifier: Any) -> Table:
        """Load the table. Raises SinkMovedError if its position is another, and SinkError if it is another table."""
        table = self._catalog.load_table(identifier)
        self._check(table.metadata)
        head = table.metadata.refs.get(_MAIN)
        self._head = None if head is None else head.snapshot_id
        properties = {**table.metadata.properties, **_RETRIES}
        return Table(
            identifier=table.name(),
            metadata=table.metadata.model_copy(update={"properties": properties}),
            metadata_location=table.metadata_location,
            io=table.io,
            catalog=self,
            config=table.config,
        )

    def _check(self, metadata: Any) -> None:
        if metadata.table_uuid != self._uuid:
            raise SinkError("the table was deleted and made again while the application was running: start it again")
        position = position_in(metadata.properties, self._property)
        if position != self._follows and not self._has_landed(metadata):
            raise SinkMovedError(f"its position is not {self._follows} any more, but {position}")

    def _has_landed(self, metadata: Any) -> bool:
        """Return whether a commit of this write is in the table, although an answer was lost that said so."""
        return self._snapshot_id is not None and metadata.snapshot_by_id(self._snapshot_id) is not None

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Commit, if nobody has since the position was read."""
        self._check_updates(updates)
        head = {"ref": _MAIN, "snapshot-id": self._head}
        own = [AssertTableUUID(uuid=self._uuid), AssertRefSnapshotId.model_validate(head)]
        others = [each for each in requirements if each not in own]
        try:
            return self._catalog.commit_table(table, (*own, *others), updates)  # type: ignore[no-any-return]
        except CommitFailedException:
            fresh = self._catalog.load_table(table.name())
            self._check(fresh.metadata)
            if not self._has_landed(fresh.metadata):
                raise
            return CommitTableResponse(metadata=fresh.metadata, **{"metadata-location": fresh.metadata_location})

    def _check_updates(self, updates: Any) -> None:
        """Raise SinkError for a commit that is not the position and one snapshot on top of the one that was checked."""
        added = [each.snapshot for each in updates if isinstance(each, AddSnapshotUpdate)]
        moved = [each.updates for each in updates if isinstance(each, SetPropertiesUpdate)]
        if (
            len(updates) != 3
            or [each.parent_snapshot_id for each in added] != [self._head]
            or moved != [{self._property: text_of(self._ends)}]
        ):
            raise SinkError(
                f"pyiceberg {pyiceberg.__version__} makes another commit than this sink expects, so nothing was "
                f"written: {', '.join(type(each).__name__ for each in updates)}; use the version that the sink was "
                "tested with, and report this"
            )
        self._snapshot_id = added[0].snapshot_id
