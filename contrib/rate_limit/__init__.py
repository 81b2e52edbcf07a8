"""Limits how many records of a key pass; imports the public door only."""

from collections.abc import Mapping

from penstock import hookimpl


@hookimpl
def penstock_processors() -> Mapping[str, str]:
    """Name the processor."""
    return {"contrib.rate_limit": "penstock.contrib.rate_limit.processor:RateLimit"}
