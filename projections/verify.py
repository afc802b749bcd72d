"""Verifies RocksDB's state against the log: folds the log anew and compares both at RocksDB's offset.

    for report in verify(log.queues, data_dir / "state"): report.equal, report.differences

For each partition it compares the canonical digest of all queues, the state that belongs to no queue, the quarantined
records, and the body of every message in a queue or its outbox, byte for byte with the log's (B-09). A difference names
queue and key. `verify` runs beside a stopped broker, and beside a running one, whose last persisted state it sees. It
starts from the beginning of the log, or from the base there, and trusts no snapshot. Memory: the folded state, and 8
bytes a message.
"""

import heapq
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rewindmq.projections.clean_stops import Behind
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import (
    PartitionLog,
    decoder_for,
    drive,
    events_of,
    fold,
    groups_of,
    last_words_before,
)
from rewindmq.projections.rewind import TrimmedMeanwhile, oldest
from rewindmq.projections.store import keys
from rewindmq.projections.store.bodies import TODAY, without_queues
from rewindmq.projections.store.holders import SharedBodies
from rewindmq.projections.store.projector import live_ids
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.older_schemas import of_today
from rewindmq.schemas.values import Actor

# Begins a result if nothing was compared; the reason follows.
NOT_CHECKED = "not checked: "
NOTHING_STORED = "nothing is stored yet: a broker stores its state every 10,000 events and when it stops"
OLDER = "what is stored is older than the history, whose beginning was trimmed: a start goes on from the base"
# The limit of listed differences for a partition; further ones are only counted.
LISTED_DIFFERENCES = 1_000


@dataclass(frozen=True, slots=True)
class StateDifference:
    """A piece of the stored state that differs from the log.

    `queue`: `vhost/name`, empty for state that belongs to no queue. `key`: the key, for people. `what`: the fault.
    `message_id`: the message, if the piece is a message's body."""

    queue: str
    key: str
    what: str
    message_id: int | None = None


@dataclass(slots=True)
class Verification:
    """The result for one partition.

    `offset`: the offset of both states. `in_runs`: the number of events that were applied together with others
    (`Machine.apply`). `messages`: the number of compared bodies. `stored`: True if the store holds anything of the
    partition. A partition with nothing stored does not differ, because a broker writes now and then, and rebuilds
    unwritten state. `older`: the stored state is older than the base at the log's beginning; then `stored` is False.
    `behind`: the events after a broker's last word, in the whole log, which are not a difference either."""

    partition: str
    offset: int
    stored: bool
    older: bool = False
    in_runs: int = 0
    queues: int = 0
    messages: int = 0
    difference_count: int = 0
    differences: list[StateDifference] = field(default_factory=list)
    quarantined: QuarantineReport = field(default_factory=QuarantineReport)
    behind: list[Behind] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Return True if no difference was found."""
        return self.difference_count == 0

    @property
    def result(self) -> str:
        """Return the result in words."""
        if not self.equal:
            return f"{self.difference_count} differences"
        return "equal" if self.stored else NOT_CHECKED + (OLDER if self.older else NOTHING_STORED)

    def differs(self, queue: str, key: str, what: str, message_id: int | None = None) -> None:
        """Count a difference, and list it if the list has room."""
        self.difference_count += 1
        if len(self.differences) < LISTED_DIFFERENCES:
            self.differences.append(StateDifference(queue, key, what, message_id))


def verify(logs: Iterable[PartitionLog], state: Path, event_by_event: bool = False) -> list[Verification]:
    """Verify the partitions of a state directory. `event_by_event`: nothing is applied together.

    Raises StoreError if the directory cannot be opened or is ahead of the log, OutsideHistory if the beginning of the
    log is gone without a base, and CorruptLog from the log."""
    store = StateStore.open(state, read_only=True)
    try:
        return [verify_partition(log, store, event_by_event=event_by_event) for log in logs]
    finally:
        store.close()


def stored_offset(log: PartitionLog, store: StateStore) -> int:
    """Return the offset of the stored state.

    Raises StoreError when it is ahead of the log."""
    offset = store.applied_offset(log.name)
    if offset > log.next_offset:
        raise StoreError(
            f"{store.path}: the state of {log.name} is at offset {offset}, but its log ends at {log.next_offset}"
        )
    return offset


def verify_state(machine: Machine, log: PartitionLog, store: StateStore) -> Verification:
    """Verify only the state, without bodies and quarantined records.

    The fold continues from `machine`, a snapshot at or before `stored_offset`. The caller vouches for it."""
    report = _begun(log, store)
    fold(machine, log, report.offset)
    report.queues = len(machine.by_id)
    if report.stored:
        _compare_state(machine, store, report)
    return report


def verify_partition(
    log: PartitionLog, store: StateStore, begun: Machine | None = None, event_by_event: bool = False
) -> Verification:
    """Verify the state, the quarantined records and the bodies of a partition.

    `begun`: a snapshot at or before `stored_offset` to begin the fold with; the caller vouches for it. The list of
    quarantined records is compared only by a fold from the beginning. `event_by_event` as in `verify`."""
    report = _begun(log, store)
    fresh, decoder = begun or oldest(log), decoder_for(log)
    behind = report.offset < fresh.next_offset
    if behind:
        report.offset, report.older, report.stored = fresh.next_offset, report.stored, False
    from_zero = fresh.next_offset == 0
    words = last_words_before(log, fresh.next_offset)
    quarantined = report.quarantined

    def after(offset: int, _timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        words.see(offset, actor, event)
        quarantined.note(effects)

    def run(
        offset: int,
        _timestamp_ms: int,
        actor: Actor,
        event: Published,
        sizes: Sequence[int],
        _records: Sequence[bytes],
        effects: list[Effect],
    ) -> None:
        words.see(offset, actor, event)  # the others of the run are like it
        quarantined.note(effects)
        report.in_runs += len(sizes)

    groups = groups_of(log, fresh.next_offset, report.offset)
    note = quarantined.note_undecodable
    run_seen = None if event_by_event else run
    drive(fresh, groups, decoder, report.offset, after=after, run=run_seen, undecodable=note)
    for offset, _, actor, event in events_of(log, report.offset):
        words.see(offset, actor, event)
    words.end(log.next_offset)
    report.behind = words.found
    if not behind:
        compare_all(fresh, log, store, report, from_zero)
    return report


def _begun(log: PartitionLog, store: StateStore) -> Verification:
    return Verification(log.name, stored_offset(log, store), store.holds(log.name))


def compare_all(fresh: Machine, log: PartitionLog, store: StateStore, report: Verification, from_zero: bool) -> None:
    """Compare the state, the bodies and, of a fold from offset 0, the quarantined records.

    `fresh`: the fold, at `report.offset`. `report.quarantined`: the records that it quarantined."""
    if report.stored:
        _compare_state(fresh, store, report)
    if report.stored and from_zero:
        _compare_quarantined(store, report, log.shared)
    queues = fresh.by_id
    report.queues = len(queues)
    live = {queue_id: live_ids(queue) for queue_id, queue in queues.items()}
    _compare_bodies(log, store, queues, live, report)
    _find_leftovers(store, queues, live, report)


def _name(queue: Queue | None) -> str:
    return "" if queue is None else f"{queue.vhost}/{queue.name}"


def _compare_state(fresh: Machine, store: StateStore, report: Verification) -> None:
    try:
        stored = store.load(fresh.partition)
    except StoreError:
        _compare_pieces(fresh, store, report)
        return
    if fresh.digest() != stored.digest() or fresh.head() != stored.head():
        _compare_pieces(fresh, store, report)


def _compare_pieces(fresh: Machine, store: StateStore, report: Verification) -> None:
    """Report every piece of state that is stored wrongly."""
    prefix = keys.partition_prefix(fresh.partition)
    queues = fresh.by_id
    expected = {keys.head(prefix): fresh.head()}
    for queue_id, meta, chunks in fresh.pieces():
        expected[keys.queue(prefix, queue_id)] = meta
        for number, packed in chunks.items():
            expected[keys.chunk(prefix, queue_id, number)] = packed
    found: set[bytes] = set()
    try:
        for kind in (b"Q", b"C"):
            found.update(key for key, _ in store.scan(prefix + kind))
    except Exception as error:  # rocksdict knows no narrower class
        report.differs("", fresh.partition, f"cannot be scanned: {error}")
    for key in sorted(expected.keys() | found):
        queue = None if key == keys.head(prefix) else queues.get(keys.queue_id_of(key, prefix))
        wanted = expected.get(key)
        stored = _get(store, key, queue, prefix, report)
        if stored is not None and stored != wanted:
            what = "should not be there" if wanted is None else _first_difference(stored, wanted)
            report.differs(_name(queue), keys.describe(key, prefix), what)


def _compare_quarantined(store: StateStore, report: Verification, of_node: bool) -> None:
    """Compare the quarantined records. `of_node`: the state of a node on Kafka may have begun with one in the archive,
    and then lists only later records."""
    what = f"{report.partition} quarantined records"
    try:
        stored = store.quarantined(report.partition)
    except StoreError as error:
        report.differs("", what, str(error))
        return
    by_the_log = report.quarantined
    if of_node and stored.count < by_the_log.count and stored.newest() == by_the_log.newest(stored.count):
        return
    if stored.count != by_the_log.count:
        report.differs("", what, f"{stored.count} counted, {by_the_log.count} by the log")
    elif stored.newest() != by_the_log.newest():
        pairs = zip(stored.newest(), by_the_log.newest(), strict=True)
        one, other = next((one, other) for one, other in pairs if one != other)
        report.differs("", what, f"listed is {one}, by the log it is {other}")


def _get(
    store: StateStore,
    key: bytes,
    queue: Queue | None,
    prefix: bytes,
    report: Verification,
    message_id: int | None = None,
) -> bytes | None:
    """Return the stored value. If it is missing or unreadable, return None and report a difference."""
    try:
        stored = store.get(key)
    except StoreError as error:
        report.differs(_name(queue), keys.describe(key, prefix), str(error), message_id)
        return None
    if stored is None:
        report.differs(_name(queue), keys.describe(key, prefix), "is missing", message_id)
    return stored


def _first_difference(stored: bytes, wanted: bytes) -> str:
    shorter = min(len(stored), len(wanted))
    at = next((i for i in range(shorter) if stored[i] != wanted[i]), shorter)
    return f"differs from byte {at} on ({len(stored)} bytes stored, {len(wanted)} by the log)"


def _read(stored: bytes) -> bytes:
    """Return a stored body in today's form, or unchanged if it cannot be read."""
    try:
        return of_today(stored)
    except UndecodableRecord:
        return stored


def _pairs(ids: "array[int]", queue_id: int) -> Iterator[tuple[int, int]]:
    for message_id in ids:
        yield message_id, queue_id


def _compare_bodies(
    log: PartitionLog, store: StateStore, queues: dict[int, Queue], live: "dict[int, array[int]]", report: Verification
) -> None:
    """Compare the stored bodies with the log's, or its base's, by reading the log once more with the bodies of live
    messages, in order."""
    prefix = keys.partition_prefix(log.name)
    decoder = decoder_for(log)
    wanted = heapq.merge(*[_pairs(ids, queue_id) for queue_id, ids in live.items()])
    following = next(wanted, None)
    counted = _counts(store, report)
    shared = live[keys.SHARED] = array("q")

    def compare(message_id: int, queue_id: int, record: bytes) -> None:
        report.messages += 1
        home = keys.SHARED if message_id in counted else queue_id
        if home == keys.SHARED:
            counted[message_id] -= 1
            if shared and shared[-1] == message_id:  # its only body was already compared
                return
            shared.append(message_id)
        _, _, event = decoder.decode(record)
        assert isinstance(event, Published), f"{log.name}: message {message_id} was never published"
        key = keys.message(prefix, home, message_id)
        stored = _get(store, key, queues[queue_id], prefix, report, message_id)
        by_the_log = TODAY.of(without_queues(event) if home == keys.SHARED else event)
        if stored is not None and (found := _read(stored)) != by_the_log:
            what = _first_difference(found, by_the_log)
            report.differs(_name(queues[queue_id]), keys.describe(key, prefix), what, message_id)

    base = log.base() if following is not None and following[0] < log.start_offset else None
    while base is not None and following is not None and following[0] < base.offset:
        record = base.record(following[0])
        if record is None:  # the message was queued before this base, and no longer at it
            assert base.offset > report.offset, f"{base.path}: it holds each message that is queued there"
            raise TrimmedMeanwhile(f"{log.name} was trimmed up to offset {base.offset} while it was verified")
        compare(*following, record)
        following = next(wanted, None)
    groups = iter(()) if following is None else groups_of(log, following[0], report.offset)
    for offsets, records, _ in groups:
        while following is not None and following[0] <= offsets[-1]:
            compare(*following, records[following[0] - offsets[0]])
            following = next(wanted, None)
        if following is None:
            break
    for message_id, difference in counted.items():
        if difference:
            key = keys.message(prefix, keys.SHARED, message_id)
            report.differs("", keys.describe(key, prefix), f"{difference:+} holders counted", message_id)


def _counts(store: StateStore, report: Verification) -> dict[int, int]:
    """Return the stored number of queues that hold each shared message."""
    prefix = keys.partition_prefix(report.partition)
    try:
        pages = [(keys.message_id_of(key), packed) for key, packed in store.scan(prefix + b"S")]
        return dict(SharedBodies(pages).counts())
    except Exception as error:  # damaged bytes can fail in any way at all
        report.differs("", f"{report.partition} holders of shared messages", f"cannot be read: {error}")
        return {}


def _find_leftovers(
    store: StateStore, queues: dict[int, Queue], live: "dict[int, array[int]]", report: Verification
) -> None:
    """Report bodies that are no longer needed: they do the queue no harm, but should not exist."""
    prefix = keys.partition_prefix(report.partition)
    queue_id = -1
    remaining: Iterator[int] = iter(())
    following: int | None = None
    try:
        for key, _ in store.scan(prefix + b"M"):
            if keys.queue_id_of(key, prefix) != queue_id:
                queue_id = keys.queue_id_of(key, prefix)
                remaining = iter(live.get(queue_id, array("q")))
                following = next(remaining, None)
            message_id = keys.message_id_of(key)
            while following is not None and following < message_id:
                following = next(remaining, None)
            gone = queue_id in queues and queues[queue_id].gone  # its bodies are removed when its outbox is empty
            if message_id != following and not gone:
                name = _name(queues.get(queue_id))
                report.differs(name, keys.describe(key, prefix), "should not be there", message_id)
    except Exception as error:  # rocksdict knows no narrower class; `_compare_bodies` has named the keys
        report.differs("", f"{report.partition} message", f"cannot be scanned: {error}")
