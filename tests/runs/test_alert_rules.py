"""The probes, the alert rules and the dashboard of docs/deploying name paths, metrics and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock import MeasureKind
from penstock.plugins.engine.run.metrics.endpoint import LIVE, READY
from penstock.plugins.engine.run.metrics.reporting import measures_of

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
SUFFIXES = {
    MeasureKind.COUNTER: ["_total"],
    MeasureKind.GAUGE: [""],
    MeasureKind.HISTOGRAM: ["_bucket", "_sum", "_count"],
}
LABELS = {
    name: {*measure.labels, *({"le"} if name.endswith("_bucket") else ())}
    for measure in measures_of(STATUS, LAG)
    for name in (f"{measure.name}{suffix}" for suffix in SUFFIXES[measure.kind])
}


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [each for each in OBJECTS if each["kind"] == kind]
    return found


RULES = [
    rule
    for group in yaml.safe_load((DOCS / "deploying" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((DOCS / "deploying" / "dashboard.json").read_text())


def test_every_object_is_named() -> None:
    assert all(each["apiVersion"] and each["metadata"]["name"] for each in OBJECTS)


def check_expression(expression: str) -> None:
    """Fail unless the metrics and labels of a query are there."""
    metrics = re.findall(r"penstock_\w+", expression)
    assert metrics
    assert set(metrics) <= LABELS.keys()
    # A label in braces belongs to the metric before them; those that are kept are labels of every metric.
    for metric, selected in re.findall(r"(penstock_\w+)\{(.*?)\}", expression):
        assert set(re.findall(r"(\w+)(?:=|!=|=~)\"", selected)) <= LABELS[metric]
    for kept in re.findall(r"(?:by|on) \((.*?)\)", expression):
        assert all(set(kept.split(", ")) <= LABELS[metric] for metric in metrics)


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_a_panel_asks_for_metrics_and_labels_that_there_are(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        check_expression(target["expr"])
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert all(shown <= LABELS[metric] for metric in re.findall(r"penstock_\w+", target["expr"]))


def test_panels_have_places_of_their_own() -> None:
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places) and max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert {each["name"] for each in DASHBOARD["templating"]["list"]} == {"datasource", "application"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_names_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
    expression = rule["expr"]
    for part in expression.split(" unless "):
        check_expression(part)
    metrics = re.findall(r"penstock_\w+", expression.partition(" unless ")[0])
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


def test_the_probes_ask_what_the_port_for_metrics_answers() -> None:
    found = container("StatefulSet")
    for probe, path in (("livenessProbe", LIVE), ("readinessProbe", READY)):
        asked = found[probe]["httpGet"]
        assert asked["path"] == path
        assert asked["port"] in [each["name"] for each in found["ports"]]
