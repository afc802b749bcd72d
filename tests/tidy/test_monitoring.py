"""Alerts and dashboard (B-52): every alert has a test and a section of the runbook, every metric exists."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.needs import needed
from tests.tidy import references

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "compose" / "monitoring"
PAGE = "docs/operators/alerts.md"
SEVERITIES = {"critical", "warning", "info"}
OURS = re.compile(r"\brewindmq_[a-z_]+")
IN_CODE = re.compile(r'"(rewindmq_[a-z_]+)"')
# Metrics of the broker's counters, whose names are made of those of the counters.
OF_COUNTERS = {"rewindmq_events_dropped_total", "rewindmq_logins_braked_total"}
PARTS = {"What it means", "Look at", "Do"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metrics_in_code() -> set[str]:
    folder = ROOT / "engine" / "http" / "metrics"
    return {name for path in folder.glob("*.py") for name in IN_CODE.findall(path.read_text())} | OF_COUNTERS


def test_b52_promtool_accepts_the_rules_and_alerts_fire_when_they_should() -> None:
    promtool = needed("promtool")
    for command in ("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"):
        done = subprocess.run([promtool, *command], cwd=MONITORING, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    assert [each["name"] for each in tested if not each["alert_rule_test"][0]["exp_alerts"]] == []
    assert {each["alert_rule_test"][0]["alertname"] for each in tested} == {rule["alert"] for rule in rules()}


def test_b52_every_alert_has_a_section_of_the_runbook() -> None:
    sections = re.split(r"^## ", (ROOT / PAGE).read_text(), flags=re.MULTILINE)[1:]
    found = {section.partition("\n")[0]: section for section in sections}
    names = [rule["alert"] for rule in rules()]
    assert list(found) == names
    for rule in rules():
        assert rule["labels"]["severity"] in SEVERITIES
        assert rule["annotations"]["runbook"] == f"{PAGE}#{rule['alert'].lower()}"
        assert rule["alert"].lower() in references.anchors_of(PAGE)
        parts = set(re.findall(r"^\*\*(.+?)\.\*\*", found[rule["alert"]], flags=re.MULTILINE))
        assert parts == PARTS, rule["alert"]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((MONITORING / "grafana" / "history.json").read_text())["panels"]
    return found


@pytest.mark.parametrize("file", ["alerts.yml", "grafana/history.json"])
def test_b52_every_metric_exists(file: str) -> None:
    used = {each.removesuffix("_bucket") for each in OURS.findall((MONITORING / file).read_text())}
    assert used
    assert used <= metrics_in_code()


def test_b52_the_dashboard_is_one_that_grafana_can_show() -> None:
    """As far as that can be said without a Grafana: names once, places apart, each panel with queries."""
    dashboard = json.loads((MONITORING / "grafana" / "history.json").read_text())
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    assert len({panel["id"] for panel in panels()}) == len(panels())
    places: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, f"{panel['title']} lies on another panel"
        places |= cells
        if panel["type"] == "row":
            continue
        assert panel["type"] in ("timeseries", "stat")
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
        for target in panel["targets"]:
            used = set(re.findall(r"\$\{?(\w+)", json.dumps(target)))
            assert used <= variables | {"__rate_interval"}, panel["title"]
