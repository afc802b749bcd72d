"""Where a history is, for those who read it without the broker: rewinds, `verify`, the process that reads the past.

    log = History(data).open()                                          the log of a data directory
    log = History(data, "localhost:9092", "rewindmq", settings).open()  topics in Kafka; `data` is a node's, if any

Whatever `data` holds (a state, snapshots) has to be of the history that is read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rewindmq.engine.log.contract import Block, LogError
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.replay import PartitionLog

if TYPE_CHECKING:
    from rewindmq.engine.log.kafka.reader import KafkaLogReader

# How long Kafka has for its first answer: somebody waits for ours. What is asked after that may take longer, as while a
# leader is being elected.
FIRST_ANSWER_SECONDS = 10.0


class OtherHistory(LogError):
    """The data directory does not belong to the history."""


@dataclass(frozen=True, slots=True)
class History:
    """`kafka`: bootstrap servers; None for the embedded log. With Kafka `data` may be None: no node is at hand; and
    `partitions` says how many of the queues' topic count, the first ones; None: all."""

    data: Path | None
    kafka: str | None = None
    prefix: str = "rewindmq"
    settings: tuple[tuple[str, str], ...] = ()
    partitions: int | None = None

    def open(self) -> "HistoryReader":
        """LogError when there is no log, Kafka does not answer, no Kafka client is installed (KafkaNotInstalled), or
        `data` is of another history (OtherHistory)."""
        if self.kafka is None:
            assert self.data is not None, "a history is in a data directory or in Kafka"
            embedded = EmbeddedLogReader(self.data)
            return HistoryReader(embedded.metadata, embedded.queues)
        log = _kafka(replace(self, partitions=None))
        log.clients.require_answer(FIRST_ANSWER_SECONDS)
        if self.data is not None:
            self._require_same(self.data, log.identity)
        return HistoryReader(log.metadata, log.queues[: self.partitions])

    def _require_same(self, data: Path, identity: str) -> None:
        path = data / "kafka"
        if not path.exists():
            raise OtherHistory(f"{data}: is no data directory of a node whose log is in Kafka")
        known = path.read_text().strip()
        if known != identity:
            raise OtherHistory(
                f"{data}: holds the state of another history than {self.prefix}.* at {self.kafka}"
                f" ({known}; there {identity})"
            )


class HistoryPartition(PartitionLog, Protocol):
    """A partition of either log, to read. LogError where it cannot be read."""

    @property
    def durable_offset(self) -> int:
        """The end (exclusive) of what no crash takes back."""

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]: ...

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Block]:
        """As `read`, of many short ranges (first offset, end) in order."""


@dataclass(frozen=True, slots=True)
class HistoryReader:
    metadata: HistoryPartition
    queues: Sequence[HistoryPartition]


@lru_cache(maxsize=1)
def _kafka(history: History) -> "KafkaLogReader":
    """One set of connections for all questions of a process."""
    from rewindmq.engine.log.kafka.reader import KafkaLogReader

    assert history.kafka is not None
    return KafkaLogReader(history.kafka, history.prefix, dict(history.settings))
