"""`make bench ROWS=kafka` runs. No figure is judged here."""

from pathlib import Path

import pytest

from tests.support.bench_rows import numbers, quick_run

pytestmark = pytest.mark.rare


def test_kafka_fills_the_table(tmp_path: Path) -> None:
    assert len(numbers(quick_run(tmp_path, "kafka"))) > 0
