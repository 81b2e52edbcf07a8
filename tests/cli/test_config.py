"""`penstock config`, and settings from everywhere on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.settings.settings import Settings

from .console import Console

CANARY = "canary-2c90"

APPLICATION = """
from penstock import Application, Secret, Topology

def decide(failure): ...

topology = Topology().add_source("in", "in").add_sink("out", "out", "in")
application = Application(
    "shop", topology, {"max.task.idle.ms": 5, "sasl.username": "me"}, log="local:mine",
    clients={"my.thing": Secret("canary-2c90")}, processing_handler=decide, user={"limit": 3, "nested": {"api_key": "canary-2c90"}},
)
"""


@pytest.fixture
def shop(console: Console, monkeypatch: pytest.MonkeyPatch) -> Console:
    console.write("shop.py", APPLICATION)
    console.write("password", f"{CANARY}\n")
    console.write(
        "production.toml", 'task_timeout = "1m"\nsasl.password = {file = "password"}\n[consumer]\nfetch.min.bytes = 7\n'
    )
    monkeypatch.setenv("PENSTOCK_PRODUCER_LINGER_MS", "9")
    return console


ARGUMENTS = [
    "config",
    "shop:application",
    "--config",
    "production.toml",
    "--set",
    "commit_bytes=1000",
    "--set",
    "topic.segment.bytes=5",
    "--log",
    "local:there",
]


def test_each_setting_is_shown_with_where_it_came_from(shop: Console) -> None:
    found = shop.json(*ARGUMENTS, "--json")
    assert found["application_id"] == {"value": "shop", "origin": "code"}
    settings = {name: (each["value"], each["origin"]) for name, each in found["settings"].items()}
    given = {name: value for name, value in settings.items() if value[1] != "default"}
    assert given == {
        "log": ("local:there", "--log"),
        "max_task_idle": ("5ms", "code"),
        "processing_handler": ("shop:decide", "code"),
        "commit_bytes": (1000, "--set commit_bytes"),
        "task_timeout": ("1m", "production.toml, line 1"),
        "clients.consumer.fetch.min.bytes": ("7", "production.toml, line 4"),
        "clients.my.thing": ("********", "code"),
        "clients.producer.linger.ms": ("9", "PENSTOCK_PRODUCER_LINGER_MS"),
        "clients.sasl.password": ("********", "production.toml, line 2"),
        "clients.sasl.username": ("me", "code"),
        "topic_config.segment.bytes": ("5", "--set topic.segment.bytes"),
        "user.limit": (3, "code"),
        "user.nested": ({"api_key": "********"}, "code"),
    }
    assert {name.partition(".")[0] for name in settings} == set(Settings.names())
    assert settings["production_handler"] == ("fail", "default")
    assert settings["parallelism"] == (None, "default")


def test_the_table_says_the_same(shop: Console) -> None:
    lines = shop(*ARGUMENTS).stdout.splitlines()
    found = shop.json(*ARGUMENTS, "--json")
    assert lines[0].split() == ["SETTING", "VALUE", "ORIGIN"]
    assert [line.split()[0] for line in lines[1:]] == ["application_id", *found["settings"]]
    assert ["parallelism", "-", "default"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--json"],
        ["--set", "comit_interval=5s"],
        ["--set", "sasl.pasword=canary-2c90"],
        ["--verbose", "--set", "commit_interval=5"],
    ],
)
def test_no_secret_is_printed(shop: Console, more: list[str]) -> None:
    result = shop.process(*ARGUMENTS, *more, code=2 if len(more) > 1 else 0)
    assert CANARY not in "".join(result)


def test_an_error_of_a_log_does_not_show_what_it_was_given(shop: Console) -> None:
    out, err = shop.process(
        "topics", "list", "--log", "kafka:localhost:1", "--verbose", code=2,
        environment={"PENSTOCK_CONFIG": "production.toml", "PENSTOCK_CLIENTS_NO_SUCH": CANARY, "PENSTOCK_CLIENTS_SSL_KEY_PEM": CANARY},
    )  # fmt: skip
    assert "no.such" in err
    assert CANARY not in out + err


def test_the_file_here_is_read_and_one_that_is_named_instead_of_it(
    shop: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timeout(*arguments: str) -> tuple[str, str]:
        found = shop.json("config", "shop:application", "--json", *arguments)["settings"]["task_timeout"]
        return found["value"], found["origin"]

    assert timeout() == ("5m", "default")
    shop.write("penstock.toml", 'task_timeout = "2m"\n')
    assert timeout() == ("2m", "penstock.toml, line 1")
    monkeypatch.setenv("PENSTOCK_CONFIG", "production.toml")
    assert timeout() == ("1m", "production.toml, line 1")
    shop.write("third.toml", "penstock.task.timeout.ms = 3\n")
    assert timeout("--config", "third.toml") == ("3ms", "third.toml, line 1")


def test_an_id_can_come_from_everywhere(shop: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    def application_id(target: str, *arguments: str) -> list[str]:
        return list(shop.json("config", target, "--json", *arguments)["application_id"].values())

    assert "has no id" in shop("config", "shop:topology", code=2).stderr
    shop.write("penstock.toml", 'application.id = "filed"\n')
    assert application_id("shop:topology") == ["filed", "penstock.toml, line 1"]
    monkeypatch.setenv("PENSTOCK_APPLICATION_ID", "housed")
    assert application_id("shop:application") == ["housed", "PENSTOCK_APPLICATION_ID"]
    assert application_id("shop:topology", "--set", "application.id=set") == ["set", "--set application.id"]
    assert application_id("shop:topology", "--application-id", "option") == ["option", "--application-id"]
    assert "expected 1 to 200" in shop("config", "shop:topology", "--application-id", "a/b", code=2).stderr


def test_topics_are_where_the_file_says(shop: Console) -> None:
    shop.write("penstock.toml", 'log = "local:filed"\ndata.dir = "data"\n')
    shop("topics", "create", "one")
    assert (shop.directory / "data" / "filed" / "data.mdb").exists()


@pytest.mark.parametrize(
    "arguments", [["run", "shop:application"], ["lag", "shop:application"], ["config", "shop:application"]]
)
def test_what_is_wrong_in_the_file_is_said_before_anything_runs(shop: Console, arguments: list[str]) -> None:
    shop.write("bad.toml", "[consumer]\nfetch.min.bites = 1\n")
    result = shop(*arguments, "--config", "bad.toml", code=2)
    assert (
        "bad.toml, line 2: unknown setting 'consumer.fetch.min.bites'; did you mean 'consumer.fetch.min.bytes'"
        in result.stderr
    )


def test_values_that_json_does_not_have_are_text(shop: Console) -> None:
    shop.write(
        "odd.py",
        "from datetime import timedelta\nfrom penstock import Application, DeadLetter, StrSerde\nfrom shop import "
        "topology\napplication = Application('odd', topology, commit_interval=timedelta(seconds=2), "
        "key_serde=StrSerde(), production_handler=DeadLetter('dlq'), user={1: {2, 3}})\n",
    )
    found: dict[str, Any] = json.loads(shop("config", "odd:application", "--json").stdout)["settings"]
    assert found["commit_interval"]["value"] == "0:00:02"
    assert found["key_serde"]["value"] == "StrSerde"
    assert found["production_handler"]["value"] == "DeadLetter(topic='dlq')"
    assert sorted(found["user.1"]["value"]) == [2, 3]
