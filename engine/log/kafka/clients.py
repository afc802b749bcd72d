"""Sets up RewindMQ's Kafka clients (librdkafka), and turns Kafka's errors into the log's.

All code that needs Kafka gets its clients here, so that addresses and security are configured once:

    clients = KafkaClients("host:9092,host:9092", {"security.protocol": "SASL_SSL", ...})
    clients.admin(); clients.consumer({...}); clients.producer(...)

- A dead node is noticed within seconds: a request without an answer for `ANSWER_MS` is abandoned and its connection
  reopened, and lost connections are reopened quickly, without the usual back-off of up to ten seconds.
- No client creates a topic by requesting it.
"""

import concurrent.futures
import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rewindmq.engine.log.contract import LogError, NoAnswer, NobodyAnswers
from rewindmq.engine.log.kafka.msk import with_tokens

T = TypeVar("T")

logger = logging.getLogger(__name__)
# librdkafka warns about an experimental setting (gapless).
logger.addFilter(lambda record: not record.getMessage().startswith("CONFWARN"))


class Seldom(logging.Filter):
    """A filter that passes log lines which differ only in numbers once in `SECONDS`.

    While a broker is unreachable each client retries many times a second, and librdkafka logs each attempt."""

    SECONDS = 60.0
    MOST = 1_000  # texts remembered

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text = re.sub(r"(?<![.:\d])\d+(?![.:\d])", "N", record.getMessage())  # addresses keep their numbers
        now = self._clock()
        if now - self._said.get(text, -self.SECONDS) < self.SECONDS:
            return False
        if len(self._said) >= self.MOST:
            self._said.clear()
        self._said[text] = now
        return True


logger.addFilter(Seldom())

# The time for which start, tools and rewinds wait for Kafka, and for the answer to one request. A request waits for the
# controller that the client knows, so it must be repeated to reach the next one.
TIMEOUT_SECONDS = 30.0
ANSWER_MS = 6_000
ANSWER_SECONDS = ANSWER_MS / 1_000

# The time for which an answer counts as temporary: a leader is being elected, a broker has just started, or not all
# brokers know a new topic.
UNKNOWN_SECONDS = 3.0
_AGAIN_SECONDS = 0.05
_TRANSIENT = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NOT_CONTROLLER,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
)
ASKED_SECONDS: dict[int, float] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: UNKNOWN_SECONDS,
    KafkaError._UNKNOWN_TOPIC: UNKNOWN_SECONDS,
    KafkaError._UNKNOWN_PARTITION: UNKNOWN_SECONDS,
    KafkaError.INVALID_REPLICATION_FACTOR: UNKNOWN_SECONDS,  # more replicas than brokers that have started so far
    **dict.fromkeys(_TRANSIENT, TIMEOUT_SECONDS),
}

UNHEARD = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)

_EVERYBODY: dict[str, Any] = {
    "client.id": "rewindmq",
    "socket.nagle.disable": True,
    "socket.keepalive.enable": True,
    "socket.timeout.ms": ANSWER_MS,
    "socket.connection.setup.timeout.ms": ANSWER_MS,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
}
_CONSUMERS: dict[str, Any] = {
    "group.id": "rewindmq-unused",
    "fetch.wait.max.ms": 500,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    # Otherwise librdkafka checks again only after a second when its queue was full.
    "fetch.queue.backoff.ms": 5,
    "fetch.error.backoff.ms": 50,
    "queued.max.messages.kbytes": 32 * 1024,
}
# A consumer here knows its own start offset; a service's open transaction must not delay the nodes.
_CONSUMERS_MUST: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    "allow.auto.create.topics": False,
}
# No user's setting changes these. Readers and `KafkaClients.consumer` set them.
CONSUMERS_OWN = frozenset({*_CONSUMERS_MUST, "bootstrap.servers", "enable.partition.eof", "logger", "log_level"})
# A millisecond of linger: without it librdkafka sends a request for every few records, which costs it 6 us of CPU a
# message instead of 2, and on full cores makes the round trip longer, not shorter. Compression costs more CPU than it
# saves here.
_PRODUCERS: dict[str, Any] = {
    "linger.ms": 1,
    "compression.type": "none",
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1024 * 1024,
    "topic.metadata.propagation.max.ms": 10_000,
}
# Events are sent in order, once each, and retried for ever. If one event is finally refused, none follows it (gapless).
# One request at a time goes to each broker. With several, if the first fails temporarily (a leader is elected, a
# replica is missing), the later ones are refused as out of order, librdkafka gives up the producer's epoch for all
# partitions, and a request to another partition whose answer was lost is written a second time. A round trip is no
# slower, and a batch holds more.
_PRODUCERS_MUST: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "max.in.flight.requests.per.connection": 1,
    "message.timeout.ms": 0,
    "message.send.max.retries": 2_147_483_647,
    "delivery.report.only.error": True,
}


class KafkaClients:
    """A maker of the clients of one Kafka.

    `settings` are librdkafka's, for all clients (above all security). They cannot change the log's guarantees."""

    def __init__(self, bootstrap: str, settings: Mapping[str, str] | None = None) -> None:
        self.bootstrap = bootstrap
        self._settings = {**(settings or {}), "bootstrap.servers": bootstrap}

    @property
    def is_secured(self) -> bool:
        """Return True if a client needs more than the address."""
        return len(self._settings) > 1

    def admin(self) -> AdminClient:
        """Return the admin client, always the same one, for any thread."""
        return self._admin

    @cached_property
    def _admin(self) -> AdminClient:
        # Its log would stay in a queue that no code reads; errors are in the exceptions.
        return self._made(AdminClient, {**_EVERYBODY, **self._settings, "log_level": 0})

    @cached_property
    def asking(self) -> Consumer:
        """Return the consumer for questions about offsets, for any thread."""
        return self.consumer({})

    def require_answer(self, seconds: float) -> None:
        """Check that a broker answers within `seconds`.

        Raises NobodyAnswers with the reason."""
        errors: list[str] = []

        def note(error: KafkaError) -> None:
            if error.code() != KafkaError._ALL_BROKERS_DOWN:  # it adds nothing to the other errors
                errors[:] = [error.str()]

        consumer = self.consumer({"error_cb": note})
        try:
            consumer.list_topics(timeout=seconds)
        except KafkaException as error:
            consumer.poll(0.1)  # calls `note`
            why = self._without_values(errors[0] if errors else text_of(error))
            raise NobodyAnswers(f"Kafka: no answer from {self.bootstrap}: {why}") from None
        finally:
            consumer.close()

    def watermarks(self, topic: str, number: int) -> tuple[int, int]:
        """Return the offsets at which a partition begins and ends. Raises LogError, NoAnswer."""
        partition = TopicPartition(topic, number)

        def ask() -> tuple[int, int]:
            try:
                return self.asking.get_watermark_offsets(partition, timeout=TIMEOUT_SECONDS)
            except KafkaException as error:
                if code_of(error) != KafkaError._UNKNOWN_PARTITION:
                    raise
            # Its leader was once away. The client remembers that for a quarter of an hour, unless it has to ask anew.
            self.asking.list_topics(topic, timeout=TIMEOUT_SECONDS)
            return self.asking.get_watermark_offsets(partition, timeout=TIMEOUT_SECONDS)

        return asked(f"the beginning and the end of {topic}-{number}", ask)

    def consumer(self, settings: Mapping[str, Any], logs: bool = False) -> Consumer:
        """Make a new consumer. It logs only when polled, so a consumer for a single question does not (`logs`)."""
        log_to: dict[str, Any] = {"logger": logger} if logs else {"log_level": 0}
        must = {**_CONSUMERS_MUST, **settings, **log_to}
        return self._made(Consumer, {**_EVERYBODY, **_CONSUMERS, **self._settings, **must})

    def producer(self, settings: Mapping[str, Any]) -> Producer:
        """Make a new producer. `settings` and the log's own settings override the user's."""
        must = {**_PRODUCERS_MUST, **settings, "logger": logger}
        return self._made(Producer, {**_EVERYBODY, **_PRODUCERS, **self._settings, **must})

    def _made(self, kind: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
        """Make a client of this kind.

        Raises LogError without the original error, which may show the value of a setting."""
        try:
            return kind(with_tokens(settings))
        except KafkaException as error:
            why = text_of(error)
        except (AttributeError, TypeError, ValueError) as error:  # text in place of a function
            why = str(error)
        raise LogError(f"Kafka: its client cannot be set up: {self._without_values(why)}")

    def _without_values(self, text: str) -> str:
        """Return the text with the values of settings, and each part of a list, replaced by `***`.

        Settings may be secrets, or contain another setting's secret."""
        values = [value for name, value in self._settings.items() if name != "bootstrap.servers"]
        parts = {part for value in values for part in (value, *re.split(r"[,;=\s]+", value)) if part}
        for part in sorted(parts, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(part)}(?!\w)", "***", text)
        return text


def asked(what: str, ask: Callable[[], T]) -> T:
    """Return the result of `ask()`, which is repeated until Kafka has settled.

    Raises its errors as a LogError that names `what` was requested; NoAnswer if Kafka may answer later."""
    began = time.monotonic()
    while True:
        try:
            return ask()
        except (KafkaException, concurrent.futures.TimeoutError) as error:
            code = code_of(error) if isinstance(error, KafkaException) else KafkaError._TIMED_OUT
            text = text_of(error) if isinstance(error, KafkaException) else "no answer"
            if time.monotonic() - began >= ASKED_SECONDS.get(code, 0):
                kind = NoAnswer if code in (*UNHEARD, *_TRANSIENT) else LogError
                raise kind(f"Kafka: {what}: {text}") from error
        time.sleep(_AGAIN_SECONDS)


def text_of(error: KafkaException | KafkaError) -> str:
    """Return the error in words. An exception carries a KafkaError."""
    carried = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return carried.str() if isinstance(carried, KafkaError) else str(carried)


def code_of(error: KafkaException) -> int:
    carried = error.args[0] if error.args else None
    return carried.code() if isinstance(carried, KafkaError) else KafkaError.UNKNOWN
