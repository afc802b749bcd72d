"""A worker's view of the log that another process of the machine writes: `shared_contract.SharedLog` over a socket.

    log = ServedLog.open(socket, "rewindmq-1@localhost")

    append -> gathered, until the turn ends -> one frame for each partition -> the log's process
    OWN, RECORDS -> one `arrived` for what one read of the socket has
    SKIPPED -> a thread reads the files, in pieces -> `arrived` -> FOLLOW from there

Rules of this file
- Records are bare, as in the files. Own records arrive with the bytes that were sent; the time inside is the worker's
  then, and the time that counts stands beside it.
- History is read from the files, up to the end that the log's process has stated.
- When the log's process ends, the node fails: it cannot know what became of its records.
"""

import asyncio
import json
import socket
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader, PartitionReader
from rewindmq.engine.log.embedded.segments import record_timestamp
from rewindmq.engine.log.served.reader import records_between
from rewindmq.engine.log.served.states import FileStates
from rewindmq.engine.log.served.wire import Wire
from rewindmq.engine.log.served.wire_frames import (
    APPEND,
    ASK,
    BATCH_BYTES,
    BATCH_RECORDS,
    COUNT,
    COUNTED,
    DELIVERED,
    DUTIES,
    ENDS,
    FIRST_QUEUE,
    FOLLOW,
    HELLO,
    HISTORY,
    JOIN,
    METADATA_NUMBER,
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
    TROUBLE,
    WELCOME,
    Frame,
    decode_batch,
    decode_entries,
    encode_batch,
    encode_entries,
    frame,
    time_bytes,
)
from rewindmq.engine.log.served.worker_partition import WorkerCounters, WorkerPartition
from rewindmq.engine.log.shared_contract import REMOVED, Arrived, Listener, Placement

OPEN_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 10.0
ASK_SECONDS: Final = 1.0
PIECE_BYTES: Final = 4 << 20  # of the files, at once
NODES: Final = "nodes-0"


@dataclass(frozen=True, slots=True)
class OnThisMachine:
    """The place of a partition: the broker of all these workers has it."""

    partition: str
    leader: str
    replicas: tuple[str, ...]
    in_sync: tuple[str, ...]


class ServedLog:
    """The log of a worker. `whole`: the name of the broker that it is a part of."""

    max_record_bytes = 0  # of no use here: what a message may be, the configuration says
    left_out: Sequence[WorkerPartition] = ()

    def __init__(self, wire: Wire, name: str, whole: str, welcome: dict[str, object], states: Path) -> None:
        """Use `open` instead."""
        self._wire = wire
        self._name, self._whole = name, whole
        self.identity = str(welcome["identity"])
        self.data = Path(str(welcome["data"]))
        self.bytes_under_way = 0  # of own records that are not known to be in the log
        reader = EmbeddedLogReader(self.data)
        ends = welcome["ends"]
        assert isinstance(ends, list)
        readers = [reader.metadata, NoFiles(), *reader.queues]
        made = [WorkerPartition(self, number, each, ends[number]) for number, each in enumerate(readers)]
        self.metadata, self.nodes, self.queues = made[METADATA_NUMBER], made[NODES_NUMBER], made[FIRST_QUEUE:]
        opened_at = welcome["counters"]
        assert isinstance(opened_at, list)
        self.counters = [
            WorkerCounters(self, len(made) + at, f"counters-{at}", first) for at, first in enumerate(opened_at)
        ]
        self.states = FileStates(states)
        self.history_told: Callable[[dict[str, Any]], None] = lambda told: None  # of the archive and of trims
        self._partitions = made
        self._by_name = {each.name: each for each in made}
        self._counters_by_number = {each.number: each for each in self.counters}
        self._dirty: dict[WorkerPartition, None] = {}  # with gathered records
        self._dirty_counters: dict[WorkerCounters, None] = {}
        self._will_flush = False
        self._listener: Listener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends: dict[str, int] = {each.name: each.durable_end for each in made}
        self._asked = 0
        self._questions: dict[int, asyncio.Future[dict[str, int]]] = {}
        self._pausing: dict[int, asyncio.Future[None]] = {}
        self._reading: list[tuple[dict[str, int], asyncio.Future[None]]] = []  # offsets to reach, a waiting reader
        self._tasks: set[asyncio.Task[None]] = set()
        self._batches: dict[str, Arrived] = {}  # of this read of the socket
        self._timer: asyncio.TimerHandle | None = None
        self._failure: LogError | None = None
        self._closed = False

    @classmethod
    def open(cls, connected: socket.socket, name: str, whole: str, states: Path) -> Self:
        """Open the log at the other end of a socket, as the worker of this name. `states`: the directory of copies of
        snapshots.

        Raises LogError: the log's process does not answer, or its files cannot be read."""
        wire = Wire(connected)
        wire.write(frame(HELLO, 0, name.encode()))
        deadline = time.monotonic() + OPEN_SECONDS
        while time.monotonic() < deadline:
            for kind, _, payload in list(wire.wait(deadline)):  # nothing else comes before `follow`
                if kind == WELCOME:
                    return cls(wire, name, whole, json.loads(payload), states)
        raise LogError("the process of the log does not answer")

    # -- following ----------------------------------------------------------------------------------------------------

    async def add_partitions(self, partitions: int, only_ask: bool) -> None:
        raise LogError("a broker of several processes can't get partitions: stop it, and start it as one process first")

    def use_all(self) -> None:
        """Do nothing: nothing was left out."""

    def follow(self, offsets: Mapping[str, int], listener: Listener) -> None:
        """Follow the partitions, each from its offset, and counters from their beginning."""
        assert self._listener is None
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._wire.start(self._readable)
        start = {NODES: self.nodes.durable_end, **offsets}
        for each in self._partitions:
            each.position = start[each.name]
            self._say(FOLLOW, each.number, OFFSET.pack(each.position))
        for counters in self.counters:
            self._say(FOLLOW, counters.number, OFFSET.pack(0))
        self._say(JOIN, 0)
        self._ask_again()

    async def pause(self, name: str) -> None:
        paused = self._by_name[name]
        paused.apart = True
        paused.position = None
        paused.turn += 1
        paused.own_at.clear()
        self._tell_readers()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pausing[paused.number] = done
        self._say(PAUSE, paused.number)
        await done

    def resume(self, name: str, offset: int) -> None:
        resumed = self._by_name[name]
        assert resumed.position is None
        resumed.position = offset
        self._say(FOLLOW, resumed.number, OFFSET.pack(offset))

    async def extent(self, name: str) -> tuple[int, int]:
        ends = await self._ask()
        return await asyncio.to_thread(lambda: self._by_name[name].start_offset), ends[name]

    async def catch_up(self, name: str) -> None:
        resumed = self._by_name[name]
        ends = await self._ask()
        await self._reached({name: ends[name]})
        resumed.apart = False

    async def read_to_end(self) -> None:
        ends = await self._ask()
        await self._reached({each.name: ends[each.name] for each in self._partitions if not each.apart})

    def ends(self) -> Mapping[str, int]:
        return self._ends

    def placement(self) -> Sequence[Placement]:
        here = (self._whole,)
        return [OnThisMachine(each.name, self._whole, here, here) for each in self.queues]

    async def _ask(self) -> dict[str, int]:
        if self._failure is not None or self._closed:
            raise LogError("the log does not say where it ends: its process has ended")
        self._asked += 1
        answer: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()
        self._questions[self._asked] = answer
        self._say(ASK, 0, self._asked.to_bytes(4, "little"))
        return await answer

    def _ask_again(self) -> None:
        """Ask for the ends, and so show that this worker lives."""
        assert self._loop is not None
        self._say(ASK, 0, bytes(4))
        self._timer = self._loop.call_later(ASK_SECONDS, self._ask_again)

    async def _reached(self, ends: dict[str, int]) -> None:
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading.append((ends, arrived))
        self._tell_readers()
        await arrived

    def _tell_readers(self) -> None:
        for reading in list(self._reading):
            ends, arrived = reading
            positions = ((self._by_name[name].position, end) for name, end in ends.items())
            if all(position is None or position >= end for position, end in positions):
                self._reading.remove(reading)
                if not arrived.done():
                    arrived.set_result(None)

    # -- appending ----------------------------------------------------------------------------------------------------

    def gather(self, partition: WorkerPartition, value: bytes) -> None:
        """Send a record with the others of this turn."""
        partition.gathered.append(value)
        partition.gathered_bytes += len(value)
        self._dirty[partition] = None
        if partition.gathered_bytes >= BATCH_BYTES or len(partition.gathered) >= BATCH_RECORDS:
            self.flush()
        elif not self._will_flush:
            self._flush_soon()

    def gather_counters(self, counters: WorkerCounters, key: bytes, value: bytes | None) -> None:
        """Send a record of counters with the others of this turn."""
        counters.gathered.append((key, value))
        self._dirty_counters[counters] = None
        if not self._will_flush:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._loop is not None:
            self._will_flush = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what was gathered in this turn."""
        self._will_flush = False
        out: list[bytes] = []
        for each in self._dirty:
            out += encoded_batches(each.number, each.gathered)
            each.gathered, each.gathered_bytes = [], 0
        self._dirty.clear()
        for counters in self._dirty_counters:
            out.append(frame(COUNT, counters.number, encode_entries(counters.gathered)))
            counters.gathered = []
        self._dirty_counters.clear()
        if out:
            self._wire.write(b"".join(out))

    def _say(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame behind all that was appended."""
        self.flush()
        self._wire.write(frame(kind, number, payload))

    # -- arrivals -----------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            for each in self._wire.read():
                self._take(each)
        except LogError as error:
            self._fail(error)
            return
        self._arrived()

    def _arrived(self) -> None:
        """Give the listener what one read of the socket had."""
        if self._batches:
            batches, self._batches = list(self._batches.values()), {}
            assert self._listener is not None
            self._listener.arrived(batches)
        self._tell_readers()

    def _take(self, taken: Frame) -> None:
        kind, number, payload = taken
        if kind in (OWN, RECORDS):
            self._take_batch(self._partitions[number], kind == OWN, payload)
        elif kind == DELIVERED:
            self._take_delivered(number, *RUN.unpack(payload))
        elif kind == SKIPPED:
            self._skip(self._partitions[number], OFFSET.unpack(payload)[0])
        elif kind == COUNTED:
            self._take_counters(self._counters_by_number[number], payload)
        elif kind == ENDS:
            self._take_ends(int.from_bytes(payload[:4], "little"), payload[4:])
        elif kind == DUTIES:
            numbers = array("H", payload)
            self._arrived()  # in the order in which it came
            assert self._listener is not None
            self._listener.duties_changed(frozenset(self._partitions[each].name for each in numbers))
        elif kind == PAUSED:
            done = self._pausing.pop(number, None)
            if done is not None and not done.done():
                done.set_result(None)
        elif kind == TROUBLE:
            assert self._listener is not None
            self._listener.trouble(payload.decode() or None)
        elif kind == HISTORY:
            self.history_told(json.loads(payload))

    def _take_batch(self, partition: WorkerPartition, own: bool, payload: bytes) -> None:
        if own:
            first, time_ms, count = OWN_RUN.unpack(payload)
            values = partition.take_sent(count)
        else:
            first, time_ms = PLACE.unpack_from(payload)
            values = records_of(payload, PLACE.size)
            count = len(values)
        partition.durable_end = max(partition.durable_end, first + count)
        offsets = list(range(first, first + count))
        if own and partition.reporting:
            self._delivered(partition, offsets)
        if partition.position is None or first < partition.position or partition.number in self._pausing:
            return  # it was sent before the log's process heard of the pause
        if not own and partition.own_at:
            values = [partition.own_at.pop(at, value) for at, value in zip(offsets, values, strict=True)]
        if first != partition.position and partition is not self.nodes:
            raise LogError(f"{partition.name}: the records from offset {partition.position} to {first} did not come")
        partition.position = first + count
        self._add(Arrived(partition.name, offsets, [time_ms] * count, values))

    def _add(self, arrived: Arrived) -> None:
        before = self._batches.get(arrived.partition)
        if before is None:
            self._batches[arrived.partition] = arrived
        else:
            before.offsets += arrived.offsets
            before.timestamps_ms += arrived.timestamps_ms
            before.values += arrived.values

    def _take_delivered(self, number: int, first: int, count: int) -> None:
        counters = self._counters_by_number.get(number)
        if counters is not None:
            counters.under_way -= count
            return
        partition = self._partitions[number]
        values = partition.take_sent(count)
        partition.durable_end = max(partition.durable_end, first + count)
        if partition.position is not None:
            partition.own_at.update((at, value) for at, value in enumerate(values, first) if at >= partition.position)
        if partition.reporting:
            self._delivered(partition, list(range(first, first + count)))

    def _delivered(self, partition: WorkerPartition, offsets: list[int]) -> None:
        assert self._listener is not None
        self._listener.delivered(partition.name, offsets)

    def _take_counters(self, counters: WorkerCounters, payload: bytes) -> None:
        first, time_ms = PLACE.unpack_from(payload)
        entries = decode_entries(payload, PLACE.size)
        values = [REMOVED + key if value is None else value for key, value in entries]
        offsets = list(range(first, first + len(values)))
        self._add(Arrived(counters.name, offsets, [time_ms] * len(values), values))

    def _take_ends(self, asked: int, payload: bytes) -> None:
        found = array("Q", payload)
        count = len(self._partitions)
        ends = {each.name: end for each, end in zip(self._partitions, found[:count], strict=True)}
        for each, durable_end in zip(self._partitions, found[count:], strict=True):
            each.durable_end = max(each.durable_end, durable_end)
        self._ends = ends
        answer = self._questions.pop(asked, None)
        if answer is not None and not answer.done():
            answer.set_result(ends)

    # -- behind -------------------------------------------------------------------------------------------------------

    def _skip(self, partition: WorkerPartition, end: int) -> None:
        """Read the files up to `end`, then follow from there."""
        partition.durable_end = max(partition.durable_end, end)
        if partition.position is not None and partition.number not in self._pausing:
            task = asyncio.ensure_future(self._catch_up_from_files(partition, end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _catch_up_from_files(self, partition: WorkerPartition, end: int) -> None:
        turn, loop = partition.turn, asyncio.get_running_loop()
        assert partition.position is not None
        pieces = pieces_between(partition, partition.position, end)
        try:
            while partition.turn == turn:
                piece = await loop.run_in_executor(None, next, pieces, None)
                if piece is None or partition.turn != turn:
                    break
                first, values, times = piece
                offsets = list(range(first, first + len(values)))
                if partition.own_at:
                    values = [partition.own_at.pop(at, value) for at, value in zip(offsets, values, strict=True)]
                partition.position = first + len(values)
                self._arrived()  # what came before by the socket
                self._add(Arrived(partition.name, offsets, times, values))
                self._arrived()
        except Exception as error:  # no other code would hear of it, and the partition would stand still
            self._fail(error if isinstance(error, LogError) else LogError(f"{partition.name}: {error}"))
            return
        if partition.turn == turn and not self._closed:
            assert partition.position is not None
            self._say(FOLLOW, partition.number, OFFSET.pack(partition.position))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _fail(self, error: LogError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._stop()
        waiting: list[asyncio.Future[Any]] = [*self._questions.values(), *self._pausing.values()]
        for each in [*waiting, *(arrived for _, arrived in self._reading)]:
            if not each.done():
                each.set_exception(LogError(str(error)))
        if self._listener is not None:
            self._listener.fail(error)

    def _stop(self) -> None:
        self._wire.stop()
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Wait until every appended record is in the log, for a limited time.

        Raises LogError: some are not in the log, as far as this process knows."""
        if self._closed:
            return
        self._closed = True
        self._stop()
        for task in self._tasks:
            task.cancel()
        self.flush()
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._failure is None and (self._unsent() or self._wire.waiting) and time.monotonic() < deadline:
            self._hear_of_own(deadline)
        self._wire.close()
        left = self._unsent()
        if left:
            raise self._failure or LogError(f"the log: {left} events were appended and are not in the log")

    def _unsent(self) -> int:
        return sum(len(each.sent) for each in self._partitions)

    def _hear_of_own(self, deadline: float) -> None:
        try:
            for kind, number, payload in self._wire.wait(deadline):
                if kind == OWN:
                    self._partitions[number].take_sent(OWN_RUN.unpack(payload)[2])
                elif kind == DELIVERED and number < len(self._partitions):
                    self._partitions[number].take_sent(RUN.unpack(payload)[1])
        except LogError as error:
            self._failure = error


class NoFiles(PartitionReader):
    """Heartbeats: they are in no file."""

    def __init__(self) -> None:
        super().__init__(Path(NODES))


def encoded_batches(number: int, values: Sequence[bytes]) -> list[bytes]:
    """Frames for these records: one, if none of them is large and their times take as many bytes."""
    frames, begin, size, skip = [], 0, 0, 0
    for at, value in enumerate(values):
        here = time_bytes(value)
        if at > begin and (here != skip or size >= BATCH_BYTES or at - begin >= BATCH_RECORDS):
            frames.append(frame(APPEND, number, encode_batch(skip, values[begin:at])))
            begin, size = at, 0
        skip = here
        size += len(value)
    if values:
        frames.append(frame(APPEND, number, encode_batch(skip, values[begin:])))
    return frames


def records_of(payload: bytes, at: int) -> list[bytes]:
    """The records of a batch, as they came."""
    _, lengths, begin = decode_batch(payload, at)
    records = []
    for length in lengths:
        records.append(payload[begin : begin + length])
        begin += length
    return records


Piece = tuple[int, list[bytes], list[int]]  # the first offset, records, times


def pieces_between(partition: WorkerPartition, offset: int, end: int) -> Iterator[Piece]:
    """Yields the records of a partition's files from `offset` up to `end`, in pieces. Raises LogError."""
    runs = records_between(partition, offset, end)
    for first, records in runs:
        size = sum(map(len, records))
        while size < PIECE_BYTES and (run := next(runs, None)) is not None:
            records += run[1]
            size += sum(map(len, run[1]))
        yield first, records, [record_timestamp(record) for record in records]
