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
    rows: Rows = [{"time": "2013-02-08T09:00:00Z"}, {"time": "2013-02-09T09:00:00Z"}]
    assert [plain(line) for line in aligned(["time"], rows, 80)][1:] == [
        "2013-02-08 09:00:00.000",
        "2013-02-09 09:00:00.000",
    ]


@pytest.mark.parametrize("columns_wide", [40, 60, 80, 200])
def test_a_line_has_no_more_columns_than_the_terminal(columns_wide: int) -> None:
    rows: Rows = [{"id": 1, "properties": "p" * 300, "body": "日本" * 100}]
    assert all(width(plain(line)) <= columns_wide for line in aligned(list(rows[0]), rows, columns_wide))


def test_what_fits_is_not_cut() -> None:
    assert cut("orders", 6) == "orders"
    assert cut("orders", 5) == "orde…"
    assert cut("日本日本", 7) == "日本日…"
    assert cut("日本日本", 6) == "日本…"
