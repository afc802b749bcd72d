"""The floors of a history in Kafka, from the trims in its metadata topic.

TopicFloors(KafkaLogReader(bootstrap, prefix).metadata).now()["queues-0"].event.offset
"""

from threading import Lock
from typing import Final

from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.topology.about_history import AboutHistory, Floor
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.metadata_events import HistoryTrimmed
from rewindmq.schemas.service_records import SharedDecoder

_QUEUES: Final = b"queues-"  # in each HistoryTrimmed, and in few other records, so only these are decoded


class TopicFloors:
    """The trims in a metadata topic; each question reads only the records since the last one."""

    def __init__(self, metadata: PartitionLog) -> None:
        self._metadata = metadata
        self._history = AboutHistory()
        self._end = 0
        self._lock = Lock()

    def now(self) -> dict[str, Floor]:
        """Return the last trim of each trimmed partition, by its name.

        Raises LogError, NoAnswer."""
        with self._lock:
            end, decode = self._metadata.next_offset, SharedDecoder().decode
            for block in self._metadata.read(self._end, end) if self._end < end else ():
                assert block.timestamps_ms is not None, "Kafka gives times"
                for at, record in enumerate(block.records):
                    if _QUEUES not in record:
                        continue
                    try:
                        _, actor, event = decode(record, False)
                    except UndecodableRecord:
                        continue
                    if isinstance(event, HistoryTrimmed):
                        offset = block.first_offset + at
                        self._history.apply(offset, block.timestamps_ms[at], actor.user, event)
            self._end = max(end, self._end)
            return dict(self._history.floors)
