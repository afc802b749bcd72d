"""The log's process: it writes the embedded log of one data directory for worker processes.

    frames of workers -> append: one time for a batch -> group commit -> durable -> frames to workers that follow

The log is the one that a single broker writes: the same directory, the same bare records with their time inside. So
every tool reads it, and one broker alone can go on with it.

Rules of this file
- A record gets its time when it arrives here. The time of a partition never goes back.
- A record is sent to workers when it is durable.
- A worker's epochs end when its connection ends: a NodeLost follows all that it sent, in each partition.
- Heartbeats and counters of queues are in memory only.
- Events of the broker as a whole are appended here, too: the end of a worker, a trim of the history.
- While too much waits for the disk nothing is read from workers. While the disk is full they are told, and hold their
  publishers back.
"""

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from rewindmq.engine.log.embedded.log import EmbeddedLog, EmbeddedPartition
from rewindmq.engine.log.embedded.root import first_chain_in
from rewindmq.engine.log.served.counters import CounterStore
from rewindmq.engine.log.served.owners import Owners
from rewindmq.engine.log.served.tail import Batch, Tail
from rewindmq.engine.log.served.wire_frames import (
    COUNTED,
    DUTIES,
    ENDS,
    FIRST_QUEUE,
    HISTORY,
    METADATA_NUMBER,
    NODES_NUMBER,
    PLACE,
    TROUBLE,
    WELCOME,
    as_json,
    decode_batch,
    encode_batch,
    frame,
    time_bytes,
)
from rewindmq.engine.log.served.worker_connection import WorkerConnection
from rewindmq.schemas.codec import Decoder, Encoder, UndecodableRecord
from rewindmq.schemas.events import NodeLost
from rewindmq.schemas.metadata_events import HistoryTrimmed, NodeJoined
from rewindmq.schemas.shapes import long_bytes
from rewindmq.schemas.values import BROKER

TAIL_BYTES: Final = 64 << 20  # of all partitions
LEAST_TAIL_BYTES: Final = 1 << 20
LOOK_SECONDS: Final = 1.0
COME_BACK_SECONDS: Final = 10.0  # so long the duties of a worker that ended wait for its successor

logger = logging.getLogger(__name__)


class Clock(Protocol):
    """The part of `engine/runtime/log_clock.py` that is needed: see there."""

    def begin(self, log_ms: int) -> int: ...

    def now_ms(self) -> int: ...

    def look(self) -> int: ...


class ServedPartition:
    """One partition. `log`: where its records go; None: they are in memory only."""

    def __init__(self, number: int, name: str, log: EmbeddedPartition | None, most_bytes: int) -> None:
        self.number = number
        self.name = name
        self.log = log
        self.last_ms = 0 if log is None else log.newest_ms  # of its newest record
        self._next = 0
        self.tail = Tail(self.next_offset, most_bytes)

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self._next if self.log is None else self.log.next_offset

    def add(self, time_ms: int, records: list[bytes]) -> int:
        """Append records. Returns the offset of the first."""
        self.last_ms = time_ms
        if self.log is not None:
            return self.log.append_all(time_ms, records)
        first = self._next
        self._next += len(records)
        return first


class LogServer:
    """`most_silent`: seconds without a word after which a worker that joined is disconnected. `lost` is called with the
    name of a worker whose connection ended."""

    def __init__(
        self, log: EmbeddedLog, clock: Clock, most_silent: float, lost: Callable[[str], None] = lambda name: None
    ) -> None:
        self.identity = first_chain_in(log.data_dir)
        self.connections: list[WorkerConnection] = []
        self._log = log
        self._clock = clock
        self._most_silent = most_silent
        self._lost = lost
        self._encoder, self._decoder = Encoder(), Decoder()
        self._time = 0, b""  # the last time in milliseconds, and as it stands in a record
        self._trouble = ""
        self._history: Callable[[], dict[str, Any]] | None = None  # how the archive and the trims do now, as JSON
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()  # for the metadata log to be durable up to there
        self._failed = ""
        self._holding = False
        self._nodes_grown = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        embedded = [log.metadata, None, *log.queues]
        most = max(LEAST_TAIL_BYTES, TAIL_BYTES // len(embedded))
        self.partitions = {
            number: ServedPartition(number, "nodes-0" if each is None else each.name, each, most)
            for number, each in enumerate(embedded)
        }
        self._durable = [each for each in self.partitions.values() if each.log is not None]
        self._queues = [each for each in self._durable if each.number >= FIRST_QUEUE]
        first = len(embedded)
        self.counters = {first + at: CounterStore(first + at) for at in range(len(log.queues))}
        self._owners = Owners(each.number for each in self._queues)

    def start(self) -> None:
        """Begin to commit and to look after the workers."""
        self._clock.begin(max(each.last_ms for each in self._durable))
        self._log.start(self)
        self._look()

    # -- workers ------------------------------------------------------------------------------------------------------

    def connection(self) -> WorkerConnection:
        """A connection for another worker."""
        made = WorkerConnection(self)
        self.connections.append(made)
        return made

    def welcome(self, connection: WorkerConnection) -> None:
        """Tell a worker how the log is now."""
        content = {
            "identity": self.identity,
            "data": str(self._log.data_dir),
            "ends": [each.tail.durable_end for each in self.partitions.values()],
            "counters": [each.next_offset for each in self.counters.values()],
        }
        connection.write(as_json(WELCOME, content))

    def joined(self, connection: WorkerConnection) -> None:
        """The worker may have duties."""
        self._owners.joined(connection.name)
        self._tell_duties()
        if self._trouble:
            connection.write(frame(TROUBLE, 0, self._trouble.encode()))
        if self._history is not None:
            connection.write(as_json(HISTORY, self._history()))

    def tell_history(self, state: Callable[[], dict[str, Any]]) -> None:
        """Tell the workers how the archive and the trims do, and those that join later how they do then."""
        self._history = state
        told = as_json(HISTORY, state())
        for each in self.connections:
            if each.joined:
                each.write(told)
        self._flush()

    def lost(self, connection: WorkerConnection) -> None:
        """The connection of a worker ended: end its epochs."""
        self.connections.remove(connection)
        if self._closed:
            return
        for epoch, node in connection.epochs.items():
            logger.warning("worker %s ended without a good-bye: it is lost", node)
            event = NodeLost(node, epoch, "lapsed")
            for each in self._durable:
                self._append_own(each, event)
        if connection.joined:
            self._owners.left(connection.name)
            asyncio.get_running_loop().call_later(COME_BACK_SECONDS, self._give_up, connection.name)
        self.turn_over()
        self._lost(connection.name)

    def _give_up(self, name: str) -> None:
        if not self._closed and self._owners.gave_up(name):
            self._tell_duties()
            self._flush()

    def _tell_duties(self) -> None:
        for connection in self.connections:
            if connection.joined:
                numbers = self._owners.of(connection.name)
                connection.write(frame(DUTIES, 0, b"".join(each.to_bytes(2, "little") for each in numbers)))

    # -- appending ----------------------------------------------------------------------------------------------------

    def append(self, connection: WorkerConnection, number: int, payload: bytes) -> tuple[int, int]:
        """Append a batch. Returns the offset of its first record, and how many there are. Raises BadFrame."""
        served = self.partitions[number]
        skip, lengths, at = decode_batch(payload)
        now_ms = max(self._clock.now_ms(), served.last_ms)
        if now_ms != self._time[0]:
            self._time = now_ms, long_bytes(now_ms)
        time = self._time[1]
        records = []
        for length in lengths:
            records.append(time + payload[at + skip : at + length])
            at += length
        first = served.add(now_ms, records)
        if number == METADATA_NUMBER:
            for offset, record in enumerate(records, first):
                self._note_epoch(connection, offset, record)
        self._nodes_grown |= number == NODES_NUMBER
        served.tail.add(Batch(first, len(records), now_ms, payload))
        return first, len(records)

    def append_event(self, event: HistoryTrimmed, durable: Callable[[], None]) -> tuple[int, int]:
        """Append an event of the broker to the metadata log. `durable` is called when no crash takes it back.

        Returns the offset and the time of the event."""
        served = self.partitions[METADATA_NUMBER]
        self._append_own(served, event)
        self._waiting.append((served.next_offset, durable))
        self.turn_over()
        return served.next_offset - 1, served.last_ms

    def _append_own(self, served: ServedPartition, event: NodeLost | HistoryTrimmed) -> None:
        now_ms = max(self._clock.now_ms(), served.last_ms)
        record = self._encoder.encode(self._encoder.prefix(now_ms, BROKER), event)
        first = served.add(now_ms, [record])
        served.tail.add(Batch(first, 1, now_ms, encode_batch(time_bytes(record), [record])))

    def _note_epoch(self, connection: WorkerConnection, offset: int, record: bytes) -> None:
        try:
            event = self._decoder.decode(record, bodies=False)[2]
        except UndecodableRecord:
            return
        if isinstance(event, NodeJoined):
            connection.epochs[offset] = event.node
        elif isinstance(event, NodeLost):
            for each in self.connections:
                each.epochs.pop(event.epoch, None)

    def count(self, number: int, payload: bytes, entries: Sequence[tuple[bytes, bytes | None]]) -> tuple[int, int]:
        """Take counters of queues in, and send them on. Returns the offset of the first, and how many there are."""
        store, now_ms = self.counters[number], self._clock.now_ms()
        first = store.add(now_ms, entries)
        encoded = frame(COUNTED, number, PLACE.pack(first, now_ms), payload)
        for each in self.connections:
            each.pass_on(store, first, encoded)
        return first, len(entries)

    def ends(self, asked: bytes) -> bytes:
        """Return the answer to a question: the end of each partition, and the end of its durable records."""
        ends = [each.next_offset for each in self.partitions.values()]
        durable = [each.tail.durable_end for each in self.partitions.values()]
        return frame(ENDS, 0, asked, array("Q", [*ends, *durable]).tobytes())

    def turn_over(self) -> None:
        """All that a worker sent at once is taken in."""
        if self._nodes_grown:
            self._nodes_grown = False
            nodes = self.partitions[NODES_NUMBER]
            nodes.tail.landed(nodes.next_offset)
            self._serve([nodes])
        if not self._closed:
            self._log.commit()
        if self.crowded and not self._holding:
            self._holding = True
            for each in self.connections:
                each.hold()
        self._flush()

    # -- LogListener --------------------------------------------------------------------------------------------------

    def durable(self) -> None:
        """A commit landed: send what it made durable."""
        self._failed = ""
        grown = [each for each in self._durable if each.log is not None and each.tail.landed(each.log.durable_offset)]
        self._serve(grown)
        while self._waiting and self._waiting[0][0] <= self._log.metadata.durable_offset:
            self._waiting.popleft()[1]()
        if self._holding and not self.crowded:
            self._holding = False
            for each in self.connections:
                each.release()
        self._look_at_disk()
        self._flush()

    def commit_failed(self, error: Exception) -> None:
        """A commit failed, and is tried again: let workers hold their publishers back."""
        self._failed = f"the log can't be written: {error}"
        self._look_at_disk()
        self._flush()

    @property
    def crowded(self) -> bool:
        """Whether as much waits for the disk as may."""
        return self._log.crowded

    def _look_at_disk(self) -> None:
        full = f"the disk of {self._log.data_dir} is full: the log still takes acks, and publishing waits for room"
        why = self._failed or (full if self._log.full() else "")
        if why != self._trouble:
            self._trouble = why
            for each in self.connections:
                if each.joined:
                    each.write(frame(TROUBLE, 0, why.encode()))

    def serve_all(self, connection: WorkerConnection) -> None:
        """A worker reads again: send what it has missed."""
        for served in self.partitions.values():
            connection.serve(served)
        for store in self.counters.values():
            connection.serve_counters(store)
        connection.flush()

    def _serve(self, grown: Iterable[ServedPartition]) -> None:
        for served in grown:
            for connection in self.connections:
                connection.serve(served)
            served.tail.trim()

    def _flush(self) -> None:
        for connection in list(self.connections):
            connection.flush()

    # -- time ---------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Keep log time near the wall clock, and end the connections of workers that do not move any more. Looks are
        counted, not seconds: if this process stood still, no worker is to blame."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        self._clock.look()
        if self._trouble:
            self._look_at_disk()
        for each in list(self.connections):
            each.silent += each.joined and (each.congested or not self._holding)
            if each.silent * LOOK_SECONDS > self._most_silent:
                logger.error("worker %s has not moved for %d looks: it is disconnected", each.name, each.silent)
                each.abort()
        self._flush()

    def close(self) -> None:
        """Make everything appended durable, then free the directory.

        Raises LogError: not everything could be written."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for each in list(self.connections):
            each.abort()
        self._log.close()
