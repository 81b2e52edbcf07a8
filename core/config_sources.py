"""`penstock.config_sources.layers`, the import that the documentation shows: re-exports `settings.sources.layers`."""

from .settings.sources import layers

__all__ = ["layers"]
