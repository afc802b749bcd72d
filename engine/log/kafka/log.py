"""A log in Kafka that several nodes share: `rewindmq.engine.log.shared_contract.SharedLog` with confluent-kafka.

    log = KafkaLog.open("host:9092,host:9092")       makes missing topics, and checks them

The topics are described in `topics.py`, reading by offsets in `reader.py`, reading back in `read_back.py`, the time
after which silence is trouble in `patience.py`, the owners of duties in `owners.py`, the setup of clients in
`clients.py`.

- Appends go to one idempotent producer (acks=all, retried for ever), so Kafka has each once and in order. When its
  queue is full, later appends wait here in order.
- A message that was read back is in the log. If none is read back for `PATIENCE_SECONDS`, there is trouble until one
  is. If partitions may be paused (`reports`), librdkafka reports every delivery, and a separate thread receives the
  reports; otherwise it reports only failures.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from rewindmq import failpoints
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.clients import ANSWER_MS, TIMEOUT_SECONDS, KafkaClients, text_of
from rewindmq.engine.log.kafka.owners import KafkaOwners
from rewindmq.engine.log.kafka.patience import PATIENCE_SECONDS, Patience, Probe
from rewindmq.engine.log.kafka.read_back import KafkaFollowing
from rewindmq.engine.log.kafka.reader import KafkaPartition
from rewindmq.engine.log.kafka.states import KafkaStates
from rewindmq.engine.log.kafka.topics import KafkaTopics, Replicas
from rewindmq.engine.log.shared_contract import Arrived, RecordTooLarge, SharedLogListener

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
PLACEMENT_SECONDS = 5.0
LEADERS_SECONDS = 2.0
SOON_SECONDS = 1.5  # a leader answers in milliseconds; one that has just died never does
_REPORT_SECONDS = 0.1
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
# Kafka adds at most this many bytes to a record's key and value.
OVERHEAD_BYTES = 512


class SharedKafkaPartition(KafkaPartition):
    """A partition that can be read and appended to."""

    def __init__(
        self, log: "KafkaLog", clients: KafkaClients, topic: str, number: int, name: str, watched: bool = True
    ) -> None:
        super().__init__(clients, topic, number, name)
        self.probe: Probe | None = None  # set in the loop, removed in the thread that reads back
        self.watched = watched  # otherwise nothing waits for its records, and their absence is not trouble
        self.reporting = not watched
        self._produced = 0
        self.reports = 0  # counted in the thread that receives reports
        self.reported: deque[int] = deque()  # offsets of own records not yet known to the loop
        self._log = log
        self._backlog = log.backlog
        self._produce = log.producer.produce
        self._most = log.max_record_bytes

    def append(self, key: bytes, value: bytes | None) -> None:
        size = 0 if value is None else len(value)
        if size + len(key) > self._most:
            raise RecordTooLarge(
                f"a record of {size} bytes is larger than the {self._most} that the topic {self.topic} takes:"
                " raise its max.message.bytes, and start the nodes again"
            )
        if self._backlog or not self.sent(key, value):
            self._backlog.append((self, key, value))

    def sent(self, key: bytes, value: bytes | None) -> bool:
        """Send a record, and return True if the producer accepted it; its queue may be full."""
        probing = self.probe is None and not self.reporting
        if probing and value is not None:
            self.probe = self._log.patience.probe(value)
        try:
            self._produce(self.topic, value, key, self.number)
            self._produced += 1
        except BufferError:
            if probing:
                self.probe = None
            return False
        except KafkaException as error:
            self._log.failed(LogError(f"Kafka: {self.name} takes no more events: {text_of(error)}"))
        return True

    @property
    def all_reported(self) -> bool:
        return self._produced == self.reports and not self._backlog

    def report(self, on: bool) -> None:
        self.reporting = on
        if on:
            self.probe = None  # records of a paused partition are not read back
            self.reported.clear()  # the earlier ones, which are all known to be in the log

    def read_back(self, values: list[bytes]) -> None:
        """Note records that were read back. Called in the thread that reads, or in the loop while it reads."""
        if self._log.patience.heard(self.probe, values):
            self.probe = None


class KafkaCounters(SharedKafkaPartition):
    """One partition of the topic of counters, which exists if partitions may be paused."""

    def __init__(self, log: "KafkaLog", clients: KafkaClients, topic: str, number: int, name: str) -> None:
        super().__init__(log, clients, topic, number, name, watched=False)
        self.starts_at, self.opened_at = self._watermarks()


class KafkaLog:
    """The log in Kafka. `settings` are librdkafka's, for all clients."""

    def __init__(
        self,
        prefix: str,
        topics: KafkaTopics,
        clients: KafkaClients,
        most: int,
        partitions: int,
        found: int,
        reports: bool = False,
    ) -> None:
        self._listener: SharedLogListener  # from `follow` on, as `_loop` is
        self.max_record_bytes = most - OVERHEAD_BYTES
        self.patience = Patience()
        self.identity = topics.identity()
        self.producer: Producer = clients.producer(
            {
                "message.max.bytes": most,
                "error_cb": self._error,
                "on_delivery": self._reported if reports else self._delivery_failed,
                "delivery.report.only.error": not reports,
            }
        )
        self._reports = threading.Thread(target=self._take_reports, name="kafka-reports", daemon=True)
        self._has_reports = reports
        # Records that did not fit into the producer's queue, in order.
        self.backlog: deque[tuple[SharedKafkaPartition, bytes, bytes | None]] = deque()
        self._prefix, self._topics, self._clients = prefix, topics, clients
        self._replicas = topics.replicas()
        self._replicas_at = time.monotonic()
        self._asking_replicas = threading.Lock()
        self.metadata = SharedKafkaPartition(self, clients, topics.metadata, 0, "metadata-0")
        self.nodes = SharedKafkaPartition(self, clients, topics.nodes, 0, "nodes-0")
        self.queues: Sequence[SharedKafkaPartition] = [
            SharedKafkaPartition(self, clients, topics.queues, each, f"queues-{each}") for each in range(partitions)
        ]
        # Partitions that an admin added later, and that this node's configuration excludes.
        self.left_out: Sequence[KafkaPartition] = [
            KafkaPartition(clients, topics.queues, each, f"queues-{each}") for each in range(partitions, found)
        ]
        self.counters: Sequence[KafkaCounters] = [
            KafkaCounters(self, clients, topics.counters, each, f"counters-{each}")
            for each in range(partitions if reports else 0)
        ]
        self.states = KafkaStates(clients, topics, found)
        self._note_partitions()
        self._without_counters = False  # Kafka has refused some
        self._nodes_from = self.nodes.next_offset
        self._loop: asyncio.AbstractEventLoop | None = None
        self._following: KafkaFollowing | None = None
        self._owners: KafkaOwners | None = None
        self._failure: LogError | None = None
        self._lost_events = False
        self._closed = False
        self._in_trouble = False
        self._away_since: float | None = None

    @classmethod
    def open(
        cls,
        bootstrap: str,
        prefix: str = "rewindmq",
        partitions: int | None = None,
        replication: int | None = None,
        settings: Mapping[str, str] | None = None,
        expiry_ms: int | None = None,
        reports: bool = False,
    ) -> Self:
        """Open the log of all nodes with this prefix.

        `partitions`: of queues; None: all existing ones, or two new ones; fewer than exist: the first ones.
        `expiry_ms`: an archive keeps the records that Kafka drops, so the queues' topic may have a retention of at
        least this time. `reports`: queue partitions may be paused.
        Raises LogError if Kafka does not answer, or the topics are not as required."""
        clients = KafkaClients(bootstrap, settings)
        clients.require_answer(TIMEOUT_SECONDS)
        topics = KafkaTopics(clients, prefix)
        topics.create(partitions, replication)
        most, found = topics.check(partitions, expiry_ms)
        if reports:
            topics.create_counters(found)
        return cls(prefix, topics, clients, most, partitions or found, found, reports)

    def _note_partitions(self) -> None:
        self._all = {each.name: each for each in (self.metadata, self.nodes, *self.queues, *self.counters)}
        self._by_place: dict[tuple[str | None, int | None], SharedKafkaPartition]
        self._by_place = {(each.topic, each.number): each for each in (*self.queues, *self.counters)}
        # Names of partitions that are paused, or have not caught up since, and those of counters.
        self._apart = {each.name for each in self.counters}

    def use_all(self) -> None:
        """Also use the partitions that the number given to `open` left out. Before `follow`."""
        assert self._following is None
        clients, topics = self._clients, self._topics
        for each in self.left_out:
            made = SharedKafkaPartition(self, clients, topics.queues, each.number, each.name)
            self.queues = [*self.queues, made]
            if self._has_reports:
                name = f"counters-{each.number}"
                self.counters = [*self.counters, KafkaCounters(self, clients, topics.counters, each.number, name)]
        self.left_out = ()
        self._note_partitions()

    async def add_partitions(self, partitions: int, only_ask: bool) -> None:
        await asyncio.to_thread(self._topics.add_partitions, partitions, only_ask)

    def follow(self, offsets: Mapping[str, int], listener: SharedLogListener) -> None:
        """Follow the partitions, each from its offset.

        `nodes-0` begins where it ended when the log was opened, unless `offsets` says otherwise."""
        assert self._following is None
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        start = {self.nodes.name: self._nodes_from, **{each.name: each.starts_at for each in self.counters}, **offsets}
        self._following = KafkaFollowing(
            self._clients,
            {each: start[name] for name, each in self._all.items()},
            self._loop,
            arrived=listener.arrived,
            read=self._read,
            each=self._each,
            gone=self._gone,
            failed=lambda error: self.failed(error, lost_events=False),
            compacted=frozenset(each.name for each in self.counters),
        )
        self._owners = KafkaOwners(
            self._clients,
            f"{self._prefix}.owners",
            self._topics.queues,
            self._owned,
            failed=lambda error: self.failed(error, lost_events=False),
        )
        self._following.start()
        self._owners.start()
        if self._has_reports:
            self._reports.start()

    async def pause(self, name: str) -> None:
        assert self._following is not None
        assert self._has_reports
        self._apart.add(name)
        await self._following.pause(name)

    def resume(self, name: str, offset: int) -> None:
        assert self._following is not None
        self._following.resume(name, offset)

    async def extent(self, name: str) -> tuple[int, int]:
        partition = [self._all[name]]
        starts, ends = await asyncio.gather(
            _offsets_now(self._clients, partition, _EARLIEST), ends_now(self._clients, partition)
        )
        return starts[name], ends[name]

    async def catch_up(self, name: str) -> None:
        assert self._following is not None
        await self._following.reached(await ends_now(self._clients, [self._all[name]]))
        self._apart.discard(name)

    def flush(self) -> None:
        """Pass the producer the records for which it had no room; it sends them itself."""
        while self.backlog:
            partition, key, value = self.backlog[0]
            if not partition.sent(key, value):
                return
            self.backlog.popleft()

    async def read_to_end(self) -> None:
        assert self._following is not None
        followed = [each for each in self._all.values() if each.name not in self._apart]
        await self._following.reached(await ends_now(self._clients, followed))

    def ends(self) -> Mapping[str, int]:
        return {} if self._following is None else self._following.ends

    def placement(self) -> list[Replicas]:
        """Return the places of the queue partitions as of a few seconds ago, without waiting."""
        now = time.monotonic()
        if now - self._replicas_at > PLACEMENT_SECONDS and self._asking_replicas.acquire(blocking=False):
            threading.Thread(target=self._ask_replicas, name="kafka-placement", daemon=True).start()
        return self._replicas[: len(self.queues)]

    def close(self) -> None:
        """Wait for the appended records, then end the threads.

        Raises LogError if some events are not in the log."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in (self._owners, self._following):
            if thread is not None:
                thread.stop()
        flush_until = deadline if self._failure is None else time.monotonic() + 1.0
        while (left := self._count_unsent()) and time.monotonic() < flush_until:
            self.flush()
        self.producer.purge()
        for thread in (self._owners, self._following):
            if thread is not None:
                thread.join(max(1.0, deadline - time.monotonic()))
        if left:
            raise LogError(f"Kafka: {left} events were appended and are not in the log")
        if self._lost_events and self._failure is not None:
            raise self._failure

    def failed(self, error: LogError, lost_events: bool = True) -> None:
        """Report that the log has failed. For any thread."""
        self._lost_events |= lost_events
        if self._failure is None:
            self._failure = error
            logger.error("%s", error)
            self._call(lambda: self._listener.fail(error))

    def _count_unsent(self) -> int:
        """Wait a short time, and return the number of events still not in the log."""
        try:
            return self.producer.flush(0.05) + len(self.backlog)
        except KafkaException as error:
            self.failed(LogError(f"Kafka: {text_of(error)}"))
            return len(self.producer) + len(self.backlog)

    def _call(self, what: Callable[[], None]) -> None:
        """Call the function in the loop, if there is one and the log is open."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(lambda: None if self._closed else what())
        except RuntimeError:
            logger.debug("the loop is closed")

    # The methods below are called in the threads.

    def _read(self, batches: list[Arrived]) -> None:
        for batch in batches:
            self._all[batch.partition].read_back(batch.values)

    def _each(self) -> None:
        failpoints.reached("kafka.before_judgement")
        if not self._has_reports:
            self.producer.poll(0)
        if self.backlog:
            self._call(self.flush)
        assert self._following is not None
        trouble = self._trouble(self._following)
        if (trouble is not None) != self._in_trouble:
            self._in_trouble = trouble is not None
            self._call(lambda: self._listener.trouble(trouble))

    def _trouble(self, following: KafkaFollowing) -> str | None:
        now = time.monotonic()
        if not following.away:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = now
        elif now - self._away_since > PATIENCE_SECONDS:
            return "Kafka does not take events: none of its brokers can be reached"
        self.patience.look(now, following.waiting)
        probes = {name: probe for name, each in self._all.items() if (probe := each.probe) is not None}
        silent = self.patience.silent(probes, len(self.producer))
        if silent is None:
            return None
        return f"Kafka does not take events: nothing has come back from {silent} for {PATIENCE_SECONDS} seconds"

    def _owned(self, numbers: frozenset[int]) -> None:
        names = frozenset(self.queues[number].name for number in numbers if number < len(self.queues))
        self._call(lambda: self._listener.duties_changed(names))

    def _gone(self) -> None:
        """Check whether a topic is gone, because a broker that has just started may not know it yet.

        Raises LogError when it is."""
        self._topics.check_identity(self.identity)

    def _error(self, error: KafkaError) -> None:
        if error.fatal():
            self.failed(LogError(f"Kafka: it takes no more events from this node: {text_of(error)}"))

    def _take_reports(self) -> None:
        try:
            while not self._closed:
                if self.producer.poll(_REPORT_SECONDS):
                    failpoints.reached("kafka.after_reports")
                    self._call(self._tell_reports)
        except Exception as error:  # no other code would learn of it, and reported records would never be confirmed
            logger.exception("the thread that takes reports from Kafka ended")
            self.failed(LogError(f"Kafka: the reports of appended events: {error}"))

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._delivery_failed(error, message)
            return
        partition = self._by_place.get((message.topic(), message.partition()))
        if partition is None:
            return
        if partition.reporting and partition.watched:
            partition.reported.append(message.offset() or 0)
        partition.reports += 1

    def _tell_reports(self) -> None:
        """Pass the reports to the listener. In the loop."""
        for partition in self.queues:
            if partition.reported:
                offsets = [partition.reported.popleft() for _ in range(len(partition.reported))]
                self._listener.delivered(partition.name, offsets)

    def _delivery_failed(self, error: KafkaError, message: Message) -> None:
        """Report an undeliverable event; only these are reported."""
        if message.topic() == self._topics.counters:
            self._by_place[message.topic(), message.partition()].reports += 1
            if not self._without_counters:
                self._without_counters = True
                logger.error("Kafka: %s refused counters of queues: %s", message.topic(), text_of(error))
            return
        self.failed(LogError(f"Kafka: {message.topic()}-{message.partition()} refused an event: {text_of(error)}"))

    def _ask_replicas(self) -> None:
        try:
            self._replicas = self._topics.replicas() or self._replicas
        except LogError as error:
            logger.debug("%s", error)
        finally:
            self._replicas_at = time.monotonic()
            self._asking_replicas.release()


async def ends_now(clients: KafkaClients, partitions: Sequence[KafkaPartition]) -> dict[str, int]:
    """Return the end of each of these partitions, by name, below which everything can now be read.

    Raises NoAnswer, LogError."""
    return await _offsets_now(clients, partitions, _LATEST)


async def _offsets_now(
    clients: KafkaClients, partitions: Sequence[KafkaPartition], which: OffsetSpec
) -> dict[str, int]:
    """Return an offset of each of these partitions, by name.

    The client waits for a dead leader until the time is over, even if there is a new leader. So the first question has
    a short time; a slow Kafka has longer for the second.

    Raises NoAnswer, LogError."""
    try:
        return await _offsets_within(SOON_SECONDS, clients, partitions, which)
    except LogError:
        return await _offsets_within(ANSWER_MS / 1000, clients, partitions, which)


async def _offsets_within(
    seconds: float, clients: KafkaClients, partitions: Sequence[KafkaPartition], which: OffsetSpec
) -> dict[str, int]:
    wanted = {TopicPartition(each.topic, each.number): each.name for each in partitions}
    asked = clients.admin().list_offsets(dict.fromkeys(wanted, which), request_timeout=seconds)
    try:
        return {wanted[at]: (await asyncio.wrap_future(found)).offset for at, found in asked.items()}
    except KafkaException as error:
        await asyncio.to_thread(_look_for_leaders, clients, {each.topic for each in partitions})
        raise LogError(f"Kafka: where the partitions begin and end: {text_of(error)}") from error


def _look_for_leaders(clients: KafkaClients, topics: Iterable[str]) -> None:
    """Let the client ask for the leaders anew, because it remembers a missing one for a quarter of an hour."""
    try:
        for topic in topics:
            clients.admin().list_topics(topic, timeout=LEADERS_SECONDS)
    except KafkaException as error:
        logger.debug("Kafka: leaders: %s", text_of(error))
