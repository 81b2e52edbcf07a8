"""A store backend on SQLite, which comes with Python; imports the public door only."""

from collections.abc import Mapping

from penstock import hookimpl


@hookimpl
def penstock_store_backends() -> Mapping[str, str]:
    """Name the store backend."""
    return {"contrib.sqlite": "penstock.contrib.sqlite.backend:SqliteBackend"}
