"""`penstock stores bench`: a row for every installed backend, as a table, as markdown and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from penstock.hooks import registry
from penstock.plugins.operate.cli.stores import stores
from penstock.plugins.testing.backend_speed import measure

INSTALLED = registry().names("store backend")


def test_a_row_for_every_installed_backend(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    result = CliRunner().invoke(
        stores, ["bench", "--entries", "300", "--format", "markdown", "--json", str(file)], catch_exceptions=False
    )
    assert {"memory", "lmdb", "contrib.rocksdb", "contrib.sqlite"} <= set(INSTALLED)
    lines = result.stdout.splitlines()
    assert lines[0] == "| backend | get/s | put/s | commit ms | range/s | restore/s | disk MB | memory MB |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {name}" for name in INSTALLED]
    for row in json.loads(file.read_text()):
        assert row["error"] is None
        assert min(row["get"], row["put"], row["commit_ms"], row["range"], row["restore"]) > 0
        assert (row["disk_bytes"] > 0) == (row["backend"] != "memory")


def test_a_backend_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    speed = measure("contrib.sqlite", 10, 10, tmp_path / "file")
    assert speed.error is not None and str(tmp_path / "file") in speed.error
