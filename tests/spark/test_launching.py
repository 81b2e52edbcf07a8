"""Where Spark's JVM starts from, and the archive of its classes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from penstock.plugins.engine.task.class_archive import archive_options
from penstock.plugins.operate.cli.group import penstock
from penstock.plugins.spark.sessions import check_java, class_archive, launch_home


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path / "cache"


@pytest.mark.spark
def test_a_session_takes_its_classes_from_the_archive(spark: Any) -> None:
    """That of this host, which `make test` has made; making one takes a minute."""
    said = CliRunner().invoke(penstock, ["warmup", "--if-missing"])
    archive = class_archive(check_java())
    assert archive is not None and said.exit_code == 0 and str(archive) in said.stderr
    jvm = psutil.Process(spark._jvm.java.lang.ProcessHandle.current().pid())
    if archive.stat().st_mtime > jvm.create_time():
        pytest.skip("this session started before there was an archive: the next run of the tests has it")
    # The JVM maps only an archive that fits its classes.
    assert str(archive) in {each.path for each in jvm.memory_maps()}


def test_an_archive_that_does_not_fit_is_passed_over_without_a_word(cache: Path) -> None:
    java = check_java()
    archive = class_archive(java)
    assert archive is not None
    archive.write_bytes(b"of another Java" * 1000)
    options = archive_options(archive)
    assert str(archive) in " ".join(options)
    done = subprocess.run([java, *options, "-version"], text=True, capture_output=True, check=False)
    assert done.returncode == 0 and done.stdout == ""
    assert str(archive) not in done.stderr and "shared" not in done.stderr


def test_a_pyspark_installed_again_in_its_place_has_no_archive_yet(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pyspark"
    for name in ("bin", "sbin", "jars"):
        (package / name).mkdir(parents=True)
    jar = package / "jars" / "spark.jar"
    jar.write_bytes(b"classes")
    os.utime(jar, ns=(10**18, 10**18))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin=str(package / "__init__.py")))
    java = check_java()
    before = class_archive(java)
    assert before is not None and before == class_archive(java)
    os.utime(jar, ns=(10**18 + 1, 10**18 + 1))
    after = class_archive(java)
    assert after is not None and after != before and after.parent == before.parent


def test_the_place_to_start_from_stays(cache: Path) -> None:
    home = launch_home()
    assert home is not None and home == launch_home() and home.is_relative_to(cache)
    assert sorted(each.name for each in home.iterdir()) == ["bin", "jars", "sbin"]
    assert all(each.is_dir() for each in home.iterdir())
    assert archive_options(class_archive(check_java())) == []


def test_a_link_to_what_is_gone_is_made_again(cache: Path, tmp_path: Path) -> None:
    home = launch_home()
    assert home is not None
    (home / "jars").unlink()
    (home / "jars").symlink_to(tmp_path / "gone")
    assert launch_home() == home and (home / "jars").is_dir()


def test_without_a_cache_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert launch_home() is None and archive_options(class_archive(check_java())) == []


def test_a_spark_of_the_users_own_is_left_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert launch_home() is None
    result = CliRunner().invoke(penstock, ["warmup"])
    assert result.exit_code != 0 and "unset SPARK_HOME" in result.output
