"""Folds a log partition into a machine: the one loop for the starting broker, `verify`, rewind and Spark.

    quarantined = QuarantineReport()
    for offset, timestamp_ms, actor, event, effects in replay(machine, blocks, decoder, quarantined): ...
    recovery = recover(log_partition, store)          # start: from the stored offset to the end of the log

Rules
- The fold goes on from `machine.next_offset`; records below it are skipped undecoded.
- A record that cannot be decoded, and an event that the machine quarantines, are listed with offset and reason and
  change nothing. Every program that folds lists the same ones (docs/design.md#one-idea).
- A fold ends with NewerHistory where the log goes on under a machine version that this code does not know.
- Replay needs only blocks of records in order. So a program that reads the log by other means can use it.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from rewindmq.projections.last_words import Behind, LastWords
from rewindmq.projections.machine.data.effects import Effect, Quarantine
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.store.store import Projector, StateStore, StoreError
from rewindmq.schemas.codec import Decoder, UndecodableRecord
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.single_object import FramedDecoder
from rewindmq.schemas.values import Actor

logger = logging.getLogger(__name__)

# While replaying, bodies are kept and released in groups of about so many effects.
GROUP_EFFECTS = 4_096


class Block(Protocol):
    """The part of `rewindmq.engine.log.contract.Block` that a fold needs."""

    @property
    def first_offset(self) -> int: ...

    @property
    def records(self) -> Sequence[bytes]: ...

    @property
    def timestamps_ms(self) -> Sequence[int] | None: ...


class PartitionLog(Protocol):
    """The part of `rewindmq.engine.log.contract.LogPartition` that a fold needs: see there."""

    name: str
    framed: bool

    @property
    def start_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]: ...

    def offset_at(self, timestamp_ms: int) -> int: ...


Step = tuple[int, int, Actor, Event, list[Effect]]
# First offset, records, and their timestamps where the log gives them (None: the envelopes' own hold).
Run = tuple[int, Sequence[bytes], Sequence[int] | None]


def decoder_for(log: PartitionLog) -> Decoder:
    return FramedDecoder() if log.framed else Decoder()


def replay(
    machine: Machine,
    blocks: Iterable[Run],
    decoder: Decoder,
    quarantined: QuarantineReport,
    end: int | None = None,
    bodies: bool = False,
) -> Iterator[Step]:
    """Fold runs of records into the machine, up to offset `end` (exclusive).

    Yields (offset, timestamp_ms, actor, event, effects) after each event was applied. The list of effects is the same
    object each time; it is emptied when the next step is asked for. `bodies` as in `Decoder.decode`."""
    effects: list[Effect] = []
    apply, decode = machine.apply, decoder.decode
    start = machine.next_offset
    for first_offset, records, timestamps_ms in blocks:
        offset = first_offset
        skip = max(0, start - first_offset)
        take = len(records) if end is None else min(len(records), end - first_offset)
        for index in range(skip, take):
            offset = first_offset + index
            try:
                timestamp_ms, actor, event = decode(records[index], bodies)
            except UndecodableRecord as error:
                machine.skip(offset)
                quarantined.add(offset, "", str(error))
                continue
            if timestamps_ms is not None:
                timestamp_ms = timestamps_ms[index]
            apply(offset, timestamp_ms, actor, event, effects)
            for effect in effects:
                if type(effect) is Quarantine:
                    quarantined.add(effect.offset, effect.event_type, effect.reason)
            yield offset, timestamp_ms, actor, event, effects
            effects.clear()


def fold(machine: Machine, log: PartitionLog, end: int | None = None) -> QuarantineReport:
    """Fold the log into the machine, up to offset `end` (exclusive; None: the end of the log).

    Bodies are not decoded."""
    quarantined = QuarantineReport()
    for _ in replay(machine, blocks_of(log, machine.next_offset, end), decoder_for(log), quarantined, end):
        pass
    return quarantined


def blocks_of(log: PartitionLog, start: int, end: int | None) -> Iterator[Run]:
    """The runs of records that `replay` takes, from a log that is read by offsets."""
    for block in log.read(start, end):
        yield block.first_offset, block.records, block.timestamps_ms


def events_of(log: PartitionLog, start: int | None = None) -> Iterator[tuple[int, int, Actor, Event]]:
    """Yields (offset, time in milliseconds, actor, event) of every record that can be decoded.

    The time is the log's own where the log has times, else the envelope's. `start`: the first offset; None: the
    beginning of the log. Raises CorruptLog, LogError."""
    decode = decoder_for(log).decode
    begin = log.start_offset if start is None else start
    for first, records, timestamps_ms in blocks_of(log, begin, None):
        for index, record in enumerate(records):
            if first + index < begin:
                continue
            try:
                timestamp_ms, actor, event = decode(record)
            except UndecodableRecord:
                continue
            yield first + index, timestamp_ms if timestamps_ms is None else timestamps_ms[index], actor, event


@dataclass(slots=True)
class Recovery:
    """A partition that is ready to go on.

    `replayed`: how many events were folded on top of the stored state. `quarantined`: the projector's list, since the
    beginning of the log. `behind`: the replayed events that stand behind a broker's last word."""

    machine: Machine
    projector: Projector
    quarantined: QuarantineReport
    stored_offset: int
    replayed: int
    behind: Sequence[Behind]


def recover(log: PartitionLog, store: StateStore) -> Recovery:
    """The partition's state at the end of its log: the stored state, with the rest of the log folded on top of it.

    The caller has to carry out only the dead letters that the machine's outboxes still hold. All earlier sessions are
    gone, and the fold learns it from the `BrokerStarted` that the caller appends next. A state that is ahead of its log
    belongs to a history that no longer exists: it is discarded.
    Raises StoreError when the store cannot be read, and CorruptLog from the log."""
    if store.applied_offset(log.name) > log.next_offset:
        logger.error(
            "%s: the state of %s is at offset %d, but its log ends at %d (it lost its end, or came from a backup): "
            "the state is folded anew from the log",
            store.path,
            log.name,
            store.applied_offset(log.name),
            log.next_offset,
        )
        store.discard(log.name)
    if not store.knows_quarantined(log.name):
        logger.info(
            "%s: the state of %s is from before skipped records were listed: it is folded anew from the log",
            store.path,
            log.name,
        )
        store.discard(log.name)
    machine, projector = store.open_partition(log.name)
    stored_offset = machine.next_offset
    if stored_offset < log.start_offset:
        raise StoreError(
            f"{store.path}: the state of {log.name} is at offset {stored_offset}, but its log begins at"
            f" {log.start_offset}: what lies between is gone; restore the state directory or the log from a backup"
        )
    words = last_words_before(log, stored_offset)
    replayed = catch_up(log, projector, None, words)
    return Recovery(machine, projector, projector.quarantine, stored_offset, replayed, words.found)


def catch_up(log: PartitionLog, projector: Projector, end: int | None, words: LastWords | None = None) -> int:
    """Fold the log on top of the projector's machine, up to offset `end` (exclusive; None: the end of the log).

    Returns the number of events. `words` sees the events, where it is given. State and bodies are written to RocksDB as
    soon as memory asks for it. If RocksDB refuses, the fold goes on without writing (`failed`)."""
    machine = projector.machine
    replayed = 0
    gathered: list[Effect] = []
    published: dict[int, Published] = {}
    blocks = blocks_of(log, machine.next_offset, end)
    for offset, _, actor, event, effects in replay(
        machine, blocks, decoder_for(log), projector.quarantine, end, bodies=True
    ):
        replayed += 1
        if isinstance(event, Published):
            published[offset] = event
        if words is not None:
            words.see(offset, actor, event)
        gathered.extend(effects)
        if len(gathered) >= GROUP_EFFECTS or len(published) >= GROUP_EFFECTS:
            _keep_up(projector, gathered, published)
    _keep_up(projector, gathered, published)
    if words is not None:
        words.end(machine.next_offset)
    return replayed


def last_words_before(log: PartitionLog, offset: int) -> LastWords:
    """The LastWords to feed with the events from `offset` on; it has already seen the event before `offset`.

    Nodes on Kafka leave no last words."""
    words = LastWords()
    if offset > log.start_offset and not log.framed:
        for first, records, _ in blocks_of(log, offset - 1, offset):
            with suppress(UndecodableRecord):
                _, actor, event = Decoder().decode(records[offset - 1 - first], False)
                words.see(offset - 1, actor, event)
    return words


def _keep_up(projector: Projector, gathered: list[Effect], published: dict[int, Published]) -> None:
    """Pass the effects on to the projector, and write a batch if memory asks for it.

    The events come from the log, so they are durable and their batch may be written at any time."""
    projector.observe(gathered, published)
    gathered.clear()
    published.clear()
    if not projector.wants_write:
        return
    if projector.failed is None:
        _write(projector)
    else:
        projector.let_go(projector.machine.next_offset)


def _write(projector: Projector) -> None:
    try:
        projector.write(projector.prepare())
    except Exception as error:  # rocksdict knows no narrower class
        if projector.failed is None:
            raise
        logger.error("%s: the state can't be written, the fold goes on: %s", projector.machine.partition, error)
        projector.let_go(projector.machine.next_offset)
