"""The tables and plots of docs/benchmarks.md show the figures of docs/benchmarks.toml."""

import tomllib
from pathlib import Path

import pytest

from tests.support import benchmarks_page
from tests.support.benchmarks_page import BASE, MAIN, PAGES, PICTURES, runs

STALE = "run `python -m tests.support.benchmarks_page`"
BENCH_TXT = """## 1 December 2026

2 cores.
Idle.

- **RabbitMQ 3.10.8**: version 3.10.8. Messages are synced.
- **RewindMQ pure**: version 0.3.0 (abcdef0). Messages are synced.

| | RabbitMQ 3.10.8 | RewindMQ pure |
| --- | --- | --- |
| **Fan-out: one "publisher"** | | |
| a broker-CPU-second | 1,000 | 2,500 (2.50) |
| p50, ms | failed | 0.20 |
| p99, ms | – | 1.5 |
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_data(page: Path) -> None:
    text = page.read_text()
    assert "<!-- end -->" in text
    assert benchmarks_page.with_tables(text) == text, STALE


def test_the_plots_are_those_of_the_data() -> None:
    for name, svg in benchmarks_page.pictures().items():
        assert (PICTURES / name).read_text() == svg, STALE


def test_every_figure_belongs_to_a_peer() -> None:
    for run in runs():
        assert len(run.versions) == len(run.peers)
        assert BASE in run.peers
        for group, rows in run.figures.items():
            assert all(len(figures) == len(run.peers) for figures in rows.values()), (run.date, group)


def test_the_main_rows_are_in_the_newest_run() -> None:
    assert all(row in runs()[-1].figures[group] for group, row in MAIN)


def test_a_run_of_make_bench_becomes_data() -> None:
    (run,) = tomllib.loads(benchmarks_page.added(BENCH_TXT, "make bench"))["run"]
    assert str(run["date"]) == "2026-12-01"
    assert run["machine"] == "2 cores. Idle."
    assert run["versions"] == ["3.10.8", "0.3.0 (abcdef0)"]
    assert run["figures"] == {
        'Fan-out: one "publisher"': {
            "a broker-CPU-second": [1000, 2500],
            "p50, ms": ["failed", 0.2],
            "p99, ms": ["", 1.5],
        }
    }
