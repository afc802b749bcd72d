"""Our own listings at a terminal."""

import re

import pytest

from rewindmq.engine.cli.formatters import Rows, width
from rewindmq.engine.cli.terminal import PLAIN, RED, aligned, cut

ROWS: Rows = [
    {"offset": 9, "timestamp": "2013-02-08T09:00:00.250Z", "rule": None, "outcome": "acked", "body": "one"},
    {"offset": 1234, "timestamp": "2013-02-08T09:00:01Z", "rule": None, "outcome": "purged", "body": "two \x1b[2J"},
]


def plain(line: str) -> str:
    return re.sub(r"\x1b\[\d+m", "", line)


def test_columns_are_aligned_and_those_without_values_are_left_out() -> None:
    lines = aligned(list(ROWS[0]), ROWS, 100)
    assert [plain(line) for line in lines] == [
        "offset  timestamp 2013-02-08  outcome  body",
        "     9  09:00:00.250          acked    one",
        "  1234  09:00:01.000          purged   two \\x1b[2J",
    ]
    assert f"{RED}purged{PLAIN}" in lines[2]


def test_times_of_several_days_have_their_dates() -> None:
    rows: Rows = [{"timestamp": "2013-02-08T09:00:00Z"}, {"timestamp": "2013-02-09T09:00:00+00:00"}]
    assert [plain(line) for line in aligned(["timestamp"], rows, 80)][1:] == [
        "2013-02-08 09:00:00.000",
        "2013-02-09 09:00:00.000",
    ]


@pytest.mark.parametrize("columns_wide", [40, 60, 80, 200])
def test_a_line_has_no_more_columns_than_the_terminal(columns_wide: int) -> None:
    rows: Rows = [{"id": 1, "properties": "p" * 300, "body": "日本" * 100}]
    assert all(width(plain(line)) <= columns_wide for line in aligned(list(rows[0]), rows, columns_wide))


@pytest.mark.parametrize("body", ["2026-11-30T13:05:39Z order created", "2026-11-30T13:05:39+02:00", "deleted", ""])
def test_a_body_is_shown_as_it_is_whatever_it_says(body: str) -> None:
    rows: Rows = [{"id": 1, "payload": body}, {"id": 2, "payload": "2026-11-30T13:05:39,123"}]
    lines = aligned(["id", "payload"], rows, 80)
    assert lines[1:] == [f" 1  {body}".rstrip(), " 2  2026-11-30T13:05:39,123"]
    assert all(width(plain(line)) <= 20 for line in aligned(["id", "payload"], rows, 20))


def test_what_fits_is_not_cut() -> None:
    assert cut("orders", 6) == "orders"
    assert cut("orders", 5) == "orde…"
    assert cut("日本日本", 7) == "日本日…"
    assert cut("日本日本", 6) == "日本…"
