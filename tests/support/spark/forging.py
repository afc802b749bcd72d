"""A small sound history in two partitions, and forgers of it.

Events are changed, and the log is written anew, with a hash chain that holds. `claims_too`: the forger computes the
broker's claims anew, as well."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import recover
from rewindmq.projections.rules.partition_hash import number_of, partition_of
from rewindmq.projections.store.store import StateStore
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import Checkpointed, DeadLettersForwarded, Event, Published
from rewindmq.schemas.metadata_events import Bound, ExchangeDeclared
from rewindmq.schemas.values import BROKER, Actor, Origin, Route
from rewindmq.spark_replay.audit.audit import conclude, ends_of, fold_audit
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.audit.dead_letter_join import SORTED_BY
from rewindmq.spark_replay.audit.log_bytes import joined, segment_files_of, segment_rows
from rewindmq.spark_replay.audit.publishes import SessionCounts, counts_in
from rewindmq.spark_replay.fold import FoldInput, log_groups
from rewindmq.spark_replay.location.ranges import OffsetRange
from tests.support.spark.histories import Recorder

PARTITIONS = 2
WORK = "work"  # its dead letters go to DEAD, which is in another partition
DEAD = next(f"dead{n}" for n in range(99) if partition_of("/", f"dead{n}", 2) != partition_of("/", WORK, 2))
Record = tuple[int, Actor, Event]
Forger = Callable[[list[Record]], list[Record]]


@dataclass(frozen=True)
class SoundLog:
    """The offsets of the sound history. `sent` and `came` are those of the death and of the dead letter."""

    data: Path
    home: int
    away: int
    first: int  # message that is acked
    acked_at: int
    dead: int  # message that dies
    sent: int
    came: int
    left: int  # two that stay, of the same size
    empty: int  # a tick in the partition `away`


def write_sound(data: Path) -> SoundLog:
    history = Recorder(data, PARTITIONS)
    home, away = history.partition(WORK), history.partition(DEAD)
    history.metadata(ExchangeDeclared("/", "dlx", "direct", True, False, False))
    history.declare(WORK, {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "died"})
    queue_id = history.declare(DEAD)
    history.metadata(Bound("/", "dlx", "queue", DEAD, "died", (), queue_id))
    history.wait(10)
    first, dead = history.publish(WORK, b"first"), history.publish(WORK, b"to die")
    history.consume(WORK, 1, prefetch=10)
    history.claim(home)
    acked_at = history.ack(WORK, 1, first)
    history.wait(10)
    sent = history.nack(WORK, 1, dead, requeue=False)
    incarnation = next(q.queue_id for q in history.machines[home].queues() if q.name == WORK)
    came = history.append(away, BROKER, letter(incarnation, dead, 1))
    history.append(home, BROKER, DeadLettersForwarded("/", WORK, incarnation, 1))
    empty = history.tick(away)
    history.wait(10)
    left = history.publish(DEAD, b"stays 1")
    history.publish(DEAD, b"stays 2")
    history.claim(home)
    history.claim(away)
    history.close()
    return SoundLog(data, home, away, first, acked_at, dead, sent, came, left, empty)


def letter(queue_id: int, message_id: int, number: int) -> Published:
    route = Route("/", "dlx", "died", (DEAD,))
    origin = Origin("/", WORK, queue_id, message_id, "rejected", number)
    return Published(route, b"\x10\x00\x02", persistent=True, origin=origin, body=b"to die", body_size=6)


def with_state(data: Path) -> None:
    """Make a broker's RocksDB beside the log."""
    store = StateStore.open(data / "state")
    for partition in EmbeddedLogReader(data).queues:
        recovery = recover(partition, store)
        recovery.projector.write(recovery.projector.prepare())
        recovery.projector.persist()
    store.close()


def forge(true: Path, data: Path, number: int, forger: Forger, claims_too: bool) -> None:
    """Make the log of `true`, with changed events in one partition."""
    log = EmbeddedLog.open(data, partitions=PARTITIONS)
    reader, encoder = EmbeddedLogReader(true), Encoder()
    for source, target in zip((reader.metadata, *reader.queues), (log.metadata, *log.queues), strict=True):
        records = [Decoder().decode(record, True) for block in source.read() for record in block.records]
        if source.name == f"queues-{number}":
            records = forger(records)
            if claims_too:
                records = claimed_anew(source.name, records)
        for timestamp_ms, actor, event in records:
            target.append(timestamp_ms, encoder.encode(encoder.prefix(timestamp_ms, actor), event))
    log.commit_and_wait()
    log.close()
    if (true / "state").is_dir():
        shutil.copytree(true / "state", data / "state")


def claimed_anew(partition: str, records: list[Record]) -> list[Record]:
    machine = Machine(partition)
    found: list[Record] = []
    for offset, (timestamp_ms, actor, event) in enumerate(records):
        if isinstance(event, Checkpointed):
            event = Checkpointed(offset - 1, machine.digest())
        machine.apply(offset, timestamp_ms, actor, event, [])
        found.append((timestamp_ms, actor, event))
    return found


def changed(offset: int, **values: Any) -> Forger:
    return lambda records: [
        (at, actor, replace(event, **values) if number == offset else event)
        for number, (at, actor, event) in enumerate(records)
    ]


def instead(offset: int, event: Event) -> Forger:
    """Replace one event by another of the broker."""
    return lambda records: [*records[:offset], (records[offset][0], BROKER, event), *records[offset + 1 :]]


def put_in(offset: int, event: Event) -> Forger:
    return lambda records: [*records[:offset], (records[offset][0], BROKER, event), *records[offset:]]


def dropped(offset: int) -> Forger:
    return lambda records: [*records[:offset], *records[offset + 1 :]]


def swapped(offset: int) -> Forger:
    """Exchange an event with the one behind it. Times stay where they are."""

    def forger(records: list[Record]) -> list[Record]:
        (at, actor, event), (later, other_actor, other) = records[offset : offset + 2]
        return [*records[:offset], (at, other_actor, other), (later, actor, event), *records[offset + 2 :]]

    return forger


def audited(data: Path) -> list[Finding]:
    """The findings of `audit` without Spark, from its tasks and its driver's code."""
    location = InDirectory(data)
    reader = location.open()
    named = [reader.metadata.name, *(partition.name for partition in reader.queues)]
    parts = {name: segment_files_of(data, name) for name in named}
    proofs = [row for each in parts.values() for part in each for row in rows_of(segment_rows(part))]
    chains = [joined(name, each, proofs, {}, None) for name, each in parts.items()]
    sound = {finding.partition for finding in chains if finding.ok}
    reach = ends_of(reader)
    rows: list[Any] = []
    letters: list[Any] = []
    counts = counts_in(reader.metadata) if reader.metadata.name in sound else SessionCounts(())
    marks = {name: counts.marks(number_of(name)) for name in reach}
    ranges = [OffsetRange(name, 0, end) for name, end in reach.items() if name in sound]
    for name, end in reach.items():
        if name in sound:
            feed = FoldInput(OffsetRange(name, 0, end), Machine(name), log_groups(data, name, 0, end), Decoder())
            for row in rows_of(fold_audit(feed, location, reach, marks)):
                (rows if row.finding else letters).append(SimpleNamespace(**(row.finding or row.letter)))
    letters.sort(key=lambda row: tuple(getattr(row, name) for name in SORTED_BY))
    whole, metadata = len(sound) == len(named), reader.metadata.name in sound
    return chains + conclude(location, rows, lambda: letters, metadata, whole, counts, ranges)


def rows_of(batches: Iterator[Any]) -> Iterator[SimpleNamespace]:
    for batch in batches:
        yield from (SimpleNamespace(**row) for row in batch.to_pylist())


def bad(findings: list[Finding]) -> list[Finding]:
    """The first finding of each check and partition."""
    wrong = sorted((each for each in findings if not each.ok), key=lambda each: (each.check, each.partition))
    return [next(group) for _, group in groupby(wrong, key=lambda each: (each.check, each.partition))]
