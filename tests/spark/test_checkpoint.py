"""Which checkpoint directory is used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigError, IncompatibleStateError, Settings
from penstock.plugins.engine.program.checkpoint_files import delete_checkpoint, has_checkpoint
from penstock.plugins.spark.query import QueryCheckpoint, delete_with_spark


def checkpoint(
    directory: Path,
    identity: str = "life",
    parallelism: int = 2,
    spark: str = "4.3.0",
    checkpoint_dir: str = "checkpoint",
) -> QueryCheckpoint:
    made = Settings(data_dir=str(directory), checkpoint_dir=checkpoint_dir)
    return QueryCheckpoint(made, "app", identity, parallelism, spark, _delete_directory)


def _delete_directory(location: str) -> None:
    if "refuses" in location:
        raise PermissionError("no such right")
    shutil.rmtree(location.removeprefix("file://"))


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


def test_one_of_another_form_is_replaced_without_fuss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = checkpoint(tmp_path)
    [pointer] = tmp_path.rglob("current.json")
    fields = json.loads(pointer.read_text())
    pointer.write_text(json.dumps({**fields, "form": fields["form"] - 1}))
    Path(first.directory).mkdir(parents=True)
    other = checkpoint(tmp_path)
    assert other.is_new
    assert other.directory != first.directory
    assert not caplog.records


@pytest.mark.parametrize("scheme", ["", "file://", "FILE://"])
def test_one_that_is_replaced_is_deleted_wherever_it_is(tmp_path: Path, scheme: str) -> None:
    location = f"{scheme}{tmp_path}/elsewhere"
    first = checkpoint(tmp_path, checkpoint_dir=location)
    place = Path(first.directory.removeprefix("file://"))
    (place / "offsets").mkdir(parents=True)
    first.renew()
    assert not place.exists()
    second = Path(first.directory.removeprefix("file://"))
    (second / "offsets").mkdir(parents=True)
    made = Settings(data_dir=str(tmp_path), checkpoint_dir=location)
    assert delete_checkpoint(made, "app") is None
    assert not second.parent.exists()
    assert not has_checkpoint(made, "app")


def test_one_that_cannot_be_deleted_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = checkpoint(tmp_path, checkpoint_dir="other://refuses/here")
    stays = first.directory
    first.renew()
    assert (
        f"Spark's checkpoint in {stays} is not used any more, and cannot be deleted from here (no such right)"
        in caplog.text
    )
    remark = delete_checkpoint(Settings(data_dir=str(tmp_path), checkpoint_dir="other://refuses/here"), "app")
    assert remark is not None
    assert remark.startswith(
        "Spark's checkpoint in other://refuses/here/app is not used any more, and cannot be deleted from here ("
    )


def test_that_of_another_log_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    with pytest.raises(IncompatibleStateError, match="made with another log"):
        checkpoint(tmp_path, identity="another life")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("in the way")
    with pytest.raises(ConfigError, match=r"checkpoint directory .*checkpoint/app: .*set `checkpoint_dir`"):
        checkpoint(tmp_path)


@pytest.mark.spark
def test_spark_deletes_what_its_file_systems_reach(tmp_path: Path, spark: Any) -> None:
    (tmp_path / "old" / "offsets").mkdir(parents=True)
    delete_with_spark(spark, f"file://{tmp_path}/old")
    delete_with_spark(spark, f"file://{tmp_path}/old")
    assert not (tmp_path / "old").exists()
