"""The audit's page: every check, every finding with its place, and nothing that could act in a browser."""

import json
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest

from rewindmq.projections.verify import NOT_CHECKED
from rewindmq.spark_replay.audit.checks import ADVICE, Finding
from rewindmq.spark_replay.commands.report import MEANING, print_report
from rewindmq.spark_replay.commands.report_html import ROWS, report_html

WHEN = datetime(2025, 11, 21, 9, 0, tzinfo=UTC)


class Text(HTMLParser):
    """Cells of the tables, and names of the tags."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def read(findings: list[Finding]) -> tuple[str, Text]:
    page = report_html(findings, "/var/lib/rewindmq", WHEN)
    text = Text()
    text.feed(page)
    return page, text


def test_a_page_names_every_finding_with_its_place() -> None:
    queue = "/<script>alert(1)</script>"
    page, text = read(
        [
            Finding("order", True, "queues-0", None, None, None, "100 events"),
            Finding("limits", False, "queues-1", 17, queue, 12, "over its limit & more"),
            Finding("limits", True, "queues-0", None, None, None, "100 events"),
        ]
    )
    assert "failed, 1 finding<" in page
    assert "2025-11-21T09:00:00+00:00" in page
    assert "script" not in text.tags
    cells = [cell.strip() for cell in text.cells]
    assert cells[:2] == ["order", "ok"]
    assert cells[4:6] == ["limits", "1 found"]
    assert cells[8:13] == ["limits", "queues-1", "17", queue, "12"]
    assert cells[13].startswith("over its limit & more")


def test_what_was_found_says_how_bad_it_is_and_what_to_do() -> None:
    for check in MEANING:
        finding = Finding(check, False, "queues-0", 17, None, None, "wrong")
        assert finding.severity in ("critical", "high", "medium"), check
        assert len(finding.hint) > 20
    assert Finding("kept", False, "a.topic", None, None, None, "set retention.ms").severity == "low"
    holds = Finding("order", True, "queues-0", None, None, None, "100 events")
    assert (holds.severity, holds.hint) == ("", "")
    bad = [Finding("chain", False, "queues-0", n, None, None, "torn") for n in range(3)]
    page, _ = read(bad)
    assert page.count("<b>chain</b> is critical: keep the whole data directory") == 1
    assert set(ADVICE) <= set(MEANING)


def test_a_page_without_findings_says_passed() -> None:
    page, text = read([Finding("order", True, "queues-0", None, None, None, "100 events")])
    assert "passed" in page
    assert "What was found" not in page
    assert len(text.cells) == 4


def test_a_page_has_the_first_of_very_many_findings() -> None:
    page, text = read([Finding("order", False, "queues-0", n, "/q", n, "wrong") for n in range(ROWS + 500)])
    assert f"failed, {ROWS + 500:,} findings" in page
    assert f"The first {ROWS:,} of {ROWS + 500:,}" in page
    assert len(text.cells) == 4 + 6 * ROWS


def test_what_compared_nothing_is_not_called_ok(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [
        Finding("order", True, "queues-0", None, None, None, "100 events"),
        Finding("store", True, "queues-0", None, None, None, f"{NOT_CHECKED}nothing is stored yet"),
        Finding("claims", True, "queues-0", None, None, None, "3 claims"),
        Finding("claims", True, "queues-1", None, None, None, f"{NOT_CHECKED}0 claims"),
    ]
    print_report(findings, "table")
    lines = capsys.readouterr().out.splitlines()
    results = {line.split()[0]: line for line in lines if line.startswith(("order ", "store ", "claims "))}
    assert " not checked " in results["store"]
    assert " ok " in results["order"]
    assert " ok " in results["claims"], "one partition's claims were compared"
    assert lines[-2:] == ["not checked, as there was nothing to compare: store", "audit passed"]
    page, text = read(findings)
    assert [text.cells[number].strip() for number in (1, 5, 9)] == ["ok", "not checked", "ok"]
    assert "passed; not checked: store<" in page
    print_report(findings, "json")
    assert [each["checked"] for each in json.loads(capsys.readouterr().out)] == [True, False, True, False]
