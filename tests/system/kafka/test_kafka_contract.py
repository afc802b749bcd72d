"""A log in Kafka keeps what all logs promise: the tests of tests/support/log_contract.py, over Kafka."""

import time
import uuid
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from rewindmq.engine.log.kafka.log import KafkaLog
from rewindmq.projections.replay import PartitionLog
from tests.support.kafka.cluster import KafkaCluster
from tests.support.log_contract import (
    SECONDS,
    History,
    is_there_when_opened_again,
    test_a_time_leads_to_the_first_later_offset,
    test_all_partitions_are_there_and_empty,
    test_any_range_is_read,
    test_records_are_read_as_they_were_in_order_in_their_partition,
)

__all__ = [
    "test_a_time_leads_to_the_first_later_offset",
    "test_all_partitions_are_there_and_empty",
    "test_any_range_is_read",
    "test_records_are_read_as_they_were_in_order_in_their_partition",
]


class KafkaHistory:
    """A log in Kafka, whose records are Avro single objects."""

    def __init__(self, bootstrap: str) -> None:
        prefix = f"contract-{uuid.uuid4().hex[:12]}"
        self._open = partial(KafkaLog.open, bootstrap, prefix)
        self._log = self._open()

    @property
    def partitions(self) -> Sequence[PartitionLog]:
        return [self._log.metadata, *self._log.queues]

    def append(self, partition: int, records: Sequence[bytes]) -> None:
        to = [self._log.metadata, *self._log.queues][partition]
        end = to.next_offset + len(records)
        for each in records:
            to.append(b"/orders", each)
        self._log.flush()
        deadline = time.monotonic() + SECONDS
        while to.next_offset < end:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def reopen(self) -> None:
        self._log.close()
        self._log = self._open()

    def close(self) -> None:
        self._log.close()


@pytest.fixture
def history(kafka: KafkaCluster) -> Iterator[History]:
    opened = KafkaHistory(kafka.bootstrap)
    yield opened
    opened.close()


def test_what_was_appended_is_there_when_the_log_is_opened_again(history: History) -> None:
    is_there_when_opened_again(history)
