"""The alert rules and the dashboard with the real tools: promtool, and a Prometheus that scrapes an application.

Without them the tests are left out: `apt-get install prometheus` has both.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from penstock import Processor, Record, Topology, key_value_store, skip

from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .test_alert_rules import DASHBOARD, DOCS, RULES

ALERTS = DOCS / "deploying" / "alerts.yaml"
_SECONDS = 60

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None, reason="apt-get install prometheus"
)


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_rules() -> None:
    assert f"SUCCESS: {len(RULES)} rules found" in promtool("check", "rules", ALERTS)


def test_each_rule_fires_when_it_should_and_not_before() -> None:
    tests = Path(__file__).with_name("alerts_test.yaml")
    promtool("test", "rules", tests)
    fired = {
        each["alertname"]
        for test in yaml.safe_load(tests.read_text())["tests"]
        for each in test["alert_rule_test"]
        if each.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in RULES}


class Sum(Processor):
    def process(self, record: Record) -> None:
        store = self.context.get_store("sums")
        store.put(record.key, (store.get(record.key) or 0) + record.value)
        self.context.forward(record)


def summing() -> Topology:
    topology = Topology().add_source("in", "in", value_serde="json")
    topology.add_processor("sum", Sum, "in", stores=[key_value_store("sums", value_serde="json")])
    return topology.add_sink("out", "out", "sum", value_serde="json")


class Prometheus:
    """A server that scrapes one port twice a second, and has the rules."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, what: str, **given: str) -> Any:
        with urlopen(f"{self._url}{what}?{urlencode(given)}", timeout=_SECONDS) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]

    def value(self, expression: str) -> list[Any]:
        """Return the series of an expression."""
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found

    def is_there(self) -> bool:
        with suppress(URLError, ConnectionError):
            return bool(self.value("up == 1"))
        return False


@contextmanager
def prometheus(directory: Path, scraped: int) -> Iterator[Prometheus]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "penstock", "static_configs": [{"targets": [f"127.0.0.1:{scraped}"]}]}],
    }
    path = directory / "prometheus.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    command = [
        "prometheus", f"--config.file={path}", f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        made = Prometheus(port)
        wait_until(made.is_there)
        yield made
    finally:
        process.kill()
        process.wait()


def test_a_dashboard_and_rules_over_an_application(tmp_path: Path, free_port: int) -> None:
    """Every expression of the dashboard has an answer, but that of a restore; every rule is evaluated."""
    asked = {
        (panel["title"], target["expr"].replace("$application", ".*")): target
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    }
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 2})
        app = surroundings.application(
            "shop", summing(), engine="embedded", commit_interval="10ms", metrics_port=free_port,
            deserialization_handler=skip, metrics_host="127.0.0.1",
        )  # fmt: skip

        def feed() -> None:
            surroundings.put("in", [("a", "1", 1), ("b", "2", 2), ("c", "none", 3)])

        feed()
        with app.start("continuous"), prometheus(tmp_path, free_port) as server:

            def unanswered() -> set[str]:
                feed()
                return {title for title, expression in asked if not server.value(expression)}

            wait_until(lambda: unanswered() <= {"Restores"})
            wait_until(_are_evaluated(server))
            [target] = server.ask("targets")["activeTargets"]
            assert (target["health"], target["lastError"]) == ("up", "")
            for (_, expression), each in asked.items():
                shown = set(re.findall(r"\{\{(\w+)\}\}", each["legendFormat"]))
                assert all(shown <= series["metric"].keys() for series in server.value(expression))


def _are_evaluated(server: Prometheus) -> Callable[[], bool]:
    def are_evaluated() -> bool:
        rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
        assert all(rule["health"] in ("ok", "unknown") for rule in rules), rules
        return [rule["name"] for rule in rules if rule["health"] == "ok"] == [rule["alert"] for rule in RULES]

    return are_evaluated
