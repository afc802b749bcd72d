"""Writes the fold of one partition to RocksDB, after the fold, and returns message bodies.

A body is in exactly one of these places:

    fresh       kept since the last `prepare`; it may be released again before RocksDB sees it
    in flight   part of a prepared batch that waits for its log offset to be durable
    RocksDB     written; a bounded number of these bodies is also in the read-ahead cache

Rules
- Queues of the partition share one body of a message that was routed to several of them. It is stored under `SHARED`
  instead of a queue's id. Its holders are counted (holders.py), and the last one to leave releases it.
- `prepare` captures the machine and the bodies at one offset, `boundary`. If a message below the boundary leaves its
  queue, the next batch deletes it, whether or not the batch that holds it has been written. A message at or above the
  boundary cannot be in RocksDB (ids are offsets); it costs one dict entry, which is added and removed.
- Within a batch deletes precede puts, and the applied offset is included. After a crash the state is at the offset of
  some batch, and that batch is whole; the log is ahead of it.
- Memory is bounded, however long a queue is: `wants_write` bounds the fresh bodies, and the cache's limit bounds the
  cached ones.
- A failed write is not repeated, because RocksDB has consumed the batch. From then on (`failed`) no batch is prepared
  or written, and bodies that the log has are released. projections/store/repair.py repairs the store.
"""

from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from rocksdict import WriteBatch

from rewindmq.projections.machine.data.effects import (
    DeadLetter,
    Deliver,
    Effect,
    FetchReply,
    Forget,
    Keep,
    QueueGone,
    Release,
)
from rewindmq.projections.machine.data.reasons import DELETED
from rewindmq.projections.machine.events.removal import removable
from rewindmq.projections.machine.rules.versions import schema_of
from rewindmq.projections.store import keys
from rewindmq.projections.store.bodies import (
    MESSAGE_OVERHEAD_BYTES,
    STORED_OVERHEAD_BYTES,
    TODAY,
    Body,
    BodyCache,
    Form,
    is_shared,
    size_of,
    without_queues,
)
from rewindmq.projections.store.holders import SharedBodies
from rewindmq.projections.store.keys import SHARED
from rewindmq.projections.store.rocks import Database, StoreError
from rewindmq.schemas.events import Published
from rewindmq.schemas.inheritance import mypyc_attr

if TYPE_CHECKING:
    from rewindmq.projections.machine.data.queue import Queue
    from rewindmq.projections.machine.machine import Dirty, Machine
    from rewindmq.projections.store.quarantine import QuarantineReport

# Bytes for a message id that waits for its delete, and then for the delete in the batch.
LEAVING_OVERHEAD_BYTES: Final = 40
# A longer run of ids is deleted as a range, which costs readers more than a few deletes.
SPAN_DELETED: Final = 64
# The broker should write when RocksDB has not seen this many bytes; about 3,500 small messages.
FRESH_BYTES = 2 * 1024 * 1024
# `message` reads ahead in a queue up to whichever limit is reached first.
READ_AHEAD_MESSAGES = 256
READ_AHEAD_BYTES: Final = 1024 * 1024
# RocksDB's memtables are flushed after this many events, so that a crash replays less than a second's worth of log.
PERSIST_EVENTS = 100_000


class Batch:
    """The changes up to `offset`, the machine's next_offset when the batch was prepared. A batch is written once."""

    def __init__(self, offset: int, changes: WriteBatch, bodies: dict[int, dict[int, Body]]) -> None:
        self.offset = offset
        self.changes = changes
        self.bodies = bodies


class BodyWatch(Protocol):
    """A watch of the bodies that a projector keeps (key_watch.py)."""

    def kept(self, queue_id: int, message_id: int, message: Published) -> None:
        """Note an encrypted message that the projector keeps."""


@mypyc_attr(allow_interpreted_subclasses=True)  # tests watch it
class Projector:
    """The writer of one partition's fold, and keeper of its bodies: see the head of this file.

    Not thread-safe: use it in the broker's loop, or in a tool's single thread. The constructor raises a plain Exception
    if RocksDB cannot be read."""

    def __init__(
        self,
        db: Database,
        machine: "Machine",
        quarantine: "QuarantineReport",
        cache_bytes: int,
    ) -> None:
        self.machine = machine
        self.quarantine = quarantine  # all quarantined records, stored or not
        self.cache = BodyCache(cache_bytes)
        self.pending_bytes = 0  # not yet in a batch, estimated
        self._db = db
        self._prefix = keys.partition_prefix(machine.partition)
        self._written, self._written_for = TODAY, 0  # the form of bodies for a machine version; 0: none
        self._fresh: dict[int, dict[int, Body]] = {}  # queue id -> message id -> message
        self._boundary = machine.next_offset
        self._leaving: dict[int, array[int]] = {}  # queue id -> message ids to delete with the next batch
        self._in_flight: list[Batch] = []
        self._shared = self._stored_counts()
        self._shared_ahead = 1  # bodies: the next read-ahead of shared ones
        self._behind_shared = -1  # the shared message after those that were read ahead last
        self._persisted = machine.next_offset
        self.watch: BodyWatch | None = None  # receives each encrypted message that is kept
        self.missing = 0  # bodies that RocksDB should have, but only the log has
        self.changed: set[int] | None = None  # ids of written queues, for a reader that empties it

    def _stored_counts(self) -> SharedBodies:
        pages = self._db.scan(self._prefix + b"S")
        return SharedBodies((keys.message_id_of(key), packed) for key, packed in pages)

    # -- quarantined records -------------------------------------------------------------------------------------------

    def quarantined(self, offset: int, event_type: str, reason: str) -> None:
        """Note a quarantined record, before the next `prepare`.

        The program that folds calls this once for each `Quarantine` effect, and once for each record that could not be
        decoded (`event_type` empty)."""
        self.quarantine.add(offset, event_type, reason)

    @property
    def quarantine_count(self) -> int:
        """Return the number of records that were quarantined in this partition."""
        return self.quarantine.count

    # -- when RocksDB has failed ---------------------------------------------------------------------------------------

    @property
    def failed(self) -> Exception | None:
        """Return the error after which RocksDB accepts no writes until the store is repaired; None: there was none."""
        return self._db.failed

    def let_go(self, durable_offset: int) -> None:
        """Release the bodies that the log has, all below `durable_offset`, because the store has failed."""
        self._leaving.clear()
        for held in (self._fresh, *(batch.bodies for batch in self._in_flight)):
            for queue_id, bodies in list(held.items()):
                rest = {message_id: body for message_id, body in bodies.items() if message_id >= durable_offset}
                if rest:
                    held[queue_id] = rest
                else:
                    del held[queue_id]
        self.pending_bytes = sum(size_of(bodies.values()) for bodies in self._fresh.values())

    def write_whole(self) -> None:
        """Write this machine's layout of chunks over the stored one, and continue from here.

        The store holds this partition's fold at the machine's offset, by another projector. Fails as `write`."""
        changes = WriteBatch(raw_mode=True)
        dirty = self.machine.take_dirty()
        self.changed = None  # unknown which ones
        changes.put(keys.head(self._prefix), dirty.head)
        for queue_id, meta, chunks in self.machine.pieces():
            first = keys.chunks(self._prefix, queue_id)
            changes.delete_range(first, keys.past(first))
            changes.put(keys.queue(self._prefix, queue_id), meta)
            for number, packed in chunks.items():
                changes.put(keys.chunk(self._prefix, queue_id, number), packed)
        changes.put(keys.applied(self._prefix), self.machine.next_offset.to_bytes(8, "big"))
        self._db.write(changes)
        for _ in self.quarantine.unwritten():  # the other projector has written them
            pass
        self._fresh, self._leaving, self._in_flight = {}, {}, []
        self._shared = self._stored_counts()
        self.pending_bytes = 0
        self._boundary = self.machine.next_offset
        self.persist()

    def write_anew(
        self, read: Callable[[bytes], bytes | None], shared: Container[int] | None = None
    ) -> tuple[int, int]:
        """Write the machine's whole state, and the bodies of its messages, into a database that has none of them.

        `read` returns the value of a key of the damaged database. `shared`: the messages whose bodies are shared; None:
        this projector knows them. Returns the number of bodies written, and the number neither in memory nor readable,
        which the log has. Fails as `write`."""
        changes = WriteBatch(raw_mode=True)
        written = missing = size = 0
        known, counted = self._shared if shared is None else shared, SharedBodies()
        for queue_id, queue in self.machine.by_id.items():
            for message_id in live_ids(queue):
                home = queue_id
                if message_id in known:
                    home, met = SHARED, message_id in counted
                    counted.hold(message_id, 1)
                    if met:
                        continue
                key = keys.message(self._prefix, home, message_id)
                value = self._held(home, message_id) or _readable(read, key)
                if value is None:
                    missing += 1
                    continue
                changes.put(key, value)
                written += 1
                size += len(value)
                if size >= FRESH_BYTES:
                    self._db.write(changes)
                    changes, size = WriteBatch(raw_mode=True), 0
        self._put_counts(changes, counted)
        changes.put(keys.quarantine_count(self._prefix), self.quarantine.count.to_bytes(8, "big"))
        self.quarantine.write_again()
        for slot, entry in self.quarantine.unwritten():
            changes.put(keys.quarantined(self._prefix, slot), entry)
        self._db.write(changes)
        self.write_whole()
        self.missing = missing
        return written, missing

    def _held(self, queue_id: int, message_id: int) -> bytes | None:
        """Return the stored form of a message in memory; None: it is not there."""
        for held in (self._fresh, *(batch.bodies for batch in self._in_flight)):
            message = held.get(queue_id, _NOTHING).get(message_id)
            if message is not None:
                return self.form(queue_id, message)
        return None

    def form(self, queue_id: int, message: Body) -> bytes:
        """Return the message for RocksDB, in a form for programs that know only the machine's version."""
        version = self.machine.machine_version
        if version != self._written_for:
            schema = schema_of(version)
            self._written, self._written_for = TODAY if schema == TODAY.schema else Form(schema), version
        if isinstance(message, bytes):
            if self._written is TODAY or not message.startswith(TODAY.stamp):
                return message
            return self._written.of(self.cache.decoded(message))
        return self._written.of(without_queues(message) if queue_id == SHARED else message)

    # -- which bodies to hold -----------------------------------------------------------------------------------------

    def observe(self, effects: Sequence[Effect], published: Mapping[int, Body]) -> None:
        """Keep and release bodies as the effects say, in the same way in the live broker and in replay.

        `published`: the messages that were published by the events behind these effects, by offset (= message id); in
        the form in which RocksDB has them, or as messages. The rule: a body is kept from `Keep` until the message has
        left its queue (`Forget`, or a `Deliver` / `FetchReply` that is `final`) and no dead letter of it waits in the
        outbox (`DeadLetter` keeps it, `Release` releases it). `QueueGone` releases all bodies of the queue: at once, or
        as soon as its outbox is empty."""
        forgets: list[Forget] = []
        letters: dict[int, set[int]] = {}  # by queue id
        released: list[Release] = []
        gone: list[Queue] = []
        shared: dict[int, int] = {}  # message -> the number of queues that hold it, of those not yet counted
        for effect in effects:
            if isinstance(effect, Deliver):
                if effect.final and not effect.passed:
                    self._count_shared(shared)
                    self.forget(effect.queue.queue_id, effect.message_ids)
            elif isinstance(effect, Keep):
                self._keep(effect, published, shared)
            elif isinstance(effect, Forget):
                if effect.reason != DELETED:
                    forgets.append(effect)
                elif shared or not self._shared.empty:
                    self._count_shared(shared)
                    self._release(effect.message_ids)
            elif isinstance(effect, FetchReply):
                if effect.final and effect.message_id >= 0:
                    self._count_shared(shared)
                    self.forget(effect.queue.queue_id, (effect.message_id,))
            elif isinstance(effect, DeadLetter):
                letters.setdefault(effect.queue.queue_id, set()).update(effect.message_ids)
            elif isinstance(effect, Release):
                released.append(effect)
            elif isinstance(effect, QueueGone):
                gone.append(effect.queue)
        self._count_shared(shared)
        self._let_leave(forgets, letters, released, gone)

    def _keep(self, effect: Keep, published: Mapping[int, Body], shared: dict[int, int]) -> None:
        """Keep the bodies of messages that arrive in a queue."""
        ids, watch = effect.message_ids, self.watch
        first, queue_id = published[ids[0]], effect.queue.queue_id
        if not isinstance(first, bytes) and is_shared(first):
            queue_id = SHARED
            for message_id in ids:
                shared[message_id] = shared.get(message_id, 0) + 1
        fresh = self._fresh.get(queue_id)
        if fresh is None:
            fresh = self._fresh[queue_id] = {}
        for message_id in ids:
            if queue_id == SHARED and message_id in fresh:
                continue
            message = fresh[message_id] = published[message_id]
            if isinstance(message, bytes):
                self.pending_bytes += len(message) + STORED_OVERHEAD_BYTES
                continue
            self.pending_bytes += message.body_size + MESSAGE_OVERHEAD_BYTES
            if watch is not None and message.encryption is not None:
                watch.kept(queue_id, message_id, message)

    def _count_shared(self, shared: dict[int, int]) -> None:
        """Count the queues that hold these messages."""
        for message_id, holders in shared.items():
            self._shared.hold(message_id, holders)
        shared.clear()

    def _let_leave(
        self, forgets: list[Forget], letters: dict[int, set[int]], released: list[Release], gone: list["Queue"]
    ) -> None:
        """Release the bodies of `forgets` but for `letters` (by queue id), of letters that were `released`, and
        of `gone` queues."""
        for forget in forgets:
            queue_id = forget.queue.queue_id
            waiting = letters.get(queue_id)
            ids = forget.message_ids
            self.forget(queue_id, ids if waiting is None else [each for each in ids if each not in waiting])
        for release in released:  # after the forgets, because the same effects may make a letter and release it
            self.forget(release.queue.queue_id, release.message_ids)
        for queue in gone:
            if not len(queue.outbox):
                self._forget_queue(queue.queue_id)

    def forget(self, queue_id: int, message_ids: Iterable[int]) -> None:
        """Release the bodies of messages that left the queue; no dead letter needs them any longer."""
        take = (self._fresh.get(queue_id) or _NOTHING).pop
        sharing = queue_id != SHARED and not self._shared.empty
        boundary = self._boundary
        freed_bytes = 0
        written: list[int] = []
        for message_id in message_ids:
            message = take(message_id, None)
            if message is not None:
                if isinstance(message, bytes):
                    freed_bytes += len(message) + STORED_OVERHEAD_BYTES
                else:
                    freed_bytes += message.body_size + MESSAGE_OVERHEAD_BYTES
            elif message_id < boundary or sharing:
                written.append(message_id)
        self.pending_bytes -= freed_bytes
        if written and sharing:
            written = [message_id for message_id in self._release(written) if message_id < boundary]
        if written:
            self.delete(queue_id, written)

    def _release(self, message_ids: Iterable[int]) -> list[int]:
        """Note that a queue released these messages, if they are shared. Return the others."""
        gone, others = self._shared.release(message_ids)
        if gone:
            self.forget(SHARED, gone)
        return others

    def delete(self, queue_id: int, message_ids: list[int]) -> None:
        """Delete, with the next batch, bodies that RocksDB has or will have once the batches in flight are written."""
        leaving = self._leaving.get(queue_id)
        if leaving is None:
            leaving = self._leaving[queue_id] = array("q")
        leaving.extend(message_ids)
        self.pending_bytes += len(message_ids) * LEAVING_OVERHEAD_BYTES
        for batch in self._in_flight:
            bodies = batch.bodies.get(queue_id)
            if bodies:
                for message_id in message_ids:
                    bodies.pop(message_id, None)
        self.cache.drop(queue_id, message_ids)

    def _forget_queue(self, queue_id: int) -> None:
        fresh = self._fresh.pop(queue_id, _NOTHING)
        self.pending_bytes -= size_of(fresh.values())
        leaving = self._leaving.pop(queue_id, ())
        self.pending_bytes -= len(leaving) * LEAVING_OVERHEAD_BYTES
        for batch in self._in_flight:
            batch.bodies.pop(queue_id, None)
        self.cache.drop_queue(queue_id)

    # -- reading bodies -----------------------------------------------------------------------------------------------

    def message(self, queue_id: int, message_id: int) -> Published:
        """Return a kept message from memory or RocksDB, which is read ahead in the order of ids, bounded by bytes.

        Raises KeyError if the message was not kept."""
        queue_id = self._home(queue_id, message_id)
        cached = self.cache.get(queue_id, message_id)
        if cached is not None:
            return cached
        fresh = self._fresh.get(queue_id)
        if fresh is not None and message_id in fresh:
            return self._message_of(fresh[message_id])
        for batch in self._in_flight:
            bodies = batch.bodies.get(queue_id)
            if bodies is not None and message_id in bodies:
                return self._message_of(bodies[message_id])
        return self._read_ahead(queue_id, message_id)

    def _home(self, queue_id: int, message_id: int) -> int:
        """Return the queue id under which the body is stored."""
        return SHARED if not self._shared.empty and message_id in self._shared else queue_id

    def _message_of(self, body: Body) -> Published:
        return self.cache.decoded(body) if isinstance(body, bytes) else body

    def _read_ahead(self, queue_id: int, message_id: int) -> Published:
        """Read the message and those after it, because a queue is mostly read in the order of its ids.

        The number of shared messages doubles each time, as long as those read ahead were the ones needed."""
        most = READ_AHEAD_MESSAGES
        if queue_id == SHARED:
            most = min(most, 2 * self._shared_ahead) if message_id == self._behind_shared else 1
            self._shared_ahead = most
        first = keys.messages(self._prefix, queue_id)
        start = first + message_id.to_bytes(8, "big")
        found: dict[int, Body] = {}
        room = READ_AHEAD_BYTES
        try:
            for key, value in self._db.scan(first, start):
                if not found and key != start:
                    break
                found[keys.message_id_of(key)] = value
                room -= len(value)
                if room <= 0 or len(found) >= most:
                    break
        except Exception as error:  # rocksdict knows no narrower class
            if not found:
                key_text = keys.describe(start, self._prefix)
                raise StoreError(f"{key_text} cannot be read ({error}); `rewindmq verify` tells more") from error
            # damage further on is reported when the damaged message itself is requested
        if not found:
            raise KeyError(keys.describe(start, self._prefix))
        if queue_id == SHARED:
            self._behind_shared = self._shared.following(next(reversed(found)))
        self.cache.add(queue_id, found)
        return self.cache.decoded(cast(bytes, found[message_id]))

    def in_memory(self) -> Iterator[tuple[int, int, Body]]:
        """Yield the bodies that RocksDB does not have yet: queue id, message id, body."""
        for held in (self._fresh, *(batch.bodies for batch in self._in_flight)):
            for queue_id, bodies in held.items():
                for message_id, body in bodies.items():
                    yield queue_id, message_id, body

    def leaving(self, queue_id: int) -> frozenset[int]:
        """Return the ids of the messages that have left the queue while RocksDB still has their bodies."""
        return frozenset(self._leaving.get(queue_id, ()))

    def stored(self, queue_id: int, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield ids and stored messages of a queue in RocksDB, from the id `start` on. Some may be about to go.

        Raises a plain Exception of RocksDB."""
        first = keys.messages(self._prefix, queue_id)
        for key, value in self._db.scan(first, first + start.to_bytes(8, "big")):
            yield keys.message_id_of(key), value

    def has(self, queue_id: int, message_id: int) -> bool:
        """Return True if the message's body is kept, in memory or in RocksDB. Raises a plain Exception of RocksDB."""
        queue_id = self._home(queue_id, message_id)
        for held in (self._fresh, *(batch.bodies for batch in self._in_flight)):
            if message_id in held.get(queue_id, _NOTHING):
                return True
        if message_id in self._leaving.get(queue_id, ()):
            return False
        return self._db.get(keys.message(self._prefix, queue_id, message_id)) is not None

    # -- writing ------------------------------------------------------------------------------------------------------

    @property
    def wants_write(self) -> bool:
        """Return True if memory holds enough bytes that the next batch should be prepared soon."""
        return self.pending_bytes >= FRESH_BYTES

    def prepare(self) -> Batch:
        """Return the changes since the last call, with their offset.

        Every effect of the machine so far must have been observed. Write batches in the order in which they were
        prepared, each as soon as the log is durable up to it."""
        changes = WriteBatch(raw_mode=True)
        offset = self.machine.next_offset
        dirty = self.machine.take_dirty()
        for queue_id in dirty.gone:
            self._delete_queue(changes, queue_id)
        for queue_id, message_ids in self._leaving.items():
            first = keys.messages(self._prefix, queue_id)
            for since, past in keys.spans(sorted(message_ids)):
                if past - since > SPAN_DELETED:  # no id between them is missing
                    changes.delete_range(first + since.to_bytes(8, "big"), first + past.to_bytes(8, "big"))
                else:
                    for message_id in range(since, past):
                        changes.delete(first + message_id.to_bytes(8, "big"))
        self._put_state(changes, dirty)
        self._put_counts(changes, self._shared)
        changes.put(keys.applied(self._prefix), offset.to_bytes(8, "big"))
        self._put_bodies(changes)  # last, because a put after a large body makes RocksDB move that to a larger buffer
        batch = Batch(offset, changes, self._fresh)
        self._in_flight.append(batch)
        self._fresh, self._leaving = {}, {}
        self.pending_bytes = 0
        self._boundary = offset
        return batch

    def _put_bodies(self, changes: WriteBatch) -> None:
        for queue_id, bodies in self._fresh.items():
            first = keys.messages(self._prefix, queue_id)
            for message_id, message in bodies.items():
                changes.put(first + message_id.to_bytes(8, "big"), self.form(queue_id, message))

    def _put_counts(self, changes: WriteBatch, counts: SharedBodies) -> None:
        for first, packed in counts.packed():
            if packed:
                changes.put(keys.shared(self._prefix, first), packed)
            else:
                changes.delete(keys.shared(self._prefix, first))

    def _put_state(self, changes: WriteBatch, dirty: "Dirty") -> None:
        prefix = self._prefix
        changes.put(keys.head(prefix), dirty.head)
        changes.put(keys.quarantine_count(prefix), self.quarantine.count.to_bytes(8, "big"))
        for slot, entry in self.quarantine.unwritten():
            changes.put(keys.quarantined(prefix, slot), entry)
        if self.changed is not None:
            self.changed.update([queue.queue_id for queue in dirty.queues])
        for queue in dirty.queues:
            changes.put(keys.queue(prefix, queue.queue_id), queue.meta)
            for number in queue.vanished:
                changes.delete(keys.chunk(prefix, queue.queue_id, number))
            for number, packed in queue.chunks.items():
                changes.put(keys.chunk(prefix, queue.queue_id, number), packed)

    def _delete_queue(self, changes: WriteBatch, queue_id: int) -> None:
        self._forget_queue(queue_id)
        if queue_id < self._boundary:  # otherwise the queue was never in RocksDB
            changes.delete(keys.queue(self._prefix, queue_id))
            for first in (keys.chunks(self._prefix, queue_id), keys.messages(self._prefix, queue_id)):
                changes.delete_range(first, keys.past(first))

    def write(self, batch: Batch) -> None:
        """Write a prepared batch, whose offset is durable in the log.

        From time to time it also flushes RocksDB's memtables, without waiting. Raises RuntimeError unless this is the
        oldest batch."""
        if not self._in_flight or self._in_flight[0] is not batch:
            raise RuntimeError("batches are written once, in the order in which they were prepared")
        self._db.write(batch.changes)
        del self._in_flight[0]
        for queue_id, bodies in batch.bodies.items():
            if self.cache.has_room_for(size_of(bodies.values())):
                self.cache.add(queue_id, bodies)
        if batch.offset - self._persisted >= PERSIST_EVENTS:
            self._db.flush(False)
            self._persisted = batch.offset

    def persist(self) -> None:
        """Flush RocksDB's memtables to files, and wait. After this a crash loses no written batch.

        A clean stop needs it; `write` itself flushes from time to time, without waiting."""
        self._db.flush(True)
        self._persisted = self._boundary


def holds(queue: "Queue", message_id: int) -> bool:
    """Return True if the body of this message must be in the store for the queue."""
    held = any(message_id in holder.held for holder in queue.holders.values())
    return held or bool(removable(queue, [message_id])) or message_id in queue.outbox.message_ids()


def live_ids(queue: "Queue") -> "array[int]":
    """Return the ids of the messages whose bodies must be in the store, ascending."""
    ids = array("q", queue.ready_ids())
    for holder in queue.holders.values():
        ids.extend(holder.held)
    ids.extend(queue.outbox.message_ids())
    if queue.delayed is not None:
        ids.extend(queue.delayed.ids())
    return array("q", sorted(ids))


def _readable(read: Callable[[bytes], bytes | None], key: bytes) -> bytes | None:
    """Return the value of a key in a damaged database; None: damaged or missing."""
    try:
        return read(key)
    except Exception:  # rocksdict knows no narrower class
        return None


_NOTHING: Final[dict[int, Body]] = {}
