"""The golden history: a log of every kind of outcome, and the tables that were made of it when it was recorded.

tests/golden_history/log.parquet        partition, offset, timestamp_ms, bare record: metadata log and two partitions
tests/golden_history/history.parquet    the whole table HISTORY
tests/golden_history/slo.json           the table SLO for some options each
tests/golden_history/audit.json         the findings of an audit
"""

from pathlib import Path

import pyarrow.parquet as pq

from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.schemas.single_object import HEADER

GOLDEN_HISTORY = Path(__file__).parents[2] / "golden_history"


def write_golden_log(data: Path) -> None:
    """A data directory with the golden log."""
    log = EmbeddedLog.open(data, partitions=2)
    partitions = {each.name: each for each in (log.metadata, *log.queues)}
    for row in pq.read_table(GOLDEN_HISTORY / "log.parquet").to_pylist():
        assert partitions[row["partition"]].append(row["timestamp_ms"], HEADER + row["record"]) == row["offset"]
        if row["offset"] % 7 == 0:
            log.commit_and_wait()
    log.commit_and_wait()
    log.close()
