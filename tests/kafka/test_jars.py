"""The jars of a broker are fetched once, whole, and by whoever is able to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import RuntimeUnavailableError
from penstock.plugins.testing.kafka import jars
from penstock.plugins.testing.kafka.jars import broker_jars, jars_directory
from tests.processes import Child

JAR = f"kafka_2.13-{jars.KAFKA_VERSION}.jar"
# It notes that it was called, and waits until all who want jars are there.
MAVEN = f"""#!/bin/sh
echo called >> "$NOTES/calls"
for each; do case "$each" in -DoutputDirectory=*) out=${{each#*=}};; esac; done
mkdir -p "$out"
while [ "$(ls "$NOTES"/wants-* 2>/dev/null | wc -l)" -lt "$WANTED" ]; do sleep 0.02; done
touch "$out/{JAR}"
exit $ANSWER
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a Maven that works without a network."""
    (tmp_path / "bin").mkdir()
    maven = tmp_path / "bin" / "mvn"
    maven.write_text(MAVEN)
    maven.chmod(0o755)
    for name, value in {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "NOTES": str(tmp_path),
        "WANTED": "0",
        "ANSWER": "0",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(jars.JARS_VARIABLE, raising=False)
    return tmp_path


def calls(cache: Path) -> int:
    return len((cache / "calls").read_text().splitlines())


def test_they_are_fetched_once_into_the_users_cache(cache: Path) -> None:
    expected = cache / "cache" / "penstock" / f"kafka-{jars.KAFKA_VERSION}"
    assert broker_jars() == broker_jars() == expected
    assert [file.name for file in expected.iterdir()] == [JAR]
    assert calls(cache) == 1


def test_the_directory_can_be_chosen(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.JARS_VARIABLE, str(cache / "mine"))
    (cache / "mine").mkdir()
    assert broker_jars() == cache / "mine"
    assert (cache / "mine" / JAR).exists()


def test_a_directory_of_something_else_is_left_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.JARS_VARIABLE, str(cache / "bin"))
    with pytest.raises(RuntimeUnavailableError, match=f"{JAR} is not among them: remove the directory, or set"):
        broker_jars()
    assert [file.name for file in (cache / "bin").iterdir()] == ["mvn"]


def test_several_processes_want_them_at_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANTED", "3")
    program = f"""if True:
        import pathlib, sys
        from penstock.plugins.testing.kafka.jars import broker_jars
        pathlib.Path({str(cache)!r}, "wants-" + sys.argv[1]).touch()
        print((broker_jars() / {JAR!r}).exists())
    """
    processes = [Child("-c", program, number) for number in range(3)]
    assert [process.communicate(timeout=240)[0] for process in processes] == ["True\n"] * 3
    assert calls(cache) == 1


def test_what_failed_leaves_nothing_and_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWER", "1")
    monkeypatch.setattr(jars, "_ivy", lambda: None)
    with pytest.raises(RuntimeUnavailableError, match=f"(?s)mirror.*set {jars.JARS_VARIABLE}.*Maven:"):
        broker_jars()
    assert [file.name for file in jars_directory().parent.iterdir()] == [jars_directory().name + ".lock"]


def test_ivy_is_asked_when_there_is_no_maven(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "bin" / "mvn").unlink()
    (cache / "bin" / "java").write_text('#!/bin/sh\necho "asked: $*"\nexit 1\n')
    (cache / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(cache / "bin") + ":/bin")
    monkeypatch.setattr("shutil.which", lambda name: None if name == "mvn" else str(cache / "bin" / "java"))
    with pytest.raises(RuntimeUnavailableError, match=r"(?s)Ivy:\nasked: -jar \S+pyspark/jars/ivy-\S+.jar .*pom.xml"):
        broker_jars()


@pytest.mark.parametrize(("home", "said"), [("", "no `java` on PATH"), ("/nowhere", "JAVA_HOME is '/nowhere'")])
def test_without_java(home: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", home)
    with pytest.raises(RuntimeUnavailableError, match=f"a Kafka broker needs Java, and .*{said}.*; install"):
        jars.java()
