"""The seals of a log in Kafka, in a separate topic, to which only the sealer has to write.

    <prefix>.chain    partition 0: a line of JSON each, the seal (seal.py)
                      partition 1: its digest (32 bytes), and its opening, with the secret (commitments.py)

A record is sealed as its timestamp (milliseconds, 8 bytes, big-endian; the fold goes by Kafka's times) and its value.
An offset without a record, for example at the end of a transaction, is sealed as empty, so every offset has a leaf in
the tree. A seal states the hash chain after the last whole group (engine/log/chain.py) at its end or before.
"""

import dataclasses
import struct
from collections.abc import Iterator
from functools import cached_property

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from rewindmq.engine.keeping.seals.seal import BadSeal, StoredSeal, parsed_line
from rewindmq.engine.keeping.seals.sealer import Harm, Run
from rewindmq.engine.keeping.topic_tiers import TieredTopic, TieredTopics
from rewindmq.engine.log.chain import TopicChain, first_chain, group_start
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.engine.log.kafka.clients import TIMEOUT_SECONDS, text_of
from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition
from rewindmq.engine.log.kafka.topics import MAX_MESSAGE_BYTES

CHAIN, OPENINGS = "chain-0", "chain-1"
_NEAR = 8  # another sealer may have interleaved its openings
_TIME = struct.Struct(">q")


class ChainTopic:
    """The topic of the seals, which are read once."""

    def __init__(self, log: KafkaLogReader | TieredTopics) -> None:
        self._log = log
        self.names = {each.name for each in (log.metadata, *log.queues)}
        self.topic = log.topics.chain
        self._partition = KafkaPartition(log.clients, self.topic, 0, CHAIN)
        self._openings = KafkaPartition(log.clients, self.topic, 1, OPENINGS)
        self._refusals: list[KafkaError] = []
        self._is_made = False

    @cached_property
    def seals(self) -> tuple[list[StoredSeal], list[Harm]]:
        """Return the seals of all partitions, in the order in which they were made, and damaged ones."""
        return self.seals_from(0)[:2] if self.exists else ([], [])

    @property
    def exists(self) -> bool:
        """Return True if the topic exists."""
        return self._log.topics.has_chain()

    def seals_from(self, start: int) -> tuple[list[StoredSeal], list[Harm], int]:
        """Return the seals from an offset of the topic on, damaged ones, and the offset after them."""
        found: list[StoredSeal] = []
        harms: list[Harm] = []
        end = self._partition.next_offset
        for block in self._partition.read(start, end):
            for offset, value in enumerate(block.records, block.first_offset):
                try:
                    found.append(parsed_line(value, f"{self.topic} offset {offset}", offset))
                except BadSeal as bad:
                    harms.append(Harm(CHAIN, offset, str(bad)))
        return found, harms, end

    def opening(self, stored: StoredSeal) -> bytes:
        """Return the opening of a seal; empty if it is gone."""
        if stored.opening_at is None or not self.exists:
            return b""
        digest, at = bytes.fromhex(stored.seal.digest), stored.opening_at
        for start, end in ((at, at + 1), (at - _NEAR, at + _NEAR)):
            for block in self._openings.read(max(0, start), end):
                for value in block.records:
                    if value.startswith(digest):
                        return value[len(digest) :]
        return b""

    def append(self, sealed: StoredSeal, opening: bytes) -> StoredSeal:
        """Write a seal and its opening.

        Raises LogError, also when the topic would lose its records."""
        if not self._is_made:
            self._log.topics.create_chain()
            self._is_made = True
        self._append(1, sealed, bytes.fromhex(sealed.seal.digest) + opening)
        placed = dataclasses.replace(sealed, opening_at=self._openings.next_offset - 1)
        self._append(0, placed, placed.line.encode())
        return placed

    def _append(self, number: int, sealed: StoredSeal, value: bytes) -> None:
        try:
            self._producer.produce(self.topic, value, sealed.seal.partition.encode(), number)
            left = self._producer.flush(TIMEOUT_SECONDS)
        except KafkaException as error:
            raise LogError(f"Kafka: {self.topic} accepts no seal: {text_of(error)}") from error
        if self._refusals:
            raise LogError(f"Kafka: {self.topic} accepts no seal: {text_of(self._refusals[0])}")
        if left:
            self._producer.purge()
            raise LogError(f"Kafka: {self.topic} has accepted no seal within {TIMEOUT_SECONDS:.0f} seconds")

    @cached_property
    def _producer(self) -> Producer:
        settings = {"message.max.bytes": MAX_MESSAGE_BYTES, "on_delivery": self._refused}
        return self._log.clients.producer(settings)

    def _refused(self, error: KafkaError, _: Message) -> None:
        """Note an undeliverable record; only these are reported."""
        self._refusals.append(error)


class SealableTopicPartition:
    """A partition in Kafka. Implements `rewindmq.engine.keeping.seals.sealer.Sealable`."""

    log = "kafka"
    value_at = _TIME.size

    def __init__(self, partition: KafkaPartition | TieredTopic, chain: ChainTopic) -> None:
        self.name = partition.name
        self._partition = partition
        self._chain = chain

    @property
    def beginning(self) -> tuple[int, bytes]:
        """Return offset 0, because `walk` refuses topics that have lost their beginning."""
        return 0, first_chain(self.name)

    @property
    def next_offset(self) -> int:
        return self._partition.next_offset

    def walk(self, start: int, end: int | None, chain: bytes) -> Iterator[Run]:
        """Yield the records in their sealed form.

        Raises BadSeal, before anything is read, if the history to be sealed has lost its beginning."""
        begins, high = self._partition.start_offset, self._partition.next_offset
        if end is None and begins > 0:
            raise BadSeal(f"{self.name}: its history begins at offset {begins}: the records before it are gone")
        end = high if end is None else min(end, high)
        offset, links = start, TopicChain(group_start(start), chain)
        for block in self._partition.read(links.offset, end):
            assert block.timestamps_ms is not None
            for at, (time_ms, value) in enumerate(zip(block.timestamps_ms, block.records, strict=True)):
                links.add(block.first_offset + at, time_ms, value)
            behind = block.first_offset + len(block.records)
            links.ends_at(behind)
            if behind > start:
                records = [b""] * max(0, block.first_offset - offset)
                skipped = max(0, start - block.first_offset)
                times = map(_TIME.pack, block.timestamps_ms[skipped:])
                records += [time + value for time, value in zip(times, block.records[skipped:], strict=True)]
                yield Run(offset, records, links.chain)
                offset = behind
        if offset < end:
            links.ends_at(end)
            yield Run(offset, [b""] * (end - offset), links.chain)

    def seals(self) -> tuple[list[StoredSeal], list[Harm]]:
        """Return the seals of this partition. The metadata log's also reports seals of partitions that do not exist."""
        stored, harms = self._chain.seals
        mine = [each for each in stored if each.seal.partition == self.name]
        if self.name == METADATA:
            return mine, harms + [
                Harm(CHAIN, each.at, f"{each.where}: a seal of a partition that does not exist")
                for each in stored
                if each.seal.partition not in self._chain.names
            ]
        return mine, []

    def opening(self, stored: StoredSeal) -> bytes:
        return self._chain.opening(stored)

    def make_durable(self) -> None:
        """Do nothing, because every readable record is durable."""

    def store(self, sealed: StoredSeal, opening: bytes) -> StoredSeal:
        return self._chain.append(sealed, opening)


def in_topics(reader: KafkaLogReader, archive: str | None = None) -> list[SealableTopicPartition]:
    """Return the partitions of a log in Kafka. `archive`: the URL of the archive with the records that left Kafka.

    Raises LogError when there is no log."""
    log = reader if archive is None else TieredTopics(reader, archive)
    chain = ChainTopic(log)
    return [SealableTopicPartition(each, chain) for each in (log.metadata, *log.queues)]


def split_time(record: bytes) -> tuple[int, bytes]:
    """Return (milliseconds, value) of a record in its sealed form."""
    return _TIME.unpack_from(record)[0], record[_TIME.size :]
