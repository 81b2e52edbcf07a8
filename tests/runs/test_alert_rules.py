"""The probes and the alert rules of docs/deploying name commands and metrics that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.plugins.runs.metrics.collector import RunCollector

from ..waiting import wait_until
from .test_metrics_endpoint import LAG, STATUS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [(DOCS / "deploying" / name).read_text() for name in ("kubernetes.md", "embedded.md")]
RUNBOOK = (DOCS / "runbook.md").read_text()
OBJECTS: list[dict[str, Any]] = [
    made
    for page in PAGES
    for block in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for made in yaml.safe_load_all(block)
]
LABELS = {
    f"{family.name}_total" if family.type == "counter" else family.name: set(family.samples[0].labels)
    for family in RunCollector(lambda: STATUS, lambda: LAG).collect()
}
SHOP = """
from penstock import Application, Topology
topology = Topology().add_source("in", "orders").add_sink("out", "copies", "in")
application = Application("shop", topology, engine="embedded")
"""


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [each for each in OBJECTS if each["kind"] == kind]
    return found


RULES = [rule for group in of_kind("PrometheusRule")["spec"]["groups"] for rule in group["rules"]]


def test_every_object_is_named() -> None:
    assert all(each["apiVersion"] and each["metadata"]["name"] for each in OBJECTS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_names_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
    expression = rule["expr"]
    metrics = re.findall(r"penstock_\w+", expression)
    assert metrics
    assert set(metrics) <= LABELS.keys()
    # A label in braces belongs to the metric before them; those that are kept are labels of every metric.
    for metric, selected in re.findall(r"(penstock_\w+)\{(.*?)\}", expression):
        assert set(re.findall(r"(\w+)(?:=|!=|=~)\"", selected)) <= LABELS[metric]
    for kept in re.findall(r"(?:by|on) \((.*?)\)", expression):
        assert all(set(kept.split(", ")) <= LABELS[metric] for metric in metrics)
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert all(shown <= LABELS[metric] for metric in metrics)


def test_the_runbook_has_a_section_for_each_rule() -> None:
    assert re.findall(r"^### (\w+)$", RUNBOOK, re.MULTILINE) == [rule["alert"] for rule in RULES]


def container(kind: str) -> Any:
    (found,) = of_kind(kind)["spec"]["template"]["spec"]["containers"]
    return found


def test_both_engines_have_the_same_probes() -> None:
    spark, embedded = container("Deployment"), container("StatefulSet")
    assert all(spark[each] == embedded[each] for each in ("livenessProbe", "readinessProbe"))


def test_the_readiness_probe_says_whether_it_runs(tmp_path: Path) -> None:
    command = container("StatefulSet")["readinessProbe"]["exec"]["command"]
    (tmp_path / "shop.py").write_text(SHOP)
    surroundings = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}

    def answer(*command: str) -> int:
        return subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, timeout=60).returncode

    assert answer("penstock", "topics", "create", "orders", "copies") == 0
    assert answer(*command) == 1
    run = ["penstock", "run", "shop:application", "--trigger", "continuous", "--quiet"]
    with subprocess.Popen(run, cwd=tmp_path, env=surroundings) as process:
        try:
            wait_until(lambda: answer(*command) == 0, "the probe answers")
        finally:
            process.terminate()
    assert answer(*command) == 1


def test_the_liveness_probe_asks_the_port_for_metrics() -> None:
    found = container("StatefulSet")
    probe = found["livenessProbe"]["httpGet"]
    assert probe["path"] == "/metrics"
    assert probe["port"] in [each["name"] for each in found["ports"]]
