"""The commands round figures for people, and name a queue about which they found nothing."""

import io

import pytest

from rewindmq.spark_replay.commands.report_html import report_html
from rewindmq.spark_replay.commands.table_writer import _rounded, print_table, tell_unknown


def test_tables_round_figures() -> None:
    target = io.StringIO()
    print_table(["rate", "n"], [[_rounded(0.030104712041884817), _rounded(5)], [_rounded(1.0), ""]], target)
    assert target.getvalue().splitlines() == ["rate  n", "0.03  5", "1.0"]


def test_a_queue_that_nothing_is_about_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for queue, found in ((None, 0), ("orders", 1)):
        tell_unknown(queue, found)
        assert capsys.readouterr().err == ""
    tell_unknown("ordres\n", 0)
    assert "nothing is about queue 'ordres\\n': is it vhost/name" in capsys.readouterr().err


def test_the_page_breaks_only_what_is_long() -> None:
    assert "td { overflow-wrap: break-word }" in report_html([], "DIR")
