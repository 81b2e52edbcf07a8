"""What the memory backend does beyond the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import StoreError
from penstock.hooks import registry
from penstock.stores.memory import MemoryBackend


def test_contents_stay_with_the_directory(tmp_path: Path) -> None:
    first = MemoryBackend(tmp_path / "a", ["s"])
    first.write({"s": [(b"k", b"1")]}, None, "v1")
    assert MemoryBackend(tmp_path / "b", ["s"]).version() is None
    first.close()
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert MemoryBackend(tmp_path / "link", ["s"]).get("s", b"k") == b"1"


def test_a_reader_sees_and_cannot_write(tmp_path: Path) -> None:
    backend = MemoryBackend(tmp_path, ["s"])
    reader = MemoryBackend(tmp_path, ["s"], read_only=True)
    backend.write({"s": [(b"k", b"1")]}, None, "v1")
    assert reader.get("s", b"k") == b"1"
    with pytest.raises(StoreError, match="read_only"):
        reader.write({}, "v1", "v2")


def test_an_ephemeral_backend_leaves_nothing() -> None:
    backend = MemoryBackend.ephemeral(["s"])
    backend.write({"s": [(b"k", b"1")]}, None, "v1")
    assert backend.get("s", b"k") == b"1"
    assert MemoryBackend.ephemeral(["s"]).version() is None
    backend.destroy()


def test_our_backends_are_plugins() -> None:
    assert {"memory", "lmdb"} <= set(registry().names("store backend"))
    assert registry().load("store backend", "memory") is MemoryBackend
