"""`make bench` runs, and its table says what was run and what was not. No figure is judged here."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.bench.comparison import FULL, QUICK, Group, Results, Scale, measured
from tests.bench.peers import PEERS
from tests.bench.report import section
from tests.support.bench_rows import numbers, quick_run, rows_of

pytestmark = pytest.mark.rare

BEGAN = datetime(2026, 11, 23, 11, 0, tzinfo=UTC)


def test_latency_and_a_million_fill_the_table(tmp_path: Path) -> None:
    cells = quick_run(tmp_path, "latency", "million")
    assert len(numbers(cells)) == 10
    assert numbers(cells)[3] > 0


def test_throughput_and_many_queues_fill_the_table(tmp_path: Path) -> None:
    assert len(numbers(quick_run(tmp_path, "throughput", "fan-out", "queues"))) > 0


def figures_of(peer: str, scale: Scale) -> dict[str, float]:
    if peer == "lavinmq":
        raise RuntimeError("no AMQP answer on port 1")
    return {"a second": {"rabbitmq": 1_000.0, "rewindmq": 2_500.0}[peer] * scale.seconds, "s": 0.5}


def test_a_table_says_what_was_not_run_and_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    peers = ["rabbitmq", "lavinmq", "rewindmq"]
    group = Group("throughput", "Throughput", figures_of, tuple(PEERS), repeated=True)
    alone = Group("spark", "Spark", figures_of, ("rewindmq",))
    results = [measured(group, peers, FULL), measured(alone, peers, FULL)]
    text = section(BEGAN, BEGAN, "2 cores.", FULL, dict.fromkeys(peers, "1.2"), results)
    assert rows_of(text) == [
        ["a second", "8,000", "not run", "failed", "20,000 (2.50)", "not run"],
        ["s", "0.50", "not run", "failed", "0.50 (1.00)", "not run"],
        ["a second", "–", "–", "–", "20,000", "–"],
        ["s", "–", "–", "–", "0.50", "–"],
    ]
    assert "- Throughput, LavinMQ: failed. RuntimeError: no AMQP answer on port 1" in text
    assert "LavinMQ: failed: no AMQP answer" in capsys.readouterr().out
    assert "say nothing" not in text


def test_a_quick_run_says_that_it_says_nothing() -> None:
    results = [Results(Group("throughput", "Throughput", figures_of))]
    assert "its figures say nothing" in section(BEGAN, BEGAN, "2 cores.", QUICK, {}, results)
