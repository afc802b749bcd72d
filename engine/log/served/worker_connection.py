"""The connection of one worker, at the log's process: what it follows, and what it has not been told yet.

A partition of the log is at a worker in one of two ways:

    followed       each batch is sent when it is durable: OWN for those of the worker, RECORDS for those of others
    not followed   DELIVERED for the worker's own batches, and nothing else

Rules of this file
- A worker that is further behind than the tail of a partition gets SKIPPED, and follows no longer. It reads the files
  up to there and sends FOLLOW again. So no buffer here grows with what a worker has not read.
- While `HIGH_BYTES` wait for a worker, nothing more is sent to it, and nothing is read from it.
- Each own batch is told once, by OWN or by DELIVERED.
"""

import asyncio
import logging
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from rewindmq.engine.log.served.counters import CounterStore
from rewindmq.engine.log.served.wire_frames import (
    APPEND,
    ASK,
    COUNT,
    DELIVERED,
    FOLLOW,
    HELLO,
    JOIN,
    NODES_NUMBER,
    OFFSET,
    OWN,
    OWN_RUN,
    PAUSE,
    PAUSED,
    PLACE,
    RECORDS,
    RUN,
    SKIPPED,
    BadFrame,
    Frames,
    decode_entries,
    frame,
)

if TYPE_CHECKING:
    from rewindmq.engine.log.served.server import LogServer, ServedPartition

HIGH_BYTES: Final = 4 << 20
WRITE_BYTES: Final = 262_144

logger = logging.getLogger(__name__)


class WorkerConnection(asyncio.Protocol):
    """`name`: the worker's, when it has said it. `epochs`: those that it began and that are not over."""

    def __init__(self, server: "LogServer") -> None:
        self.name = ""
        self.epochs: dict[int, str] = {}
        self.joined = False
        self.silent = 0  # looks since something came from it
        self.closed = False
        self.congested = False
        self._server = server
        self._frames = Frames()
        self._following: dict[int, int] = {}  # by partition: the number of the next batch to send
        self._own: dict[int, deque[tuple[int, int]]] = {}  # by partition: own batches not told yet
        self._counted: dict[int, int] = {}  # by partition of counters: the next offset to send
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._held = False  # nothing is read from it

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        self.silent = 0
        try:
            for kind, number, payload in self._frames.feed(data):
                self._take(kind, number, payload)
        except (BadFrame, KeyError, ValueError, struct.error) as error:
            logger.error("worker %s: it sent what cannot be read, and is disconnected: %s", self.name, error)
            self._transport.abort()
        self._server.turn_over()

    def pause_writing(self) -> None:
        self.congested = True
        self.hold()

    def resume_writing(self) -> None:
        self.congested = False
        self._server.serve_all(self)
        self.release()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._server.lost(self)

    # -- what the worker says -----------------------------------------------------------------------------------------

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == APPEND:
            first, count = self._server.append(self, number, payload)
            self._own.setdefault(number, deque()).append((first, count))
        elif kind == COUNT:
            first, count = self._server.count(number, payload, decode_entries(payload))
            self.write(frame(DELIVERED, number, RUN.pack(first, count)))
        elif kind == FOLLOW:
            (offset,) = OFFSET.unpack(payload)
            self._follow(number, offset)
        elif kind == PAUSE:
            self._following.pop(number, None)
            self.serve(self._server.partitions[number])
            self.write(frame(PAUSED, number))
        elif kind == ASK:
            self.write(self._server.ends(payload))
        elif kind == HELLO:
            self.name = payload.decode()
            self._server.welcome(self)
        elif kind == JOIN:
            self.joined = True
            self._server.joined(self)
        else:
            raise BadFrame(f"a frame of kind {kind}")

    def _follow(self, number: int, offset: int) -> None:
        store = self._server.counters.get(number)
        if store is not None:
            self._counted[number] = offset
            self.serve_counters(store)
            return
        served = self._server.partitions[number]
        at = served.tail.number_at(offset)
        if at is None and number == NODES_NUMBER:
            at = served.tail.first
        if at is None:
            self._skip(served)
        else:
            self._following[number] = at
            self.serve(served)

    # -- what it is told ----------------------------------------------------------------------------------------------

    def serve(self, served: "ServedPartition") -> None:
        """Send what is durable of a partition and was not sent yet."""
        if self._takes_nothing():
            return
        number, tail = served.number, served.tail
        at = self._following.get(number)
        if at is None:
            self._tell_own(number, tail.durable_end)
            return
        if at < tail.first:
            self._skip(served)
            return
        own = self._own.get(number)
        while at < tail.ready:
            batch = tail.by_number[at]
            at += 1
            if own and own[0][0] == batch.first:
                own.popleft()
                self.write(frame(OWN, number, OWN_RUN.pack(batch.first, batch.time_ms, batch.count)))
            else:
                self.write(frame(RECORDS, number, PLACE.pack(batch.first, batch.time_ms), batch.payload))
            if self._out_bytes >= WRITE_BYTES:
                self.flush()
                if self._takes_nothing():
                    break
        self._following[number] = at

    def serve_counters(self, store: CounterStore) -> None:
        """Send the counters that were not sent yet."""
        at = self._counted.get(store.number)
        if at is None or at == store.next_offset:
            return
        for end, encoded in store.frames_from(at):
            if self._takes_nothing():
                return
            self.write(encoded)
            self._counted[store.number] = end
            if self._out_bytes >= WRITE_BYTES:
                self.flush()
        self._counted[store.number] = store.next_offset

    def pass_on(self, store: CounterStore, first: int, encoded: bytes) -> None:
        """Send counters that came just now, if the worker has all before them."""
        if self._counted.get(store.number) == first and not self.congested:
            self.write(encoded)
            self._counted[store.number] = store.next_offset

    def _takes_nothing(self) -> bool:
        return self.congested or self.closed

    def _skip(self, served: "ServedPartition") -> None:
        """Let the worker read the files up to the durable end."""
        if served.number == NODES_NUMBER:  # it has read nothing for so long that it counts as lost
            self._transport.abort()
            return
        self._following.pop(served.number, None)
        end = served.tail.durable_end
        self._tell_own(served.number, end)
        self.write(frame(SKIPPED, served.number, OFFSET.pack(end)))

    def _tell_own(self, number: int, end: int) -> None:
        own = self._own.get(number)
        while own and own[0][0] < end:
            self.write(frame(DELIVERED, number, RUN.pack(*own.popleft())))

    def write(self, encoded: bytes) -> None:
        """Send this at the end of the turn."""
        self._out.append(encoded)
        self._out_bytes += len(encoded)

    def flush(self) -> None:
        """Send what waits for the end of the turn."""
        if self._out and not self.closed:
            self._transport.write(b"".join(self._out))
        self._out.clear()
        self._out_bytes = 0

    # -- holding it back ----------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Read nothing from the worker for now."""
        if not self._held and not self._transport.is_closing():
            self._held = True
            self._transport.pause_reading()

    def release(self) -> None:
        """Read from the worker again, unless it does not read or the log has no room."""
        if self._held and not self._transport.is_closing() and not self.congested and not self._server.crowded:
            self._held = False
            self.silent = 0
            self._transport.resume_reading()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()
