"""The alerts in deploy/ are over metrics that there are."""

import re
from pathlib import Path

import httpx
import yaml

RULES = Path(__file__).parents[3] / "deploy" / "prometheus.rules.yaml"
PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def test_every_alert_watches_a_metric_that_is_told_and_is_explained(http: httpx.Client, name: str) -> None:
    http.put(f"/api/v1/queues/%2F/{name}", json={}).raise_for_status()
    http.post("/api/v1/publish/%2F", json={"routing_key": name, "payload": "x"}).raise_for_status()
    http.post(f"/api/v1/queues/%2F/{name}/consume", json={"then": "reject"}).raise_for_status()
    told = set(re.findall(r"^([a-z_]+)", http.get("/metrics").text, re.MULTILINE)) | {"up"}
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]

    assert rules
    for rule in rules:
        watched = set(re.findall(r"\b(?:headrace|process)_[a-z_]+|\bup\b", rule["expr"]))
        assert watched, rule["alert"]
        assert watched <= told, rule["alert"]
        assert f"`{rule['alert']}`" in PAGE.read_text()
        assert rule["annotations"]["summary"]
