"""The alerts and the Grafana dashboard in deploy/ query metrics that the broker exposes."""

import json
import re
from pathlib import Path

import httpx
import yaml

from tests.servers import Server

RULES = Path(__file__).parents[3] / "deploy" / "prometheus.rules.yaml"
DASHBOARD = RULES.parent / "grafana.json"
PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def test_every_alert_watches_a_metric_that_is_told_and_is_explained(http: httpx.Client, name: str) -> None:
    told = set(_told(http, name)) | {"up"}
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]

    assert rules
    for rule in rules:
        watched = set(re.findall(r"\b(?:headrace|process)_[a-z_]+|\bup\b", rule["expr"]))
        assert watched, rule["alert"]
        assert watched <= told, rule["alert"]
        assert f"`{rule['alert']}`" in PAGE.read_text()
        assert rule["annotations"]["summary"]


def test_every_panel_of_the_dashboard_queries_metrics_and_labels_that_are_told(
    server: Server, http: httpx.Client, name: str
) -> None:
    server.connect()
    told = _told(http, name)
    panels = json.loads(DASHBOARD.read_text())["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            queried = re.findall(r"\b(?:headrace|process)_[a-z_]+", target["expr"])
            assert queried, panel["title"]
            for metric in queried:
                assert metric in told, panel["title"]
                labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                assert labels <= told[metric] | {"instance"}, panel["title"]


def _told(http: httpx.Client, name: str) -> dict[str, set[str]]:
    """The metrics of a broker with traffic, each with its labels."""
    http.put(f"/api/v1/queues/%2F/{name}", json={}).raise_for_status()
    http.post("/api/v1/publish/%2F", json={"routing_key": name, "payload": "x"}).raise_for_status()
    http.post(f"/api/v1/queues/%2F/{name}/consume", json={"then": "reject"}).raise_for_status()
    found: dict[str, set[str]] = {}
    for metric, labels in re.findall(r"^([a-z_]+)(?:\{(.*)\})? ", http.get("/metrics").text, re.MULTILINE):
        found.setdefault(metric, set()).update(re.findall(r'(\w+)="', labels))
    return found
