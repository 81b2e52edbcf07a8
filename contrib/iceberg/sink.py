"""IcebergSink: an Iceberg table as a program names it: where it is, and how records become rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock import ConfigError, Sink, SinkPlace, SinkWriter
from penstock.contrib.arrow.rows import Row, RowMaker, rows_of

from .library import SINK, OpenCatalog, load
from .table import check_table, open_table
from .types import row_schema, table_schema


class IcebergSink(Sink):
    """Adds each record once to a table of Apache Iceberg, in one commit with the position.

    `table`: "NAMESPACE.TABLE". `catalog`: a name of pyiceberg's, and `catalog_options`: its options; what they leave
    out comes from ~/.pyiceberg.yaml and variables of the environment (PYICEBERG_CATALOG__NAME__URI ...), where secrets
    should be.

    `schema`: a schema of pyarrow, or `columns`: types by name, such as {"id": "int64 not null", "price": "decimal(10,
    2)", "at": "timestamp"}, which is timestamp[us, tz=UTC]. By these the table is made if it is missing, and checked
    otherwise. A record's value is a mapping or a dataclass with these columns, or the value of the only one. `row`, a
    function of the SinkRecord, makes such a mapping of another value. `key`: the columns of the record's key, one name
    or several; `timestamp`: the column of the record's timestamp. A column that a value lacks is null.

    `partition_by`: columns and transforms, {"at": "day", "country": "identity"}; also "year", "month", "hour",
    "bucket[16]" and "truncate[4]". `properties`: properties of a table that is made.

    Raises ConfigError for options that do not fit, and MissingPackageError without pyiceberg.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        catalog_options: Mapping[str, Any] | None = None,
        schema: Any = None,
        columns: Mapping[str, Any] | None = None,
        key: str | Sequence[str] = (),
        row: Row | None = None,
        timestamp: str | None = None,
        partition_by: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        load()
        parts = table.split(".") if isinstance(table, str) else []
        if len(parts) < 2 or not all(parts):
            raise ConfigError(f"{SINK}: table: expected NAMESPACE.TABLE, found {table!r}")
        if not isinstance(catalog, str) or not catalog:
            raise ConfigError(f"{SINK}: catalog: expected the name of a catalog, found {type(catalog).__name__}")
        self.table = tuple(parts)
        self._catalog = catalog
        self._options = dict(catalog_options or {})
        made = rows_of(str(self), schema=schema, columns=columns, key=key, row=row, timestamp=timestamp)
        self._schema = table_schema(str(self), made.schema)
        self._rows = replace(made, schema=row_schema(self._schema))
        self._partition_by = self._transforms(partition_by or {})
        self._properties = dict(properties or {})

    def _transforms(self, partition_by: Mapping[str, str]) -> dict[str, str]:
        transforms = load().transforms
        if not isinstance(partition_by, Mapping):
            raise ConfigError(f"{self}: partition_by: expected transforms by column, found {partition_by!r}")
        for name, text in partition_by.items():
            if name not in self._schema.names:
                raise ConfigError(f"{self}: partition_by: there is no column {name!r}")
            try:
                made = transforms.parse_transform(text)
            except Exception:
                made = None
            if made is None or isinstance(made, (transforms.UnknownTransform, transforms.VoidTransform)):
                raise ConfigError(
                    f"{self}: partition_by: expected 'identity', 'year', 'month', 'day', 'hour', 'bucket[N]' or "
                    f"'truncate[N]', found {name!r}: {text!r}"
                )
        return dict(partition_by)

    def __str__(self) -> str:
        return f"Iceberg table {'.'.join(self.table)!r} in the catalog {self._catalog!r}"

    def __repr__(self) -> str:
        return f"<{self}>"  # without the options of the catalog, which may have secrets

    def open(self, place: SinkPlace) -> SinkWriter:
        from .writer import IcebergWriter  # it subclasses a class of pyiceberg

        schema, partition_by = self._schema, self._partition_by
        catalog = OpenCatalog(self._catalog, self._options, ".".join(self.table))
        try:
            table = open_table(catalog, self.table, schema, partition_by, self._properties)
            maker = RowMaker(self._rows)
            writer = IcebergWriter(catalog, table, maker, place, lambda each: check_table(each, schema, partition_by))
        except BaseException:
            catalog.close()
            raise
        catalog.used()
        return writer
