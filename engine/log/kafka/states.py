"""Copies of snapshots in Kafka: the newest one of each queue partition, for a node without its own.

    <prefix>.states     N partitions, like the queues' topic     snapshot -> pieces -> a final record

    key     a JSON list of two: the copy's id, and the piece's number from 0 on, or -1 for the last record
    value   a piece of the snapshot's file; of the last record JSON: format, offset, claim, pieces, bytes, sha256

The owner of a partition writes copies (engine/cluster/snapshot_export.py). The topic is not part of the history: it may
be deleted, and the next owner with a snapshot remakes it.

- A copy counts once its last record is written. Kafka then drops earlier copies, so a partition holds one copy, and
  perhaps an unfinished one.
- Two owners may write at once. Each copy has an id by which a reader tells their pieces apart.
- A reader trusts nothing that it reads here (engine/cluster/snapshot_import.py).
"""

import hashlib
import json
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from confluent_kafka import KafkaError, KafkaException, Message

from rewindmq import failpoints
from rewindmq.engine.log.contract import BelowStart, LogError
from rewindmq.engine.log.kafka.clients import KafkaClients, text_of
from rewindmq.engine.log.kafka.reader import KafkaPartition
from rewindmq.engine.log.kafka.topics import KafkaTopics
from rewindmq.engine.log.shared_contract import StateCopied, WritingStopped
from rewindmq.projections import system_calls
from rewindmq.schemas.formats import formatted, values_in

PIECE_BYTES: Final = 524_288  # less than the mebibyte that Kafka accepts by default
END: Final = -1
OVERTAKEN: Final = 2  # the number of times that a reader begins anew because an owner has dropped its copy
MOST_OPEN: Final = 2  # copies that a reader assembles at once; the oldest one is abandoned for a third
NONSENSE: Final = (ValueError, KeyError, TypeError, OverflowError, RecursionError)  # for arbitrary JSON
_QUEUE_KBYTES: Final = 8_192  # of pieces that wait for Kafka
_SENT_MS: Final = 30_000  # a piece that is not in Kafka by then ends the copy
_POLL_SECONDS: Final = 0.1

logger = logging.getLogger(__name__)


class KafkaStates:
    """The topic of copies (`shared_contract.StateTopic`). `partitions`: the number in the queues' topic."""

    def __init__(self, clients: KafkaClients, topics: KafkaTopics, partitions: int) -> None:
        self._clients = clients
        self._topics = topics
        self._partitions = partitions

    def write(self, number: int, offset: int, claim: int, file: BinaryIO, stopping: Callable[[], bool]) -> None:
        self._topics.create_states(self._partitions)
        first = _Writing(self._clients, self._topics.states, number, stopping).write(offset, claim, file)
        partition = self._partition(number)
        if partition.start_offset < first:
            partition.delete_below(first)

    def newest(self, number: int, least: int, directory: Path) -> StateCopied | None:
        if not self._topics.has_states(number):
            return None
        for _ in range(OVERTAKEN):
            with suppress(BelowStart):
                return self._read(number, least, directory)
        return self._read(number, least, directory)

    def _read(self, number: int, least: int, directory: Path) -> StateCopied | None:
        partition = self._partition(number)
        reading = _Reading(directory, least)
        try:
            for messages in partition.batches(partition.start_offset, partition.next_offset):
                for message in messages:
                    reading.take(message)
        finally:
            reading.close()
        return reading.newest

    def _partition(self, number: int) -> KafkaPartition:
        return KafkaPartition(self._clients, self._topics.states, number, f"states-{number}")


class _Writing:
    """A copy on its way to Kafka, with its own producer, because the log's producer has no room for it."""

    def __init__(self, clients: KafkaClients, topic: str, number: int, stopping: Callable[[], bool]) -> None:
        self._topic = topic
        self._number = number
        self._stopping = stopping
        self._id = uuid.uuid4().hex
        self._first: int | None = None
        self._error: KafkaError | None = None
        self._producer = clients.producer(
            {
                "queue.buffering.max.kbytes": _QUEUE_KBYTES,
                "message.timeout.ms": _SENT_MS,
                "enable.gapless.guarantee": False,
                "delivery.report.only.error": False,
                "on_delivery": self._reported,
            }
        )

    def write(self, offset: int, claim: int, file: BinaryIO) -> int:
        """Write the copy, and return the offset of its first piece. Raises as `KafkaStates.write`."""
        try:
            count, size, sha = 0, 0, hashlib.sha256()
            for piece in iter(lambda: file.read(PIECE_BYTES), b""):
                self._send(count, piece)
                count, size = count + 1, size + len(piece)
                sha.update(piece)
            self._wait()  # no last record without the pieces
            failpoints.reached("copy.before_end")
            said = {"offset": offset, "claim": claim, "pieces": count, "bytes": size, "sha256": sha.hexdigest()}
            self._send(END, formatted(said).encode())
            self._wait()
        finally:
            self._producer.purge()
        assert self._first is not None, "every piece is in Kafka"
        return self._first

    def _send(self, number: int, value: bytes) -> None:
        key = json.dumps([self._id, number], allow_nan=False).encode()
        while True:
            self._check()
            try:
                self._producer.produce(self._topic, value, key, self._number)
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(_POLL_SECONDS)
            except KafkaException as error:
                raise LogError(f"Kafka: {self._topic}: {text_of(error)}") from error

    def _wait(self) -> None:
        while self._producer.flush(_POLL_SECONDS):
            self._check()
        self._check()

    def _check(self) -> None:
        if self._stopping():
            raise WritingStopped
        if self._error is not None:
            raise LogError(f"Kafka: {self._topic}: {text_of(self._error)}")

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._error = self._error or error
        elif self._first is None:
            self._first = message.offset()


class _CopyPieces:
    """The pieces of one copy received so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pieces = 0
        self.bytes = 0
        self._sha = hashlib.sha256()
        self._file = path.open("wb")

    def add(self, piece: bytes) -> None:
        self._file.write(piece)
        self._sha.update(piece)
        self.pieces += 1
        self.bytes += len(piece)

    def is_whole(self, said: dict[str, int | str]) -> bool:
        """Return True if all pieces have arrived unchanged; the file is then on the disk."""
        found = {"pieces": self.pieces, "bytes": self.bytes, "sha256": self._sha.hexdigest()}
        if any(said.get(name) != value for name, value in found.items()):
            return False
        self._file.flush()
        system_calls.sync(self._file.fileno())
        self._file.close()
        return True

    def remove(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


class _Reading:
    """The assembly of pieces in the order of the topic. `newest`: the newest whole copy so far."""

    def __init__(self, directory: Path, least: int) -> None:
        self.newest: StateCopied | None = None
        self._directory = directory
        self._least = least
        self._parts: dict[str, _CopyPieces] = {}  # by the copy's id

    def take(self, message: Message) -> None:
        copy, number = _named(message.key())
        value = message.value() or b""
        if number == 0 and copy not in self._parts:
            if len(self._parts) == MOST_OPEN:
                self._parts.pop(next(iter(self._parts))).remove()
            self._parts[copy] = _CopyPieces(self._directory / f"{len(self._parts)}-{message.offset()}.part")
        part = self._parts.get(copy)
        if part is None:
            return
        if number == part.pieces:
            part.add(value)
        elif number == END:
            del self._parts[copy]
            self._end(part, f"Kafka: {message.topic()} partition {message.partition()}", value)

    def _end(self, part: _CopyPieces, place: str, value: bytes) -> None:
        try:
            said = values_in(value, place, LogError)
            offset, claim = int(said["offset"]), int(said["claim"])
            whole = part.is_whole(said)
        except NONSENSE:
            whole = False
        except LogError as error:
            logger.warning("%s: the copy is passed over", error)
            whole = False
        newest = -1 if self.newest is None else self.newest.offset
        if not whole or offset < max(self._least, newest):
            part.remove()
            return
        if self.newest is not None:
            self.newest.path.unlink()
        self.newest = StateCopied(offset, claim, part.path)

    def close(self) -> None:
        for part in self._parts.values():
            part.remove()


def _named(key: bytes | str | None) -> tuple[str, int]:
    """Return the copy's id and the piece's number; -2: the record is not ours."""
    try:
        copy, number = json.loads(key or b"")
        return str(copy), int(number)
    except NONSENSE:
        return "", -2
