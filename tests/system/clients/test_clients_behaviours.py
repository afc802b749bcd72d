"""Behaviours (docs/behaviours.md) that show only over a policy, a restart or a whole journey, asked from
outside: pika and HTTP."""

import base64
import json
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError

from tests.support.running import RunningBroker

QUORUM = {"x-queue-type": "quorum"}
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Service:
    """A connection, a channel with confirms, and an operator's way to policies."""

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        self.channel: BlockingChannel = self.connection.channel()
        self.channel.confirm_delivery()
        self.name = f"b-{uuid.uuid4().hex[:8]}"

    def queue(self, arguments: dict[str, Any] | None = None, suffix: str = "") -> str:
        return str(self.channel.queue_declare(self.name + suffix, durable=True, arguments=arguments).method.queue)

    def policy(self, definition: dict[str, Any], kind: str = "policies") -> None:
        """Sets the one policy of this kind for the queue without a suffix."""
        body = {"pattern": f"^{self.name}$", "definition": definition, "apply-to": "queues"}
        request = urllib.request.Request(
            f"{self.broker.http_url}/api/{kind}/%2F/{urllib.parse.quote(self.name)}",
            json.dumps(body).encode(),
            {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(), "Content-Type": "application/json"},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status in (201, 204)

    def publish(self, queue: str, *bodies: str, exchange: str = "") -> list[bool]:
        """True for each that was confirmed, False for each basic.nack."""
        told = []
        for body in bodies:
            try:
                self.channel.basic_publish(exchange, queue, body.encode(), PERSISTENT)
                told.append(True)
            except NackError:
                told.append(False)
        return told

    def count(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def until(self, queue: str, count: int) -> None:
        deadline = time.monotonic() + 60
        while self.count(queue) != count:
            assert time.monotonic() < deadline, f"{queue} has {self.count(queue)} messages, not {count}"
            time.sleep(0.02)

    def drain(self, queue: str) -> list[str]:
        bodies = []
        while (got := self.channel.basic_get(queue, auto_ack=True))[0] is not None:
            bodies.append(got[2].decode())
        return bodies


@pytest.fixture
def service(broker: RunningBroker) -> Iterator[Service]:
    service = Service(broker)
    yield service
    if service.connection.is_open:
        service.connection.close()


BOTH = pytest.mark.parametrize("kind", [{}, QUORUM], ids=["classic", "quorum"])


@BOTH
@pytest.mark.parametrize(("argument", "policy", "operator"), [(2, 4, 5), (4, 2, 5), (4, 5, 2)])
def test_the_smallest_limit_of_all_counts(
    service: Service, kind: dict[str, Any], argument: int, policy: int, operator: int
) -> None:
    """S-003, S-004, S-024: argument, policy and operator policy; the minimum."""
    service.policy({"max-length": policy})
    service.policy({"max-length": operator}, "operator-policies")
    queue = service.queue({**kind, "x-max-length": argument})
    service.publish(queue, *"abcdef")
    assert service.drain(queue) == ["e", "f"]


@BOTH
def test_a_lowered_limit_drops_at_once(service: Service, kind: dict[str, Any]) -> None:
    """S-028: max-length, then max-length-bytes, then overflow back to drop-head of a queue already too long."""
    queue = service.queue(kind)
    service.publish(queue, *"abcdefgh")
    service.policy({"max-length": 6})
    service.until(queue, 6)
    service.policy({"max-length-bytes": 4})
    service.until(queue, 4)
    service.policy({"max-length": 4, "overflow": "reject-publish"})
    assert service.publish(queue, "x")[-1] is False or service.publish(queue, "y") == [False]  # S-026
    held = service.count(queue)
    service.policy({"max-length": 2, "overflow": "reject-publish"})
    assert service.count(queue) == held
    service.policy({"max-length": 2, "overflow": "drop-head"})
    service.until(queue, 2)
    assert len(service.drain(queue)) == 2


def test_overflow_of_argument_and_policy(service: Service) -> None:
    """S-029: classic, the argument wins; quorum, the policy."""
    service.policy({"overflow": "reject-publish"})
    classic = service.queue({"x-max-length": 1, "x-overflow": "drop-head"})
    assert service.publish(classic, "a", "b", "c") == [True, True, True]
    assert service.drain(classic) == ["c"]
    service.channel.queue_delete(classic)
    quorum = service.queue({**QUORUM, "x-max-length": 1, "x-overflow": "drop-head"})
    assert service.publish(quorum, *"abcd")[-1] is False
    assert service.drain(quorum)[0] == "a"


def test_quorum_takes_again_below_four_fifths(service: Service) -> None:
    """S-026, S-027: a blocked publisher is let on at 80 % of the limit, not at once below it."""
    queue = service.queue({**QUORUM, "x-max-length": 10, "x-overflow": "reject-publish"})
    told = service.publish(queue, *(str(n) for n in range(14)))
    held = sum(told)
    assert told == [True] * held + [False] * (14 - held)
    assert held in (10, 11)
    while service.count(queue) > 9:
        service.channel.basic_get(queue, auto_ack=True)
    assert service.publish(queue, "early") == [False]
    service.channel.basic_get(queue, auto_ack=True)
    assert service.publish(queue, "late") == [True]


def test_a_refusal_by_one_queue_of_three(service: Service) -> None:
    """S-010, S-011: basic.nack, and yet in all the others."""
    queues = [
        service.queue({"x-max-length": 0, "x-overflow": "reject-publish"}),
        service.queue(None, "-b"),
        service.queue(QUORUM, "-c"),
    ]
    service.channel.exchange_declare(service.name, "fanout", durable=True)
    for queue in queues:
        service.channel.queue_bind(queue, service.name)
    assert service.publish("", "x", exchange=service.name) == [False]
    assert [service.drain(queue) for queue in queues] == [[], ["x"], ["x"]]


def test_quorum_treats_reject_publish_dlx_as_drop_head(service: Service) -> None:
    """S-025."""
    queue = service.queue({**QUORUM, "x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    assert service.publish(queue, "a", "b") == [True, True]
    assert service.drain(queue) == ["b"]


@BOTH
def test_a_later_ttl_leaves_the_queued_alone(service: Service, kind: dict[str, Any]) -> None:
    """S-045, S-048, S-051: expiry is fixed at enqueue; what comes after the change expires, once it is at the head."""
    queue = service.queue(kind)
    service.publish(queue, "old")
    service.policy({"message-ttl": 30})
    service.publish(queue, "new")
    time.sleep(0.2)
    assert service.count(queue) == 2  # S-046: behind the head it counts still
    assert service.drain(queue) == ["old"]
    assert service.count(queue) == 0


def test_a_dead_letter_keeps_no_ttl_and_its_delivery_mode(service: Service) -> None:
    """S-052, S-154."""
    letters = service.queue(None, "-dead")
    queue = service.queue({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters})
    service.channel.basic_publish("", queue, b"x", pika.BasicProperties(expiration="20", delivery_mode=2))
    service.until(letters, 1)
    _, properties, _ = service.channel.basic_get(letters, auto_ack=True)
    assert properties.expiration is None
    assert properties.delivery_mode == 2
    assert properties.headers["x-death"][0]["original-expiration"] == "20"


def test_a_reply_queue_that_nobody_uses_goes(service: Service) -> None:
    """S-054, S-055, S-058, S-085: server-named, exclusive, x-expires."""
    queue = service.channel.queue_declare("", exclusive=True, arguments={"x-expires": 100}).method.queue
    assert queue.startswith("amq.gen-")
    time.sleep(0.5)
    with pytest.raises(ChannelClosedByBroker) as caught:
        service.channel.queue_declare(queue, passive=True)
    assert (caught.value.reply_code, caught.value.reply_text) == (404, f"NOT_FOUND - no queue '{queue}' in vhost '/'")


def test_declaring_creates_once_and_counts_ready(service: Service) -> None:
    """S-065, S-066, S-071, S-073, S-090: absent, then there; the same again changes nothing; only ready are counted."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        service.channel.basic_get(service.name)
    assert caught.value.reply_code == 404
    service.channel = service.connection.channel()
    for kind in ({}, {"x-queue-type": "classic"}):
        service.queue(kind)
    queue = service.queue(QUORUM, "-quorum")
    for body in "abc":
        service.channel.basic_publish("", queue, body.encode())
    service.until(queue, 3)
    service.channel.basic_get(queue)
    assert service.channel.queue_declare(queue, durable=True, arguments=QUORUM).method.message_count == 2
    assert service.drain(queue) == ["b", "c"]


@pytest.mark.parametrize("how", ["nack", "reject"])
def test_every_return_counts_up_to_the_policys_delivery_limit(service: Service, how: str) -> None:
    """S-100 (before 4.3 both count), S-144, S-157, S-158, S-159: limit N allows N + 1 deliveries, then dead letter."""
    letters = service.queue(None, "-dead")
    service.policy({"delivery-limit": 2, "dead-letter-exchange": "", "dead-letter-routing-key": letters})
    queue = service.queue(QUORUM)
    service.publish(queue, "x")
    counts = []
    for _ in range(3):
        service.until(queue, 1)
        method, properties, _ = service.channel.basic_get(queue)
        counts.append((properties.headers or {}).get("x-delivery-count", 0))
        getattr(service.channel, f"basic_{how}")(method.delivery_tag, requeue=True)
    assert counts == [0, 1, 2]
    service.until(letters, 1)
    _, properties, _ = service.channel.basic_get(letters, auto_ack=True)
    assert properties.headers["x-first-death-reason"] == "delivery_limit"
    assert service.count(queue) == 0


def test_leaving_at_least_once_forgets_the_letters_in_waiting(service: Service) -> None:
    """S-148, S-150, S-151, S-153: without a route letters wait and fill the queue; at-most-once deletes them."""
    definition = {
        "dead-letter-strategy": "at-least-once",
        "overflow": "reject-publish",
        "max-length": 2,
        "dead-letter-exchange": f"{service.name}-dlx",
    }
    service.policy(definition)
    queue = service.queue(QUORUM)
    service.publish(queue, "a", "b")
    for _ in range(2):
        service.channel.basic_reject(service.channel.basic_get(queue)[0].delivery_tag, requeue=False)
    service.until(queue, 0)
    assert service.publish(queue, *"cdef")[-1] is False  # nothing but dead letters
    service.policy({**definition, "dead-letter-strategy": "at-most-once"})
    service.drain(queue)
    assert service.publish(queue, "g") == [True]
    letters = service.queue(None, "-dead")
    service.channel.exchange_declare(f"{service.name}-dlx", "fanout", durable=True)
    service.channel.queue_bind(letters, f"{service.name}-dlx")
    service.policy(definition)
    service.channel.basic_reject(service.channel.basic_get(queue)[0].delivery_tag, requeue=False)
    service.until(letters, 1)
    assert service.drain(letters) == ["g"]


def test_what_a_restart_keeps(start_broker: Callable[..., RunningBroker]) -> None:
    """S-074, S-075, S-080, S-084: durable queues and persistent messages stay; transient and exclusive queues go."""
    first = start_broker()
    service = Service(first)
    durable, quorum = service.queue(), service.queue(QUORUM, "-quorum")
    service.channel.queue_declare("transient", durable=False)
    service.channel.queue_declare("mine", durable=True, exclusive=True)
    for queue in (durable, quorum, "transient"):
        service.publish(queue, "persistent")
        service.channel.basic_publish("", queue, b"passing", pika.BasicProperties(delivery_mode=1))
    first.stop()
    again = Service(start_broker(first.data))
    assert again.drain(durable) == ["persistent"]
    assert again.drain(quorum) == ["persistent", "passing"]  # S-135: a quorum queue keeps all
    for queue in ("transient", "mine"):
        with pytest.raises(ChannelClosedByBroker) as caught:
            again.connection.channel().queue_declare(queue, passive=True)
        assert caught.value.reply_code == 404
    again.connection.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-message-ttl": -1}, "{value_negative,-1}"),
        ({"x-message-ttl": 315_360_000_001}, "{value_too_large,315360000001}"),
        ({"x-expires": 0}, "{value_zero,0}"),
        ({"x-max-length-bytes": -1}, "{value_negative,-1}"),
        ({"x-overflow": "burst"}, "invalid_overflow"),
        ({"x-dead-letter-routing-key": "k"}, "routing_key_but_no_dlx_defined"),
    ],
)
def test_bad_arguments_name_the_fault(service: Service, arguments: dict[str, Any], text: str) -> None:
    """S-020, S-021, S-023, S-036, S-057, S-072."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        service.queue(arguments)
    assert caught.value.reply_code == 406
    assert text in caught.value.reply_text


def test_immediate_is_not_implemented(service: Service) -> None:
    """S-040: a hard error."""
    method = pika.spec.Basic.Publish(exchange="", routing_key="x", immediate=True)
    service.channel._impl._send_method(method, (pika.BasicProperties(), b""))
    with pytest.raises(ConnectionClosedByBroker) as caught:
        service.connection.process_data_events(time_limit=5)
    assert (caught.value.reply_code, caught.value.reply_text) == (540, "NOT_IMPLEMENTED - immediate=true")


@pytest.mark.parametrize("expiration", ["12a", "-1", "315360000001", ""])
def test_a_bad_expiration_closes_the_channel(service: Service, expiration: str) -> None:
    """S-042, S-043: only decimal digits, within the bounds of the queue's TTL."""
    queue = service.queue()
    with pytest.raises(ChannelClosedByBroker) as caught:
        service.channel.basic_publish("", queue, b"x", pika.BasicProperties(expiration=expiration))
    assert caught.value.reply_code == 406
    assert caught.value.reply_text.startswith(f"PRECONDITION_FAILED - invalid expiration '{expiration}'")


@BOTH
def test_ttl_zero_reaches_a_waiting_consumer_alone(service: Service, kind: dict[str, Any]) -> None:
    """S-039, S-041: delivered at once to who waits; without a consumer it is a dead letter, and nothing is returned."""
    letters = service.queue(None, "-dead")
    queue = service.queue(
        {**kind, "x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    )
    got: list[bytes] = []
    tag = service.channel.basic_consume(queue, lambda _c, _m, _p, body: got.append(body), auto_ack=True)
    service.publish(queue, "caught")
    deadline = time.monotonic() + 60
    while not got and time.monotonic() < deadline:
        service.connection.process_data_events(0.05)
    service.channel.basic_cancel(tag)
    assert got == [b"caught"]
    service.channel.basic_publish("", queue, b"missed", mandatory=True)  # an UnroutableError would say it was returned
    service.until(letters, 1)
    _, properties, body = service.channel.basic_get(letters, auto_ack=True)
    assert (body, properties.headers["x-first-death-reason"]) == (b"missed", "expired")


@pytest.mark.parametrize("settle", ["ack", "nack", "reject"])
def test_an_unknown_tag_closes_the_channel(service: Service, settle: str) -> None:
    """S-099."""
    getattr(service.channel, f"basic_{settle}")(77)
    with pytest.raises(ChannelClosedByBroker) as caught:
        service.queue()
    assert (caught.value.reply_code, caught.value.reply_text) == (406, "PRECONDITION_FAILED - unknown delivery tag 77")


@BOTH
def test_a_prefetch_shares_out_in_turn_and_returns_change_the_order(service: Service, kind: dict[str, Any]) -> None:
    """S-091, S-092, S-093, S-098: each consumer takes in FIFO order up to its own limit; what comes back is first."""
    queue = service.queue(kind)
    service.publish(queue, *"abcd")
    held: list[list[tuple[int, bytes]]] = [[], []]
    channels = [service.connection.channel(), service.connection.channel()]
    for channel, mine in zip(channels, held, strict=True):
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue, lambda _c, m, _p, body, mine=mine: mine.append((m.delivery_tag, body)))
    deadline = time.monotonic() + 60
    while not all(held) and time.monotonic() < deadline:
        service.connection.process_data_events(0.05)
    assert [[body for _, body in mine] for mine in held] == [[b"a"], [b"b"]]
    assert service.count(queue) == 2
    for channel in channels:
        channel.close()
    service.until(queue, 4)
    assert service.drain(queue) == ["a", "b", "c", "d"]
