"""Catalogs for the tests of a process, tables of their own, and the rows that a table has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import EqualTo

from penstock.contrib.iceberg import iceberg

COLUMNS = {"name": "string", "value": "string"}


def options(directory: Path, uri: str | None = None) -> dict[str, str]:
    """Return the options of a SQL catalog in SQLite, or in the database of `uri`. Its files are in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    return {
        "type": "sql",
        # A process that writes makes others wait, as a lock of SQLite does by itself for 5 seconds.
        "uri": uri or f"sqlite:///{directory}/catalog.db?timeout=30",
        "warehouse": f"file://{directory}/warehouse",
    }


def open_catalog(directory: Path, uri: str | None = None) -> Catalog:
    """Return the catalog, with a namespace "shop"."""
    catalog = load_catalog("tests", **options(directory, uri))
    catalog.create_namespace_if_not_exists("shop")
    return catalog


def sink(directory: Path, table: str = "shop.orders", uri: str | None = None, **others: Any) -> Any:
    """Return a sink to a table of the catalog in a directory; the namespace is made."""
    open_catalog(directory, uri).close()
    given = {"columns": COLUMNS, "key": "name", **others}
    return iceberg(table, catalog="tests", catalog_options=options(directory, uri), **given)


def found(directory: Path, column: str, value: Any, table: str = "shop.orders") -> list[dict[str, Any]]:
    """Return the rows with a value in a column, as a reader with a filter finds them."""
    filtered: Any = EqualTo
    with open_catalog(directory) as catalog:
        rows: list[dict[str, Any]] = catalog.load_table(table).scan(filtered(column, value)).to_arrow().to_pylist()
        return rows


def rows_in(directory: Path, table: str = "shop.orders", uri: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table; none if it is not there."""
    with open_catalog(directory, uri) as catalog:
        if not catalog.table_exists(table):
            return []
        found: list[dict[str, Any]] = catalog.load_table(table).scan().to_arrow().to_pylist()
        return found


def counted(directory: Path, table: str = "shop.orders", uri: str | None = None) -> Counter[tuple[Any, ...]]:
    """Return how often a table has each row."""
    return Counter(tuple(row.values()) for row in rows_in(directory, table, uri))
