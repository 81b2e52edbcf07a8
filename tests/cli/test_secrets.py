"""No command prints or logs a secret, of whatever setting, whether it works or fails; lines of libraries included."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..changelogs.s3_server import S3Server
from ..serdes.schema_registry import SchemaRegistry, running
from .console import Console

MARK = "marked-secret"

APPLICATION = """
from penstock import Application, DeadLetter, Processor, Secret, Topology, key_value_store
from penstock.serdes import AvroSerde

SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "int"}]}'

class Count(Processor):
    def process(self, record):
        if record.value["amount"] < 0:
            raise ValueError(f"below 0 with {self.context.config!r}")
        orders = self.context.get_store("orders")
        orders.put(record.key, (orders.get(record.key) or 0) + 1)
        self.context.forward(record)

topology = (
    Topology()
    .add_source("in", "in", value_serde=AvroSerde(SCHEMA))
    .add_processor("count", Count, "in", stores=[key_value_store("orders")])
    .add_sink("out", "out", "count", value_serde=AvroSerde(SCHEMA))
)
application = Application(
    "shop", topology, engine="embedded", processing_handler=DeadLetter("dead"),
    changelog="directory:CHANGELOG", schema_registry="REGISTRY",
    clients={"sasl.password": "marked-secret", "my.thing": Secret("marked-secret")},
    user={"api_key": "marked-secret", "plain": Secret("marked-secret")},
    queries_token="marked-secret-token", queries_actions=True, queries_actions_token="marked-secret-acting",
)
"""
TARGET = "orders:application"
ORDERS = "".join(f'{{"key": "k{number}", "value": {{"amount": {number - 1}}}}}\n' for number in range(5))
RUNS = ("run", TARGET, "--log-level", "debug", "--set", "task_timeout=1s")
VERBS = [
    ("config", TARGET), ("config", TARGET, "--json"), ("describe", TARGET), ("describe", TARGET, "--json"),
    ("plan", TARGET), ("plan", TARGET, "--json"), ("status", TARGET), ("status", TARGET, "--json"), ("lag", TARGET),
    ("top", TARGET, "--once"), ("pause", TARGET), ("resume", TARGET), ("visit", TARGET),
    ("consume", "in", "--app", TARGET, "--json"), ("dlq", "list", TARGET, "--json"), ("dlq", "show", "dead"),
    ("dlq", "show", "dead", "--json"), ("dlq", "replay", "dead", "--app", TARGET), ("stores", "list", TARGET),
    ("state", "list", TARGET), ("state", "get", TARGET, "orders", "k1"), ("state", "export", TARGET, "orders"),
    ("state", "verify", TARGET), ("topics", "list", "--json"), ("reset", TARGET, "--dry-run"),
]  # fmt: skip
"""Commands that work."""
FAILING = [
    (2, ("config", TARGET, "--set", "sasl.pasword=marked-secret")),
    (2, ("run", TARGET, "--set", "schema_registry_user_info=5:marked-secret", "--set", "commit_interval=x")),
    (2, ("config", TARGET, "--set", "changelog=nothing:s3://me:marked-secret@nowhere")),
    (2, ("lag", TARGET, "--log", "kafka:localhost:1", "--set", "task_timeout=1s")),
    (0, ("config", TARGET, "--log", "kafka:localhost:1?sasl.password=marked-secret")),
    (2, ("lag", TARGET, "--log", "kafka:localhost:1?sasl.password=marked-secret")),
    (0, ("config", TARGET, "--log", "kafka:me:marked-secret@localhost:1")),
    (0, ("config", TARGET, "--log", "kafka:localhost:1,sasl.password=marked-secret")),
    (2, ("lag", TARGET, "--log", "kafka:localhost:1,sasl.password=marked-secret")),
    (2, ("dlq", "replay", "dead", "--log", "kafka:me:marked-secret@localhost:1")),
    (0, ("config", TARGET, "--set", "changelog=directory:s3://me:slash/marked-secret@bucket/state")),
    (0, ("config", TARGET, "--set", "changelog=directory:s3://me:at@marked-secret@bucket/state", "--json")),
    (0, ("config", TARGET, "--set", "user.database=postgresql://me:slash/marked-secret@host/orders")),
    (0, ("config", TARGET, "--log", "kafka:me:slash/marked-secret@localhost:1")),
    (0, ("config", TARGET, "--log", "kafka:localhost:1?sasl.password=comma,marked-secret")),
    (2, ("run", TARGET, "--set", "changelog=directory:s3://me:marked-secret/x@bucket/state")),
    (1, ("state", "backup", TARGET, "s3://me:marked-secret/x@bucket/backups")),
    (1, ("state", "get", TARGET, "orders", "none")),
    (1, ("state", "backup", TARGET, "nothing://me:marked-secret@bucket/backups")),
    (1, ("state", "restore", TARGET, "nothing://me:marked-secret@bucket/backups")),
    (2, ("changelog", "move", TARGET, "--from", "topic://me:marked-secret@bucket/other")),
]
"""The exit codes of commands that fail, and the commands."""


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running() as registry:
        yield registry


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


class Walk:
    """Runs commands and keeps what each prints."""

    def __init__(self, console: Console, logged: pytest.LogCaptureFixture) -> None:
        self._console = console
        self._logged = logged

    def __call__(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        """Run a command with `--verbose`; return what it printed. It must print and log no secret."""
        self._logged.clear()
        result = self._console(*arguments, code=code, stdin=stdin)
        self.look(result.output + result.stderr, *arguments)
        return result.stdout

    def look(self, text: str, *place: str) -> None:
        """Look for the secret in a text, and in the log lines since the last look."""
        assert MARK not in text, (place, text)
        lines = [
            f"{line.name} {line.getMessage()} {line.exc_text or line.exc_info or ''}" for line in self._logged.records
        ]
        assert not [line for line in lines if MARK in line], place
        self._logged.clear()


def test_no_command_shows_or_logs_a_secret(
    console: Console, registry: SchemaRegistry, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    changelog = s3.uri("bucket/state").replace("key:secret@", f"me:{MARK}@")
    address = registry.url.replace("//", f"//me:{MARK}@")
    console.write("orders.py", APPLICATION.replace("CHANGELOG", changelog).replace("REGISTRY", address))
    walk = Walk(console, caplog)
    with caplog.at_level(0):
        walk("topics", "create", "in", "out", "dead")
        walk("produce", "in", "--app", TARGET, "--json-lines", stdin=ORDERS)
        walk(*RUNS)
        for verb in VERBS:
            walk(*verb)
        assert "below 0" in walk("dlq", "show", "dead"), "a letter whose message has the settings"
        backups = s3.uri("bucket/backups").replace("key:secret@", f"me:{MARK}@")
        for name in ("backup", "backups"):
            walk("state", name, TARGET, backups)
        walk("state", "restore", TARGET, backups, code=1)
        for code, arguments in FAILING:
            walk(*arguments, code=code)
        s3.refuse = "GET"
        walk("state", "verify", TARGET, code=1)
        s3.refuse = "PUT"
        walk("produce", "in", "--app", TARGET, "--json-lines", stdin=ORDERS)
        walk(*RUNS, code=1)
        s3.refuse = None
        walk(*RUNS, "--set", f"schema_registry=http://me:{MARK}@localhost:1", code=2)
        walk("status", TARGET)
        walk("health", TARGET, code=1)
