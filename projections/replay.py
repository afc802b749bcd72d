"""Folds a log partition into a machine: the one loop of recovery, `verify`, rewind, `rewindmq events` and Spark.

    drive(machine, groups, decoder, after=lambda offset, timestamp_ms, actor, event, effects: ...)
    drive(machine, groups, decoder)                                       # for the state alone
    recovery = recover(log_partition, store)                              # from the stored offset to the end of the log

    group of records -> decode -> before -> Machine.apply -> after -> the next record
                           |      `--> publishes that are alike -> Machine.apply -> run -> the next record
                           `--> undecodable

Rules
- The fold continues from `machine.next_offset`; records below it are skipped undecoded.
- A record that cannot be decoded, and an event that the machine quarantines, are listed with offset and reason and
  change nothing. Every folding program lists the same ones (docs/design.md#one-idea).
- Publishes that differ only in their bodies are applied together, and only the first of them is decoded
  (publish_runs.py). A caller that must see every event passes `after` and no `run`: the audit folds event by event.
- A fold ends with NewerHistory where the log continues under a machine version that this code does not know.
- The driver needs only groups of records in order, so a program that reads the log by other means can use it.
- Two programs apply events without the driver. The live partitions (engine/embedded, engine/cluster) have their
  appended events in memory, and do not decode them. versions/worker.py runs another version's machine.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Protocol

from rewindmq.projections.clean_stops import Behind, CleanStops
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.publish_runs import run_sizes
from rewindmq.projections.store.bases import Base
from rewindmq.projections.store.bodies import TODAY, Body, is_shared
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.store.store import Projector, StateStore, StoreError
from rewindmq.schemas.codec import Decoder, UndecodableRecord
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.evolution import event_at
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import Actor

logger = logging.getLogger(__name__)

_LIKE_THE_FIRST: Final = 24  # bytes at the front of a record, in which few records are like the one before them
# During a replay, bodies are kept and released in groups of about this many effects.
GROUP_EFFECTS = 4_096


class Block(Protocol):
    """The part of `rewindmq.engine.log.contract.Block` that a fold needs."""

    @property
    def first_offset(self) -> int: ...

    @property
    def records(self) -> Sequence[bytes]: ...

    @property
    def timestamps_ms(self) -> Sequence[int] | None: ...

    @property
    def chain(self) -> bytes: ...


class PartitionLog(Protocol):
    """The part of `rewindmq.engine.log.contract.LogPartition` that a fold needs: see there."""

    name: str
    shared: bool

    @property
    def start_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    def read(self, offset: int = 0, end: int | None = None) -> Iterator[Block]: ...

    def offset_at(self, timestamp_ms: int) -> int: ...

    def base(self) -> Base | None: ...


# Ascending offsets, their records, and their timestamps if the log has them (None: the envelopes' timestamps apply).
RecordGroup = tuple[Sequence[int], Sequence[bytes], Sequence[int] | None]
# Called with (offset, timestamp_ms, event) when the machine is about to apply an event of this type
Before = Mapping[Any, Callable[[int, int, Any], None]]
# Called with (offset, timestamp_ms, actor, event, effects) when the machine has just applied the event. The list is
# cleared after the call.
After = Callable[[int, int, Actor, Event, list[Effect]], None]
# Called with (offset, timestamp_ms, actor, event, sizes, records, effects) when the machine has just applied publishes
# that differ from `event` in their bodies alone (`Machine.apply`): those of these sizes, and of these records
Run = Callable[[int, int, Actor, Published, Sequence[int], Sequence[bytes], list[Effect]], None]
# Called with (offset, reason) when the machine has just skipped a record that cannot be decoded
Undecodable = Callable[[int, str], None]


def beginning(log: PartitionLog) -> Machine:
    """Return the state at the beginning of the log: that of its base, or an empty one.

    Raises LogError, BaseError, NewerHistory."""
    base = log.base()
    return Machine(log.name) if base is None else base.machine()


def decoder_for(log: PartitionLog) -> Decoder:
    """Return the decoder of the log's records."""
    return SharedDecoder() if log.shared else Decoder()


def drive(
    machine: Machine,
    groups: Iterable[RecordGroup],
    decoder: Decoder,
    end: int | None = None,
    *,
    before: Before | None = None,
    after: After | None = None,
    run: Run | None = None,
    undecodable: Undecodable | None = None,
    bodies: bool = False,
    stripped: bool = False,
    one_by_one: bool = False,
) -> Iterator[RecordGroup]:
    """Fold groups of records into the machine, up to offset `end` (exclusive; None: all of them).

    Returns the records from `end` on, still unread. `bodies` and `stripped` as in `Decoder.decode`.
    Successive publishes that differ only in their bodies are applied together: `run` receives them, and `after` all
    other events. Without `run`, `after` receives each event. `one_by_one`: nothing is applied together.
    A caller that passes on rows while it folds calls this for one group after another.
    Raises NewerHistory, and the errors of `groups`."""
    decode, apply = decoder.decode, machine.apply
    before_type = None if before is None else before.get
    together = not (one_by_one or stripped) and (run is not None or after is None)
    effects: list[Effect] = []
    remaining = iter(groups)
    for group in remaining:
        offsets, records, times = _between(group, machine.next_offset, end)
        index, behind = 0, len(offsets)
        while index < behind:
            offset, record = offsets[index], records[index]
            logged_ms = None if times is None else times[index]
            index += 1
            try:
                envelope_ms, actor, event = decode(record, bodies, stripped)
            except UndecodableRecord as error:
                machine.skip(offset)
                if undecodable is not None:
                    undecodable(offset, str(error))
                continue
            timestamp_ms = envelope_ms if logged_ms is None else logged_ms
            if before_type is not None and (call := before_type(type(event))) is not None:
                call(offset, timestamp_ms, event)
            if (
                together
                and index < behind
                and type(event) is Published
                and records[index].startswith(record[:_LIKE_THE_FIRST])
            ):
                first = index - 1
                sizes = run_sizes(event, offsets, records, times, first, behind)
                done = 0
                while done < len(sizes):
                    begun = done
                    done += apply(offset + begun, timestamp_ms, actor, event, effects, sizes[begun:])
                    if run is not None:
                        taken = records[first + begun : first + done]
                        run(offset + begun, timestamp_ms, actor, event, sizes[begun:done], taken, effects)
                    effects.clear()
                if done:
                    index = first + done
                    continue
            apply(offset, timestamp_ms, actor, event, effects)
            if after is not None:
                after(offset, timestamp_ms, actor, event, effects)
            if effects:
                effects.clear()
        if end is not None and (rest := _between(group, end, None))[0]:
            return chain((rest,), remaining)
    return iter(())


def _between(group: RecordGroup, start: int, end: int | None) -> RecordGroup:
    """Return the group's records from offset `start` to `end` (exclusive)."""
    offsets, records, times = group
    first, stop = bisect_left(offsets, start), len(offsets) if end is None else bisect_left(offsets, end)
    if first == 0 and stop == len(offsets):
        return group
    return offsets[first:stop], records[first:stop], None if times is None else times[first:stop]


def fold(
    machine: Machine, log: PartitionLog, end: int | None = None, quarantined: QuarantineReport | None = None
) -> QuarantineReport:
    """Fold the log into the machine, up to offset `end` (exclusive; None: the end of the log).

    Bodies are not decoded. `quarantined`: the report to continue; None: a new one. Returns it."""
    quarantined, decoder = quarantined or QuarantineReport(), decoder_for(log)
    drive(
        machine,
        groups_of(log, machine.next_offset, end),
        decoder,
        end,
        after=quarantined.see,
        run=quarantined.see_run,
        undecodable=quarantined.note_undecodable,
    )
    return quarantined


def groups_of(log: PartitionLog, start: int, end: int | None = None) -> Iterator[RecordGroup]:
    """Yield the log's blocks as groups. The first and the last may extend past `start` and `end`, as blocks do.

    Raises CorruptLog, LogError."""
    for block in log.read(start, end):
        first = block.first_offset
        yield range(first, first + len(block.records)), block.records, block.timestamps_ms


def events_of(log: PartitionLog, start: int | None = None) -> Iterator[tuple[int, int, Actor, Event]]:
    """Yield (offset, time in milliseconds, actor, event) of every record that can be decoded.

    The time is the log's own if it has times, otherwise the envelope's. `start`: the first offset; None: the beginning
    of the log. Raises CorruptLog, LogError."""
    decode = decoder_for(log).decode
    begin = log.start_offset if start is None else start
    for offsets, records, times in groups_of(log, begin):
        for index in range(bisect_left(offsets, begin), len(offsets)):
            try:
                timestamp_ms, actor, event = decode(records[index])
            except UndecodableRecord:
                continue
            yield offsets[index], timestamp_ms if times is None else times[index], actor, event


@dataclass(slots=True)
class Recovery:
    """A partition that is ready to continue.

    `replayed`: the number of events folded on top of the stored state. `quarantined`: the projector's list, since the
    beginning of the log. `behind`: the replayed events that follow a broker's last word."""

    machine: Machine
    projector: Projector
    quarantined: QuarantineReport
    stored_offset: int
    replayed: int
    behind: Sequence[Behind]


def recover(log: PartitionLog, store: StateStore) -> Recovery:
    """Return the partition's state at the end of its log: the stored state, with the rest of the log folded on top.

    The caller must carry out only the dead letters that the machine's outboxes still hold. All earlier sessions are
    gone, which the fold learns from the `BrokerStarted` that the caller appends next. A state that is ahead of its log
    belongs to a history that no longer exists, and is discarded. A state that is older than the log is replaced by the
    base at the beginning of the log.
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
    if store.applied_offset(log.name) < log.start_offset:
        begin_with_base(log, store)
    machine, projector = store.open_partition(log.name)
    stored_offset = machine.next_offset
    words = last_words_before(log, stored_offset)
    replayed = catch_up(log, projector, None, words)
    return Recovery(machine, projector, projector.quarantine, stored_offset, replayed, words.found)


def begin_with_base(log: PartitionLog, store: StateStore) -> None:
    """Replace the stored state, which is older than the log, by the base at the log's beginning.

    Raises StoreError if there is no base, LogError if it cannot be used."""
    base = log.base()
    if base is None:
        advice = "restore the state directory or the log from a backup"
        if log.shared:
            advice = "start the node with --archive, if the history is archived"
        raise StoreError(
            f"{store.path}: the state of {log.name} is at offset {store.applied_offset(log.name)}, but its log begins"
            f" at {log.start_offset}: what lies between is gone; {advice}"
        )
    logger.info("%s: the state begins with the base at offset %d", log.name, base.offset)
    store.begin(base, decoder_for(log))


def catch_up(log: PartitionLog, projector: Projector, end: int | None, words: CleanStops | None = None) -> int:
    """Fold the log on top of the projector's machine, up to offset `end` (exclusive; None: the end of the log).

    Returns the number of events. `words`, if given, sees the events. State and bodies are written to RocksDB as soon as
    memory requires it. If RocksDB refuses, the fold continues without writing (`failed`)."""
    machine, decoder = projector.machine, decoder_for(log)
    begun = machine.next_offset
    gathered: list[Effect] = []
    published: dict[int, Body] = {}
    see = None if words is None else words.see
    applied = 0

    def after(offset: int, _timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        nonlocal applied
        applied += 1
        if type(event) is Published:
            published[offset] = event
        if see is not None:
            see(offset, actor, event)
        gathered.extend(effects)
        if len(gathered) >= GROUP_EFFECTS or len(published) >= GROUP_EFFECTS:
            _keep_up(projector, gathered, published)

    def run(
        offset: int,
        _timestamp_ms: int,
        actor: Actor,
        event: Published,
        sizes: Sequence[int],
        records: Sequence[bytes],
        effects: list[Effect],
    ) -> None:
        nonlocal applied
        applied += len(sizes)
        if is_shared(event):
            for at, (record, size) in enumerate(zip(records, sizes, strict=True), offset):
                published[at] = replace(event, body=record[len(record) - size :], body_size=size)
        else:
            stamp, begin = TODAY.stamp, event_at(records[0])
            published.update(enumerate([stamp + record[begin:] for record in records], offset))
        if see is not None:
            see(offset, actor, event)  # the others of the run are like it
        gathered.extend(effects)
        if len(gathered) >= GROUP_EFFECTS or len(published) >= GROUP_EFFECTS:
            _keep_up(projector, gathered, published)

    note = projector.quarantine.note_undecodable
    groups = groups_of(log, begun, end)
    drive(machine, groups, decoder, end, after=after, run=run, undecodable=note, bodies=True)
    _keep_up(projector, gathered, published)
    if words is not None:
        words.end(machine.next_offset)
    return applied


def last_words_before(log: PartitionLog, offset: int) -> CleanStops:
    """Return the CleanStops for the events from `offset` on; it has already seen the event before `offset`.

    Nodes on Kafka leave no last words."""
    words = CleanStops()
    if offset > log.start_offset and not log.shared:
        for offsets, records, _ in groups_of(log, offset - 1, offset):
            with suppress(UndecodableRecord):
                _, actor, event = Decoder().decode(records[offset - 1 - offsets[0]], False)
                words.see(offset - 1, actor, event)
    return words


def _keep_up(projector: Projector, gathered: list[Effect], published: dict[int, Body]) -> None:
    """Pass the effects on to the projector, and write a batch if memory asks for it.

    The events come from the log, so they are durable and their batch may be written at any time."""
    projector.quarantine.note(gathered)
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
