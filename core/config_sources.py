"""`layers`, under the path that the documentation names."""

from .settings.sources import layers

__all__ = ["layers"]
