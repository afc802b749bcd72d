"""The event exchange: messages that tell what happens in a vhost, for the queues that are bound to amq.rewindmq.event.

    partition folds an event -> EventTap.folded -> Occurrence -> (durable) -> Published, in the queues that are bound

Names, keys and headers are those of RabbitMQ's rabbitmq_event_exchange where it has the event; event_headers.py lists
them. docs/operators/events.md.

Rules of this file
- An event without a binding is not published. Without a binding that may match events of queues no partition has a
  tap, and an append pays for one comparison.
- An event is published when its cause is durable, and at most once. A start publishes none for the events that it
  folds again.
- One node tells it: the node that appended the record or, where a service appended it to Kafka itself, the owner of the
  partition.
- Nothing feeds itself. No event tells of messages in a queue that gets events, or gets dead letters of such a queue.
- A storm stalls nobody. At most MOST_WAITING events wait, ROUND are published in a slice of the loop's share for long
  work, and those beyond are dropped and counted. They are dropped while the log has little room left, too.
- Events for a queue that moves to another partition wait until it has come, and those behind them, too. That a queue
  came from another partition, or is no longer where it was, is no event.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rewindmq.engine.config import Config
from rewindmq.engine.errors import AmqpError
from rewindmq.engine.host.loop_share import LoopShare
from rewindmq.engine.partition.counters import EVENTS_DROPPED, EVENTS_PUBLISHED
from rewindmq.engine.partition.lifecycle import Keeper
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.routing.content import NO_CONTENT, Content
from rewindmq.engine.routing.event_headers import (
    KINDS,
    MetadataNews,
    QueueNews,
    first_word,
    message_news,
    queue_news,
)
from rewindmq.engine.routing.homes import Homes
from rewindmq.engine.routing.router import Destination, Router, cut_key
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.internal_queues import is_hidden
from rewindmq.projections.topology.topology import DEFAULT_VHOST, EVENT_EXCHANGE
from rewindmq.schemas.access_events import SessionOpened
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.amqp.errors import Unacceptable
from rewindmq.schemas.amqp.properties import DELIVERY_MODE, HEADERS, TIME, join
from rewindmq.schemas.events import Event, PolicyApplied, Published, QueueDeclared, SessionClosed
from rewindmq.schemas.metadata_events import Bound, ExchangeDeleted, Unbound, VhostDeleted
from rewindmq.schemas.values import BROKER, Actor

MOST_WAITING: Final = 10_000  # events
MOST_FED: Final = 1_000  # queues of a vhost that get events; if there are more, all of the vhost count as such
ROUND: Final = 100  # events in a slice: some 2 ms
QUEUES_AN_EVENT: Final = 20  # queues for which an event costs as much as one more event

logger = logging.getLogger(__name__)


class Turns(Protocol):
    """The part of the broker's turns that the exchange needs."""

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back when everything appended so far is durable."""

    def end(self) -> None:
        """End a turn."""


@dataclass(slots=True)
class Occurrence:
    """Something that happened, once or, with `message_ids`, to each of these messages.

    `log` has the cause at `offset`; None: no log has it."""

    vhost: str
    key: str
    headers: dict[str, object]
    time_ms: int
    log: Metadata | Partition | None
    offset: int
    message_ids: Sequence[int] | None = None

    @property
    def count(self) -> int:
        """The number of events."""
        return 1 if self.message_ids is None else len(self.message_ids)

    @property
    def durable(self) -> bool:
        """Return True if no crash can undo the event."""
        return self.log is None or self.log.durable_offset > self.offset


class EventExchange:
    """The event exchanges of a node's vhosts. It is the tap of the partitions (`EventTap` of partition/partition.py)
    and of the metadata log (`MetadataTap` of partition/metadata.py)."""

    def __init__(
        self,
        config: Config,
        router: Router,
        metadata: Metadata,
        partitions: Sequence[Partition],
        homes: Homes,
        keeper: Keeper,
        counters: dict[str, int],
        turns: Turns,
        loop_share: LoopShare,
    ) -> None:
        self._topology = topology = router.topology
        self._config = config
        self._router = router
        self._metadata = metadata
        self._partitions = partitions
        self._homes = homes
        self._keeper = keeper
        self._counters = counters
        self._turns = turns
        self._loop_share = loop_share
        self._news = MetadataNews(config, topology)
        self._words: dict[str, set[str]] = {}  # first words of the binding keys, by vhost; vhosts without are not in it
        self._matches: dict[tuple[str, str], bool] = {}  # (vhost, key), while the router's version is this one
        self._fed: dict[str, set[str] | None] = {}  # vhost -> queues that get events; None: too many
        self._version = 0
        self._waiting: deque[Occurrence] = deque()
        self._count = 0  # of the events that wait
        self._going_on = False
        self._wait: asyncio.Task[None] | None = None  # for a queue that moves
        self._dropped = 0  # since one was published
        self._stopped = config.read_only
        if not self._stopped:
            metadata.tap = self
            for vhost in topology.vhosts:
                self._look(vhost)
            self._set_taps()

    def stop(self) -> None:
        """Tell nothing more."""
        self._stopped = True
        self._waiting.clear()
        self._metadata.tap = None
        self._words.clear()
        self._set_taps()

    # -- who is bound -------------------------------------------------------------------------------------------------

    def metadata_changed(self, event: Event) -> None:
        """Take note of an event of the metadata log: bindings may have come or gone."""
        if self._stopped:
            return
        if isinstance(event, Bound):
            if event.source == EVENT_EXCHANGE:
                self._look(event.vhost)
                self._set_taps()
        elif isinstance(event, Unbound | ExchangeDeleted):
            if event.vhost in self._words:
                self._look(event.vhost)
                self._set_taps()
        elif self._words and (isinstance(event, VhostDeleted) or type(event).__name__ in ENDS_TRANSIENT):
            for vhost in list(self._words):
                self._look(vhost)
            self._set_taps()

    def _look(self, vhost: str) -> None:
        words = {first_word(bound.routing_key) for bound in self._topology.bindings_from(vhost, EVENT_EXCHANGE)}
        if words:
            self._words[vhost] = words
        else:
            self._words.pop(vhost, None)

    def _set_taps(self) -> None:
        wanted = any(not words.isdisjoint(KINDS) for words in self._words.values())
        for partition in self._partitions:
            if (partition.tap is not None) is not wanted:
                partition.watch(self if wanted else None)

    def _is_wanted(self, vhost: str, key: str) -> bool:
        """Return True if an event with this key has a queue to go to."""
        if vhost not in self._words:
            return False
        if self._version != self._router.version:
            self._matches.clear()
            self._fed.clear()
            self._version = self._router.version
        found = self._matches.get((vhost, key))
        if found is None:
            found = self._router.needs_content(vhost, EVENT_EXCHANGE) or bool(
                self._router.route(vhost, EVENT_EXCHANGE, key, None)
            )
            self._matches[vhost, key] = found
        return found

    # -- events that queues get themselves ----------------------------------------------------------------------------

    def _is_fed(self, queue: Queue) -> bool:
        """Return True if the queue gets events, or dead letters of a queue that gets events."""
        vhost = queue.vhost
        if vhost not in self._fed:
            self._fed[vhost] = self._queues_fed(vhost)
        fed = self._fed[vhost]
        return fed is None or queue.name in fed

    def _queues_fed(self, vhost: str) -> set[str] | None:
        fed: set[str] = set()
        exchanges = [EVENT_EXCHANGE]
        seen = {EVENT_EXCHANGE}

        def reach(exchange: str | None) -> None:
            if exchange and exchange not in seen:
                seen.add(exchange)
                exchanges.append(exchange)

        while exchanges:
            exchange = exchanges.pop()
            todo = []
            for bound in self._topology.bindings_from(vhost, exchange):
                if bound.destination_type == "queue":
                    todo.append(bound.destination)
                else:
                    reach(bound.destination)
            reach(self._router.alternate(vhost, exchange))
            while todo:
                name = todo.pop()
                if name in fed:
                    continue
                fed.add(name)
                if len(fed) > MOST_FED:
                    logger.warning(
                        "vhost %s: more than %d queues get events: it has no events about messages", vhost, MOST_FED
                    )
                    return None
                partition = self._router.locate(vhost, name)
                queue = None if partition is None else partition.machine.queue(vhost, name)
                settings = None if queue is None else queue.settings
                if settings is not None and settings.dead_letter_exchange is not None:
                    reach(settings.dead_letter_exchange)
                    if settings.dead_letter_exchange == "" and settings.dead_letter_routing_key:
                        todo.append(settings.dead_letter_routing_key)
        return fed

    # -- what happens -------------------------------------------------------------------------------------------------

    def folded(
        self,
        partition: Partition,
        offset: int,
        timestamp_ms: int,
        actor: Actor,
        event: Event,
        effects: Sequence[Effect],
        before: int,
    ) -> None:
        """Take note of an event that was folded, and of its effects: those from `before` on (`EventTap`)."""
        if isinstance(event, QueueDeclared | PolicyApplied):
            self._fed.clear()  # settings of a queue, such as its dead-letter exchange, may have changed
        elif isinstance(event, Published) and len(effects) == before:
            return
        for at in range(before, len(effects)):
            news = message_news(effects[at], actor)
            if news is None or not self._is_told(news):
                continue
            headers = {"partition": partition.name, "offset": offset, **news.headers()}
            key, vhost = cut_key(news.key), news.queue.vhost
            self._add(Occurrence(vhost, key, headers, timestamp_ms, partition, offset, news.message_ids))
        for vhost, key, facts in queue_news(partition.machine, offset, actor, event, effects, before):
            if self._is_wanted(vhost, key) and not self._is_move(partition, event, vhost, facts):
                headers = {"partition": partition.name, "offset": offset, **facts}
                self._add(Occurrence(vhost, key, headers, timestamp_ms, partition, offset))

    def _is_told(self, news: QueueNews) -> bool:
        queue = news.queue
        return not is_hidden(queue.name) and self._is_wanted(queue.vhost, cut_key(news.key)) and not self._is_fed(queue)

    def _is_move(self, partition: Partition, event: Event, vhost: str, facts: dict[str, object]) -> bool:
        """Return True if the queue of the event comes from another partition, or is the rest of one that has left."""
        if isinstance(event, QueueDeclared) and event.moved_from is not None:
            return True
        return self._homes.has_moves and not self._homes.is_home(partition, vhost, str(facts["name"]))

    def describe(self, actor: Actor, event: Event) -> list[tuple[str, str, dict[str, object]]]:
        """Return the changes that an event of the metadata log will have made once it is folded (`MetadataTap`)."""
        if not self._words and not isinstance(event, SessionOpened | SessionClosed):
            return []
        return self._news.of(actor, event)

    def changed(self, offset: int, timestamp_ms: int, described: Sequence[tuple[str, str, dict[str, object]]]) -> None:
        """Take note that what `describe` returned has happened (`MetadataTap`)."""
        for vhost, key, facts in described:
            if self._is_wanted(vhost, key):
                headers = {"partition": self._metadata.name, "offset": offset, **facts}
                self._add(Occurrence(vhost, key, headers, timestamp_ms, self._metadata, offset))

    def alarm(self, name: str, on: bool) -> None:
        """Take note that an alarm of this node began or ended."""
        key = "alarm.set" if on else "alarm.cleared"
        if self._is_wanted(DEFAULT_VHOST, key):
            self._add(
                Occurrence(
                    DEFAULT_VHOST, key, {"source": name, "node": self._config.node}, self._metadata.clock_ms, None, 0
                )
            )

    # -- publishing ---------------------------------------------------------------------------------------------------

    def _add(self, occurrence: Occurrence) -> None:
        room = MOST_WAITING - self._count
        count = occurrence.count
        if count > room:
            self._drop(count - room)
            if room == 0:
                return
            assert occurrence.message_ids is not None
            occurrence.message_ids = occurrence.message_ids[:room]
            count = room
        self._waiting.append(occurrence)
        self._count += count
        self._go_on()

    def _drop(self, count: int) -> None:
        if self._dropped == 0:
            logger.warning("events are dropped: too many wait, or the disk has no room for them")
        self._dropped += count
        self._counters[EVENTS_DROPPED] += count

    def _go_on(self) -> None:
        """Publish what waits: in the loop's share for long work when its cause is durable, else when it will be."""
        if self._going_on or not self._waiting:
            return
        self._going_on = True
        if self._waiting[0].durable:
            self._loop_share.call(self._round)
        else:
            self._turns.when_durable(self._landed)

    def _landed(self) -> None:
        self._going_on = False
        self._go_on()

    def _round(self) -> None:
        self._going_on = False
        budget = ROUND
        while budget and self._waiting and self._waiting[0].durable:
            occurrence = self._waiting[0]
            held = self._router.first_held(self._destinations(occurrence))
            if held is not None:
                self._wait_for(held)
                break
            ids = occurrence.message_ids
            taken = queues = 0
            if ids is None:
                queues += self._publish(occurrence, occurrence.headers)
                taken = 1
            else:
                while taken < len(ids) and taken + queues // QUEUES_AN_EVENT < budget:
                    queues += self._publish(occurrence, {"message_id": ids[taken], **occurrence.headers})
                    taken += 1
                occurrence.message_ids = ids[taken:]
            budget = max(0, budget - taken - queues // QUEUES_AN_EVENT)
            self._count -= taken
            if not occurrence.message_ids:
                self._waiting.popleft()
        self._turns.end()
        self._go_on()

    def _destinations(self, occurrence: Occurrence) -> tuple[Destination, ...]:
        """Return the queues of an event, as far as its key decides; none while no queue moves, because nobody asks
        then."""
        if not self._topology.placement.moving:
            return ()
        return self._router.route(occurrence.vhost, EVENT_EXCHANGE, occurrence.key, NO_CONTENT)

    def _wait_for(self, name: tuple[str, str]) -> None:
        """Publish nothing before a queue has come to its new partition. More than MOST_WAITING events are dropped."""
        self._going_on = True

        async def wait() -> None:
            await self._homes.wait_until_free(*name, lambda: self._stopped)
            self._landed()

        self._wait = asyncio.ensure_future(wait())

    def _publish(self, occurrence: Occurrence, headers: dict[str, object]) -> int:
        """Publish an event. Returns the number of queues that get it."""
        vhost, key, time_ms = occurrence.vhost, occurrence.key, occurrence.time_ms
        flow = self._keeper.flow
        if flow.crowded or not self._keeper.nodes.joined:
            self._drop(1)
            return 0
        queues = 0
        try:
            table = tables.with_length(tables.encode({"timestamp_in_ms": time_ms, **headers}))
            timestamp = (time_ms // 1000).to_bytes(8, "big")
            raw = join({HEADERS: table, DELIVERY_MODE: b"\x02", TIME: timestamp})
            content = Content(raw) if self._router.needs_content(vhost, EVENT_EXCHANGE) else None
            destinations = self._router.route(vhost, EVENT_EXCHANGE, key, content)
            if self._router.first_held(destinations) is not None:  # only its content leads it there
                self._drop(1)
                return 0
            for to in destinations:
                to.partition.publish(BROKER, Published(to.route, raw, persistent=True, body=b"", body_size=0))
                queues += len(to.route.queues)
        except (AmqpError, Unacceptable) as error:  # its headers are larger than a record may be
            logger.warning("an event %s was dropped: %s", key, error)
            self._drop(1)
            return queues
        self._counters[EVENTS_PUBLISHED] += 1
        if self._dropped:
            logger.warning("%d events were dropped", self._dropped)
            self._dropped = 0
        return queues


# Events of the metadata log at which exchanges and bindings go that are not durable.
ENDS_TRANSIENT: Final = ("BrokerStarted", "NodeJoined", "NodeLost")
