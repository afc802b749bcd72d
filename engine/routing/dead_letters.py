"""Dead letters on their way: from a queue's outbox, through its dead-letter exchange, into the target queues.

    DeadLetter effect -> letter -> route -> Published (with origin) in the targets' partitions
                                                 | durable there
                                                 v
                         DeadLettersForwarded in the source's partition -> its outbox forgets

Rules of this file
- A letter is forwarded when its death is durable in the source's log. Otherwise a crash could undo the death and keep
  its dead letter, and the source would give the same number to another one, which the target would drop as seen.
- Letters of one source queue are forwarded in the order of their sequence: a target knows a letter that it has seen by
  a number that only grows, so a letter that must be tried again holds up those behind it. So does an at-least-once
  letter until it is known whether its targets took it (in a log that is read back, after the round trip).
- Only the owner of a partition forwards its letters. A new owner begins with the letters in the outboxes.
- At-most-once: no exchange, no route, a refusing target: dropped, and done (S-155). DeadLettersForwarded names those
  that were sent to no queue. At-least-once: kept, and
  tried again after a while, only for the targets that have not taken it (S-149, S-151).
- On a log that is read back another node may have just made the exchange or the binding: a letter without a route is
  dropped only when this node has read to the end of the log (partition/certainty.py).
- While the log has little room left, letters wait as publishers do (partition/flow_control.py): acks have to become
  durable, and the body of a letter that waits is in the log already.
- A letter to a queue that moves to another partition waits until the queue has come, and those behind it wait with it.
- A node that may be lost sends no letters until it knows better: others do not wait for it before a queue moves. Its
  letter would go to the old partition, the next owner's to the new one, and neither target would see a repeat.
- A letter that would go back automatically into a queue where it died before is not sent there (cycles, S-155).
- A message that an operator moved (reason `moved`) did not die either: it keeps its properties and its expiration. It
  waits as an at-least-once letter does. If no queue of its route takes it, it goes back to the end of the queue from
  which it came, so that it holds up no others; then the route is tried again, by turns.
- A message that moves with its queue to another partition (reason `relocated`, machine/events/relocation.py) goes, as
  it is, to the home of the queue's own name. Such letters do not wait for the queue's other ones, nor these for them: a
  dead letter that finds no target must not keep a queue's name held. They are a separate source here, and are
  known to the target, and released, by themselves. They follow each other without waiting, and none is dropped while
  its queue lives: if it is not there yet they are tried again.
- A message that was delayed (delayed_exchanges.py) comes as a letter of reason `delayed`, which is not a death:
  at-most-once, the exchange's bindings decide, and a hidden queue's letters do not count as dead letters.
- Nothing recurses: forwards make effects, effects make letters, letters wait in a queue for the next round. A round is
  bounded by time, and the rest goes on in the next turn of the loop, so that a burst of deaths does not stop other
  work. Letters that wait are packed as they came (`Letters`); their bodies are in the store.
- Everything is idempotent: the fold of the target drops a letter that is forwarded again after a crash (B-07).
"""

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.host.loop_share import SLICE_SECONDS
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.partition.certainty import Certainty
from rewindmq.engine.partition.counters import AT_LEAST_ONCE, AT_MOST_ONCE, DEATHS, dead_lettered
from rewindmq.engine.partition.flow_control import no_room
from rewindmq.engine.partition.lifecycle import Keeper
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.routing.content import Content, readable
from rewindmq.engine.routing.death_headers import Buried, with_death
from rewindmq.engine.routing.delayed_exchanges import due
from rewindmq.engine.routing.homes import Homes
from rewindmq.engine.routing.letters import RETRY_FIRST_MS, Letter, Letters, LetterSource
from rewindmq.engine.routing.portions import RouteTakesLong, at_once, in_turns
from rewindmq.engine.routing.router import Destination, Router
from rewindmq.projections.machine.data.effects import DeadLetter
from rewindmq.projections.machine.data.message_order import NONE
from rewindmq.projections.machine.data.outbox import Carried
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import DELAYED, MOVED, REJECTED
from rewindmq.projections.machine.rules.dead_letters import waiting_letters
from rewindmq.projections.machine.rules.versions import UNROUTED
from rewindmq.schemas.amqp.properties import without_blind_copies
from rewindmq.schemas.events import DeadLettersForwarded, Published
from rewindmq.schemas.values import BROKER, Origin

logger = logging.getLogger(__name__)

ROUND = 1_000  # letters forwarded in one turn of the loop, or fewer that cost more or take longer than SLICE_SECONDS
ALONG: Final = 4  # a letter that moves with its queue costs as many: its message is read from the store
LETTER_BYTES: Final = 8_192  # of a body that cost as much as a letter
NO_PROPERTIES: Final = b"\0\0"
RETRY_LAST_MS: Final = 60_000
ROOM_MS: Final = 1_000  # between two checks for a letter that has no room on the disk, or no queue yet
# The results of sending a letter. CROWDED: no letter is sent now. NO_ROOM, NOT_THERE: not this one.
# HELD: not before a queue of its route has come to its new partition.
TAKEN: Final = 0
UNKNOWN: Final = 1
TRY_AGAIN: Final = 2
UNSURE: Final = 3
CROWDED: Final = 4
NO_ROOM: Final = 5
NOT_THERE: Final = 6  # the queue has not come to its new partition yet
HELD: Final = 7


class Forwarder:
    """Forwards the dead letters of all queues. `ready()` is called when letters that waited can be forwarded."""

    def __init__(
        self,
        router: Router,
        clock: Callable[[], int],
        counters: dict[str, int],
        certainty: Certainty,
        keeper: Keeper,
        ready: Callable[[], None],
        homes: Homes,
    ) -> None:
        self._router = router
        self._homes, self._home = homes, homes.of
        self._clock = clock
        self._counters = counters
        self._certainty = certainty
        self._keeper = keeper
        self._on_ready = ready
        self._waits_for_log = False  # flow control calls `_log_has_room`
        self._looks: set[asyncio.Task[None]] = set()  # tasks of `_make_sure`
        self._sources: dict[tuple[int, int, bool], LetterSource] = {}  # (partition, queue_id, relocated)
        self._ready: deque[LetterSource] = deque()
        self._retries: list[tuple[int, int, LetterSource]] = []  # a heap by `retry_at_ms`; an entry may be out of date
        self._tries = 0
        self._unsettled: dict[LetterSource, None] = {}  # those that have letters to send, or on their way
        self._logged_cycles: dict[tuple[str, ...], None] = {}

    # -- letters come in ----------------------------------------------------------------------------------------------

    def take(self, partition: Partition, letters: DeadLetter) -> None:
        """Forward letters whose messages have just died."""
        if letters.reason in DEATHS:
            self._count(letters.reason, letters.queue, letters.at_least_once, len(letters.message_ids))
        self._add(partition, letters, partition.undone_below)

    def recover(self, partition: Partition, queue: Queue) -> None:
        """Forward the letters in the queue's outbox (again)."""
        for letters in waiting_letters(queue):
            self._add(partition, letters, 0)

    def drop(self, partition: Partition) -> None:
        """Give up the partition's letters: another node forwards them now."""
        for key, source in list(self._sources.items()):
            if source.partition is partition:
                if source.first is not None:
                    source.first.give_up()
                source.letters.clear()
                source.in_flight.clear()
                source.retry_at_ms = None
                self._unsettled.pop(source, None)
                del self._sources[key]

    def _count(self, what: str, queue: Queue, at_least_once: bool, count: int = 1) -> None:
        name = dead_lettered(what, queue.type, AT_LEAST_ONCE if at_least_once else AT_MOST_ONCE)
        self._counters[name] = self._counters.get(name, 0) + count

    def _add(self, partition: Partition, effect: DeadLetter, logged_below: int) -> None:
        queue, relocated = effect.queue, bool(effect.carried)
        key = (partition.index, queue.queue_id, relocated)
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = LetterSource(partition, queue, relocated)
        letters = Letters(effect, logged_below, self._certainty.begun)
        if letters.last_sequence > source.known_sequence:
            letters.next = max(0, source.known_sequence + 1 - effect.sequence)
            source.known_sequence = letters.last_sequence
            source.letters.append(letters)
            if source.next_letter().sequence not in queue.outbox:  # the first letter was given up (S-153)
                source.retry_at_ms = None
            self._unsettled[source] = None
            self._schedule(source)

    def _schedule(self, source: LetterSource) -> None:
        if not source.scheduled and not source.unsure and source.retry_at_ms is None and source.may_send:
            source.scheduled = True
            self._ready.append(source)

    # -- forwarding ---------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._ready) and not self._waits_for_log and self._keeper.nodes.is_waited_for

    @property
    def awaits_log(self) -> bool:
        """Return True if letters are on their way, or wait until their deaths are durable."""
        return bool(self._unsettled)

    def retry_ms(self) -> int | None:
        """Return the time when a letter is to be tried again, or None."""
        while self._retries and self._retries[0][0] != self._retries[0][2].retry_at_ms:
            heapq.heappop(self._retries)
        return self._retries[0][0] if self._retries else None

    def _try_later(self, source: LetterSource, after_ms: int) -> None:
        """Try the first letter of the source again after this time."""
        source.retry_at_ms = self._clock() + after_ms
        self._tries += 1
        heapq.heappush(self._retries, (source.retry_at_ms, self._tries, source))

    def clock_was_set(self, by_ms: int) -> None:
        """Move the times of the next tries with the clock."""
        moved = [each for each in self._retries if each[0] == each[2].retry_at_ms]
        self._retries = [(at_ms + by_ms, number, source) for at_ms, number, source in moved]
        for at_ms, _, source in self._retries:
            source.retry_at_ms = at_ms

    def wake(self) -> None:
        """Time passed: try letters again that are due."""
        now = self._clock()
        while (due_ms := self.retry_ms()) is not None and due_ms <= now:
            source = self._retries[0][2]
            source.retry_at_ms = None
            self._schedule(source)

    def forward(self, budget: int) -> int:
        """Forward up to `budget` letters in one slice of time, and return the rest of the budget; 0: the slice is over.

        New letters may come in meanwhile."""
        ends = time.perf_counter() + SLICE_SECONDS
        while self.has_work and budget > 0:
            source = self._ready.popleft()
            source.scheduled = False
            self._unsettled[source] = None
            while source.may_send and budget > 0:
                letter = source.next_letter()
                outcome = self._outcome(source, letter) if letter.sequence in source.queue.outbox else TAKEN
                budget = 0 if time.perf_counter() >= ends else budget - _cost(letter)
                if outcome == UNKNOWN:
                    break  # `on_durable` comes back to it
                if outcome in (UNSURE, HELD):
                    self._make_sure(source)
                    break
                if outcome == CROWDED:
                    self._schedule(source)
                    break
                if outcome in (NO_ROOM, NOT_THERE):
                    self._try_later(source, ROOM_MS)
                    break
                if outcome == TRY_AGAIN:
                    letter.goes_back = letter.reason == MOVED and not (letter.goes_back or letter.taken_by)
                    self._try_later(source, source.retry_delay_ms)
                    source.retry_delay_ms = min(2 * source.retry_delay_ms, RETRY_LAST_MS)
                    break
                source.retry_delay_ms = RETRY_FIRST_MS
                if (lost := letter.unrouted()) is not None and source.partition.machine.machine_version >= UNROUTED:
                    source.unrouted.append((letter.sequence, lost))
                source.drop_first()
                counts = letter.at_least_once and letter.reason != MOVED
                source.in_flight.append((letter.sequence, letter.sent, counts))
            else:
                self._schedule(source)
            self._tell(source)  # where nothing was sent, no group commit will
        return budget

    def _must_wait(self) -> bool:
        """Say whether the log has too little room for letters. If so, flow control lets them go on in their turn."""
        flow = self._keeper.flow
        if not self._waits_for_log and flow.crowded:
            self._waits_for_log = True
            flow.wait(self._log_has_room)
        return self._waits_for_log

    def _log_has_room(self) -> None:
        self._waits_for_log = False
        self._on_ready()

    def _make_sure(self, source: LetterSource) -> None:
        """Let a source wait until this node has read to the end of the log, or folds the targets' partitions, or until
        a target has moved, or the first letter's route is found.

        Otherwise the first letter has no route, as far as the node has read."""
        source.unsure = True
        letter = source.next_letter()
        search = letter.search

        async def look() -> None:
            paused, source.paused = source.paused, ()
            held, source.held = source.held, None
            if held is not None:
                await self._homes.wait_until_free(*held)
            for partition in paused:
                await partition.enter()
            if search is not None:
                found = await in_turns(search, self._router.share, lambda: source.first is letter)
                letter.search, letter.found = None, found
            elif not paused and held is None:
                await self._certainty.wait()
            source.unsure = False
            self._schedule(source)
            self._on_ready()

        task = asyncio.ensure_future(look())
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    def _outcome(self, source: LetterSource, letter: Letter) -> int:
        """Send the letter to every target that lacks it, and return the result.

        A letter that was sent already is not sent again."""
        if not letter.asked and self._must_wait():
            return CROWDED
        if letter.message is None:
            try:
                letter.message = source.partition.message(source.queue.queue_id, letter.message_id)
            except KeyError:
                logger.error("dead letter %d of %s no longer exists", letter.message_id, source.queue.name)
                return TAKEN
            except LogError as error:
                logger.error("dead letter %d of %s is forwarded later: %s", letter.message_id, source.queue.name, error)
                return TRY_AGAIN
        if not letter.asked:
            outcome = self._send(source, letter)
            if outcome != TAKEN:
                return outcome
        while letter.asked:
            partition, position, targets = letter.asked[0]
            refusing = partition.refusals(position)
            if refusing is None:
                return UNKNOWN
            letter.asked.pop(0)
            letter.taken_by.update((name, None) for name in targets if name not in refusing)
            letter.refused = letter.refused or bool(refusing)
        return TRY_AGAIN if letter.refused else TAKEN

    def _send(self, source: LetterSource, letter: Letter) -> int:
        """Send the letter. The result is TAKEN, unless it has no route or the disk has no room for it."""
        letter.refused = False
        queue = source.queue
        vhost = queue.vhost
        message = letter.message
        assert message is not None
        if letter.carried is not None:
            return self._send_along(source, letter, message, letter.carried)
        buried, expiration_ms = self._as_sent(source, letter, message)
        if letter.reason == MOVED and self._went_back(source, letter):
            return TAKEN  # before a crash, and it is in its queue
        exchange, routing_key = ("", queue.name) if letter.goes_back else (letter.exchange, letter.routing_key)
        if (vhost, exchange) not in self._router.topology.exchanges:
            return self._without_route(letter)
        content = readable(buried.properties) if self._router.needs_content(vhost, exchange) else None
        routing_keys, properties = buried.routing_keys, buried.properties
        if routing_key is not None:  # it replaces all keys, also where the letter dies once more
            routing_keys, properties = (routing_key,), without_blind_copies(properties)
        published_to = message.route.exchange if letter.reason == DELAYED else None
        destinations = self._route(letter, vhost, exchange, routing_keys, content, published_to)
        if destinations is None:
            return UNSURE
        source.held = self._held(vhost, exchange, routing_keys, destinations)
        if source.held is not None:
            return HELD
        targets_in = [to.partition for to in destinations] if letter.at_least_once else []
        if exchange == "":
            targets_in += [self._home(vhost, key) for key in routing_keys]
        source.paused = tuple(partition for partition in targets_in if not partition.current)
        if source.paused:
            return UNSURE
        if not destinations:
            return self._without_route(letter)
        size = len(message.body) * len(destinations)  # each partition logs it
        if not self._has_room(source, letter, size):
            return NO_ROOM
        origin = self._origin(source, letter)
        for destination in destinations:
            targets = [
                name
                for name in destination.route.queues
                if name not in letter.taken_by and not self._is_cycle(letter, buried, name)
            ]
            if targets:
                narrowed = self._router.narrowed(destination, tuple(targets))
                forwarded = Published(
                    narrowed.route,
                    properties,
                    expiration_ms=expiration_ms if destination.delay_ms is None else destination.delay_ms,
                    priority=message.priority,
                    persistent=message.persistent,
                    origin=origin,
                    encryption=message.encryption,
                    body=message.body,
                    body_size=message.body_size,
                )
                try:
                    if letter.at_least_once:
                        position = narrowed.partition.forward(forwarded)
                        letter.asked.append((narrowed.partition, position, targets))
                    else:
                        position = narrowed.partition.publish(BROKER, forwarded)
                except PreconditionFailed as error:  # with its headers it exceeds the size of a record
                    logger.error("dead letter %d of %s cannot be forwarded: %s", letter.message_id, queue.name, error)
                    letter.refused = letter.at_least_once
                else:
                    letter.sent.append((narrowed.partition, position))
        return TAKEN

    def _route(
        self,
        letter: Letter,
        vhost: str,
        exchange: str,
        routing_keys: tuple[str, ...],
        content: Content | None,
        published_to: str | None,
    ) -> tuple[Destination, ...] | None:
        """Return the letter's route.

        None if it takes long: the letter has the search, and the route for the next try."""
        found, letter.found = letter.found, None
        if found is not None:
            return found
        try:
            return at_once(self._router.search_by_keys(vhost, exchange, routing_keys, content, published_to))
        except RouteTakesLong as long:
            letter.search = long.search
            return None

    def _held(
        self, vhost: str, exchange: str, routing_keys: tuple[str, ...], destinations: tuple[Destination, ...]
    ) -> tuple[str, str] | None:
        """Return the first queue of a route that is on its way to another partition, or whose name waits."""
        held = self._router.first_held(destinations)
        if held is None and exchange == "" and (name := self._homes.first_held(vhost, routing_keys)) is not None:
            held = vhost, name
        return held

    def _send_along(self, source: LetterSource, letter: Letter, message: Published, carried: Carried) -> int:
        """Send a message after its queue, as it is. The result is TAKEN, unless it has to wait."""
        queue, route = source.queue, message.route
        home = self._home(queue.vhost, queue.name)
        if home is source.partition:
            return NOT_THERE
        if not home.current:
            source.paused = (home,)
            return UNSURE
        placement, target = self._router.topology.placement, home.machine.queue(queue.vhost, queue.name)
        if (queue.vhost, queue.name) in placement.moving:
            if target is None:
                return NOT_THERE
        elif target is None or target.queue_id != self._incarnation(source):
            return self._without_route(letter)  # the queue was deleted there, and its messages with it
        if not self._has_room(source, letter, len(message.body)):
            return NO_ROOM
        left_ms = None if carried.expiry == NONE else max(0, carried.expiry - source.partition.now_ms())
        to = self._router.to_queue(home, queue.vhost, route.exchange, route.routing_key, queue.name)
        origin = replace(
            self._origin(source, letter),
            delivery_count=carried.delivery_count,
            redelivered=carried.redelivered,
            acquired_count=carried.acquired_count,
        )
        along = replace(message, route=to.route, expiration_ms=left_ms, origin=origin)
        try:
            position = home.publish(BROKER, along)
        except PreconditionFailed as error:
            logger.error("message %d of %s cannot move: %s", letter.message_id, queue.name, error)
            return TRY_AGAIN
        letter.sent.append((home, position))
        return TAKEN

    def _incarnation(self, source: LetterSource) -> int:
        """Return the incarnation that the source's queue has in the partition to which it went; -1: it was deleted."""
        queue = source.queue
        placement = self._router.topology.placement
        return placement.followed(queue.vhost, queue.name, source.partition.index, queue.queue_id)

    def _origin(self, source: LetterSource, letter: Letter) -> Origin:
        """Return the origin of what the letter becomes."""
        queue = source.queue
        partition = self._router.topology.placement.as_origin(queue.vhost, queue.name, source.partition.index)
        return Origin(
            queue.vhost,
            queue.name,
            queue.queue_id,
            letter.message_id,
            letter.reason,
            letter.sequence,
            partition=partition,
        )

    def _went_back(self, source: LetterSource, letter: Letter) -> bool:
        """Return True if a message that an operator moved went back to its own queue, which may have moved since."""
        queue = source.queue
        partition = self._router.topology.placement.as_origin(queue.vhost, queue.name, source.partition.index)
        own = self._home(queue.vhost, queue.name).machine.queue(queue.vhost, queue.name) or queue
        return own.letters_seen.get((queue.vhost, queue.name, queue.queue_id, partition, False), 0) >= letter.sequence

    def _has_room(self, source: LetterSource, letter: Letter, size: int) -> bool:
        """Return True if the disk has room for the letter; otherwise log once that the letter waits."""
        if self._keeper.flow.has_room(size):
            return True
        if not letter.waits_for_room:
            letter.waits_for_room = True
            logger.warning("dead letter %d of %s waits: %s", letter.message_id, source.queue.name, no_room(size))
        return False

    def _without_route(self, letter: Letter) -> int:
        """Return the result of sending a letter that has no route, as far as this node has read."""
        if letter.at_least_once:
            return TRY_AGAIN
        return TAKEN if self._certainty.covers(letter.heard) else UNSURE

    def _as_sent(self, source: LetterSource, letter: Letter, message: Published) -> tuple[Buried, int | None]:
        """Return the message as it is sent on, and its expiration.

        A dead letter has no expiration, a delayed message has its own. Properties that cannot be read (a service may
        have put anything into the log) are dropped."""
        route, now_s = message.route, source.partition.log_ms() // 1000
        name = source.queue.name
        try:
            if letter.reason == DELAYED:
                return due(message)
            if letter.reason == MOVED:
                own = due(message)[1] if source.queue.type == DELAYED else message.expiration_ms
                return Buried(message.properties, (route.routing_key,), ()), own
            return with_death(message.properties, name, letter.reason, route.exchange, route.routing_key, now_s), None
        except ValueError as error:
            logger.warning(
                "%s: dead letter %d of %s loses its properties: %s",
                source.partition.machine.partition,
                letter.message_id,
                name,
                error,
            )
            if letter.reason in (DELAYED, MOVED):
                return Buried(NO_PROPERTIES, (route.routing_key,), ()), None
            return with_death(NO_PROPERTIES, name, letter.reason, route.exchange, route.routing_key, now_s), None

    def _is_cycle(self, letter: Letter, buried: Buried, target: str) -> bool:
        if letter.reason == REJECTED or not buried.cycles_into(target):
            return False
        cycle = (target, *(death.queue for death in buried.deaths))
        if cycle not in self._logged_cycles and len(self._logged_cycles) < 1_000:
            self._logged_cycles[cycle] = None
            logger.warning(
                "a message was dropped: these queues (latest death first) are a dead-letter cycle without reason "
                "'rejected'; this list is not logged again: %s",
                ", ".join(cycle),
            )
        return True

    # -- durability ---------------------------------------------------------------------------------------------------

    def on_durable(self) -> None:
        """More is durable: tell the sources which letters have arrived, and forward more."""
        unsettled, self._unsettled = self._unsettled, {}
        for source in unsettled:
            self._schedule(source)
            self._tell(source)
            if not source.in_flight and not source.letters:
                key = (source.partition.index, source.queue.queue_id, source.relocated)
                if self._sources.get(key) is source:  # else it was dropped while it stood in line
                    del self._sources[key]
            elif source.in_flight or (source.retry_at_ms is None and not source.unsure):
                self._unsettled[source] = None

    def _tell(self, source: LetterSource) -> None:
        """Let the source's outbox forget the letters that arrived or have no route."""
        arrived = 0
        in_flight = source.in_flight
        while in_flight and all(position < target.durable_position for target, position in in_flight[0][1]):
            arrived, _, counts = in_flight.popleft()
            if counts:
                self._count("confirmed", source.queue, True)
        queue = source.queue
        if arrived and queue.outbox.up_to(arrived, source.relocated):
            unrouted = tuple(letter for sequence, letter in source.unrouted if sequence <= arrived)
            del source.unrouted[: len(unrouted)]
            forwarded = DeadLettersForwarded(
                queue.vhost, queue.name, queue.queue_id, arrived, source.relocated, unrouted=unrouted
            )
            source.partition.append(BROKER, forwarded)


def _cost(letter: Letter) -> int:
    """Return the share of a round that a letter takes when it is sent, or tried."""
    size = 0 if letter.message is None else letter.message.body_size
    return (1 if letter.carried is None else ALONG) + size // LETTER_BYTES
