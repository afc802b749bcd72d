"""The demo's page: the undo is seen, labelled with who and when; nothing from outside; it fits a phone."""

import re
from datetime import UTC, datetime

from pyspark.sql import Row

from tests.demo import charts, page
from tests.demo.page import Change

START = 1_763_715_845_000


def undone() -> list[Change]:
    """Three messages are published, purged after a second, and restored after another."""
    found = [Change(START + 10 * n, page.PURGED_QUEUE, "published", "guest", n, None) for n in range(3)]
    found += [Change(START + 1_000, page.PURGED_QUEUE, "purged", "eve", n, None) for n in range(3)]
    found += [Change(START + 2_000 + n, page.PURGED_QUEUE, "published", "ann", 10 + n, n) for n in range(3)]
    return found


def test_the_undo_is_wide_and_says_who_and_when() -> None:
    section = page.undo_section(undone())
    phases = re.findall(r'left:([\d.]+)%;width:([\d.]+)%"><b[^>]*>(\d+)</b><span>([^<]+)', section)
    assert [(count, name) for _, _, count, name in phases] == [
        ("3", "before the purge"),
        ("0", "purged"),
        ("3", "restored"),
    ]
    assert all(float(width) > 20 for _, width, _, _ in phases), "no hairline"
    assert "09:04:06.000</span> <b>eve</b> purged the queue" in section
    assert "It was empty for 1.0 seconds" in section
    assert "09:04:07.000</span> <b>ann</b> undid it" in section
    assert "3 messages came back, each once and in the order in which they were" in section


def test_without_a_purge_there_is_no_such_section() -> None:
    assert page.undo_section([Change(START, "board", "published", "guest", 1, None)]) == ""


def test_a_life_is_told_step_by_step() -> None:
    rest = {"queue": "<q>", "user": "ann", "consumer": 8, "reason": None, "exchange": None, "delivery_count": None}

    def row(outcome: str, rule: str | None = None) -> Row:
        return Row(timestamp=datetime.fromtimestamp(START / 1000, UTC), outcome=outcome, rule=rule, **rest)

    section = page.life_section("queues-0:7", [row("published"), row("delivery_limit", "policy p.x")], "<b>")
    assert section.count("<li ") == 2
    assert "came into <b>&lt;q&gt;</b>" in section
    assert "decided by policy p.x" in section
    assert "<code>&lt;b&gt;</code>" in section


def test_every_queue_has_a_chart_that_stretches() -> None:
    section = page.queues_section(undone())
    assert section.count("<svg ") == 1
    assert 'preserveAspectRatio="none"' in section
    assert "<td>cancelled</td><td>6</td><td>3</td>" in section


def test_the_page_fits_a_phone_and_needs_nothing_from_outside() -> None:
    text = page._TEMPLATE.format(data="d", undo="", life="", limit="", queues="")
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "http" not in text
    assert "xlink" not in charts.svg(charts.axis(1), "a chart")
