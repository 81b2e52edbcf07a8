"""The order of keys in stores: by their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.program.serdes import SerdeLike, resolve_serde


def bytes_of_keys(key_serde: SerdeLike, node: str) -> Callable[[Any], bytes]:
    """Return the function that makes a key's bytes, as the store of `node` does."""
    return resolve_serde(key_serde, None, f"node {node!r}: key_serde").serialize
