"""What somebody at a terminal sees: one message that says what to do, an exit code, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock import skip
from penstock.plugins.operate.cli.group import penstock
from penstock.plugins.testing.contracts.child import answer, forked

from ..rotation import by_turns
from .test_places import read_only
from .world import NOBODY, ORDERS, Contents, MakeWorld, World, says

SHOP = """
from tests.bad_input.world import totals, Application

application = Application("shop", totals())
topology = totals()
number = 7
"""

Command = Callable[..., str]


@pytest.fixture
def shop(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """`world`, with the terminal in its directory."""
    go_to(world, monkeypatch)
    return world


def go_to(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the terminal in the directory of a world, with a module `shop` that runs it."""
    (world.directory / "shop.py").write_text(SHOP)
    monkeypatch.chdir(world.directory)
    monkeypatch.setattr(sys, "path", [str(world.directory), *sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    for name in ("PENSTOCK_LOG", "PENSTOCK_DATA_DIR", "PENSTOCK_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def run_here(*arguments: str, code: int, target: str = "shop:application") -> str:
    """Run `penstock run` in this process, on the log of the directory that it is in; return what it said."""
    result = CliRunner().invoke(penstock, ["run", target, "--data-dir", ".", *arguments])
    sys.modules.pop("shop", None)
    assert result.exit_code == code, f"{result.exit_code}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.output
    assert result.stdout == ""
    return result.stderr


def run_in_a_process(world: World, *arguments: str, code: int, **environment: str) -> str:
    """Run `penstock run` as somebody at a terminal does; return what it said on stderr."""
    root = str(Path(__file__).parents[2])
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "penstock.plugins.operate.cli",
            "run",
            "shop:application",
            "--data-dir",
            ".",
            *arguments,
        ],
        cwd=world.directory,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == code, f"{result.returncode}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stdout + result.stderr
    return result.stderr


# ---------------------------------------------------------------- before anything runs


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--set", "comit_interval=5s"], ["Error: --set comit_interval: unknown setting 'comit_interval'; did you " "mean 'commit_interval'"]),
        (["--set", "commit_interval=5"], ["Error: --set commit_interval: setting 'commit_interval': expected a " "timedelta or text like", "a bare number does not say its unit"]),
        (["--set", "commit_interval=5 minutes"], ["Error: --set commit_interval: setting 'commit_interval': ", "found '5 minutes'"]),
        (["--set", "store_backend=lmbd"], ["Error: --set store_backend: setting 'store_backend': no store backend " "named 'lmbd' is installed", "Did you mean 'lmdb'?"]),
        (["--log", "locl:log"], ["Error: --log: setting 'log': no log named 'locl' is " "installed", "Did you mean 'local'?"]),
        (["--set", "changelog=directry:c"], ["Error: --set changelog: setting 'changelog': no changelog named " "'directry' is installed", "Did you mean 'directory'?"]),
        (["--trigger", "5"], ["Error: --trigger '5': expected available_now, continuous, or a time like 10s"]),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("shop")
def test_a_wrong_setting(arguments: list[str], parts: list[str]) -> None:
    says(run_here(*arguments, code=2), *parts)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("shop:aplication", ["Error: module 'shop' has no attribute 'aplication'. Did you mean 'application'"]),
        ("shpo:application", ["Error: there is no module 'shpo' in ", "Did you mean 'shop'?"]),
        ("shop", ["Error: 'shop' names no attribute", "shop:application"]),
        ("shop:number", ["Error: shop:number is of type int; expected an Application"]),
        ("shop:topology", ["Error: shop:topology is a Topology, which has no id: add --application-id ID"]),
    ],
)
@pytest.mark.usefixtures("shop")
def test_a_wrong_target(target: str, parts: list[str]) -> None:
    says(run_here(target=target, code=2), *parts)


def test_a_topic_that_nobody_made(shop: World, undisturbed: Contents) -> None:
    with shop.open() as log:
        log.delete_topic("totals-by-customer")
    says(
        run_here(code=2),
        "Error: the log has no topic 'totals-by-customer' (sink 'totals-out'); create it (`penstock topics create`) "
        "or correct the name",
    )
    assert (
        CliRunner().invoke(penstock, ["topics", "create", "totals-by-customer", "-p", "2", "--data-dir", "."]).exit_code
        == 0
    )
    shop.run()
    assert shop.contents() == undisturbed


def test_saved_state_that_does_not_fit(shop: World) -> None:
    shop.run()
    with shop.open() as log:
        log.delete_topic("orders")
        log.create_topic("orders", 3)
    says(
        run_here(code=2),
        "Error: application 'shop' does not fit what it saved: sub-topology 0 had 2 tasks and now has 3 ('orders' had "
        "2 partitions and has 3)",
        "Undo the change, or run it under another application id, which starts afresh",
    )


# ---------------------------------------------------------------- Java


def fake_java(directory: Path, script: str) -> str:
    (directory / "jdk" / "bin").mkdir(parents=True)
    java = directory / "jdk" / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return str(directory / "jdk")


def test_java_that_is_missing(shop: World, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    message = run_in_a_process(shop, code=1, PATH=str(tmp_path / "empty"), JAVA_HOME="")
    says(
        message,
        "Error: Spark needs Java, and there is no `java` on PATH; install a Java runtime of version 17 or later",
    )
    says(message, "apt-get install openjdk-17-jre-headless", "put `java` on PATH or set JAVA_HOME")
    assert len(message.splitlines()) == 1
    message = run_in_a_process(shop, code=1, JAVA_HOME=str(tmp_path / "empty"))
    says(
        message,
        f"Error: JAVA_HOME is '{tmp_path / 'empty'}', and there is no bin/java in it; correct it, or install a Java "
        "runtime",
    )


@pytest.mark.parametrize(
    ("script", "parts"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", ["Spark needs Java 17 or later, and ", "bin/java is version 11; install a Java runtime"]),
        ("echo 'java version \"1.8.0_392\"' >&2", ["Spark needs Java 17 or later, and ", "bin/java is version 8; " "install a Java runtime"]),
        ("echo 'cannot map the heap' >&2; exit 1", ["bin/java -version` failed: cannot map the heap; install a Java " "runtime"]),
    ],
    ids=["11", "8", "broken"],
)  # fmt: skip
def test_java_that_is_too_old(
    shop: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, parts: list[str]
) -> None:
    assert shop
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, script))
    message = run_here(code=1)
    says(message, "Error: ", *parts)
    assert len(message.splitlines()) == 1


# ---------------------------------------------------------------- places


def test_a_log_that_is_read_only(shop: World, undisturbed: Contents) -> None:
    def child(connection: Connection) -> None:
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        connection.send(run_here(code=1))

    shop.give_away()
    with read_only(shop.log), forked(child) as connection:
        message = answer(connection)
    says(
        message,
        f"Error: local log {shop.log}: ",
        "Permission denied: make it writable for user ",
    )
    assert len(message.splitlines()) == 1
    shop.run()
    assert shop.contents() == undisturbed


# ---------------------------------------------------------------- on Spark


@by_turns(0, 2)
@pytest.mark.usefixtures("runs_here")
def test_what_fails_in_a_worker_is_one_message_and_nothing_is_lost(
    make_world: MakeWorld, undisturbed: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host without a copy of the state, a changelog with a file too few; then, with the file, a poison record."""
    world = make_world()
    go_to(world, monkeypatch)
    world.produce("orders", *((key, value, time) for time, (key, value) in enumerate(ORDERS[:3])))
    world.run()
    world.forget_state()
    world.produce("orders", ("ann", b"\xff", 3))
    world.produce("orders", *((key, value, time) for time, (key, value) in enumerate(ORDERS[3:], 3)))
    delta = sorted((world.changelog / "shop" / "0_0").glob("*.delta"))[0]
    aside = delta.rename(world.directory / delta.name)

    says(
        error(run_here("--quiet", code=1)),
        f"Error: application 'shop', task 0_0: changelog at {world.changelog}/shop/0_0: no way to version ",
        "the file with the delta of 0000000000",
        "Bring the file back from a backup",
    )

    aside.rename(delta)
    says(
        error(run_here("--quiet", code=1)),
        "Error: application 'shop', task 0_0, node 'orders', at topic 'orders' partition 0 offset 3: the value: "
        "serde 'str': b'\\xff' is not UTF-8",
        "Or set deserialization_handler (skip, DeadLetter(TOPIC), Retry())",
    )

    world.change(deserialization_handler=skip)
    world.run()
    found = world.contents()
    assert found.stores == undisturbed.stores
    for partition in range(2):
        assert found.topics["totals-by-customer", partition] == undisturbed.topics["totals-by-customer", partition]


def error(said: str) -> str:
    """Return the one error among what was said: it comes last, on a line of its own."""
    lines = said.splitlines()
    assert [line for line in lines if line.startswith("Error: ")] == lines[-1:], said
    return lines[-1]
