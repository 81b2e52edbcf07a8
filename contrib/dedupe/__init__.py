"""Drops records whose id was seen before; imports the public door only."""

from collections.abc import Mapping

from penstock import hookimpl


@hookimpl
def penstock_processors() -> Mapping[str, str]:
    """Name the processor."""
    return {"contrib.dedupe": "penstock.contrib.dedupe.processor:Dedupe"}
