"""Which checkpoint directory is used; no Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import ConfigError, IncompatibleStateError, Settings
from penstock.plugins.spark.checkpoint import Checkpoint


def checkpoint(directory: Path, identity: str = "life", parallelism: int = 2, spark: str = "4.3.0") -> Checkpoint:
    return Checkpoint(Settings(data_dir=str(directory)), "app", identity, parallelism, spark)


def test_it_is_used_again_while_it_fits(tmp_path: Path) -> None:
    first = checkpoint(tmp_path)
    assert first.is_new
    again = checkpoint(tmp_path)
    assert not again.is_new
    assert again.directory == first.directory


@pytest.mark.parametrize("change", [{"parallelism": 3}, {"spark": "4.4.0"}])
def test_another_parallelism_or_spark_starts_a_new_one(tmp_path: Path, change: dict[str, object]) -> None:
    first = checkpoint(tmp_path)
    other = checkpoint(tmp_path, **change)  # type: ignore[arg-type]
    assert other.is_new
    assert other.directory != first.directory


def test_that_of_another_log_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    with pytest.raises(IncompatibleStateError, match="made with another log"):
        checkpoint(tmp_path, identity="another life")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("in the way")
    with pytest.raises(ConfigError, match=r"checkpoint directory .*checkpoint/app: .*set `checkpoint_dir`"):
        checkpoint(tmp_path)
