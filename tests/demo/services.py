"""The services of the demo: plain pika programs, as they would be written for RabbitMQ. Nothing here knows RewindMQ.

publisher, one an airport   -> topic exchange `departures`
airport desks               <- airport.EWR / JFK / LGA (quorum): ack, nack what is late once; one is killed
carrier desks               <- carrier.*, all but one: American's is closed, so max-length drops from its head
nobody                      <- board (TTL), cancelled: the queue that an operator will purge by mistake
"""

import json
import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.demo.flights import AIRPORTS, Flight

EXCHANGE = "departures"
CARRIERS = ("UA", "B6", "EV", "DL", "AA")
OPEN_DESKS = CARRIERS[:-1]


def connect(port: int) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def declare(port: int) -> None:
    """Exchanges, queues and bindings; limits and TTLs come by policy."""
    with connect(port) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "topic", durable=True)
        channel.exchange_declare("dead", "fanout", durable=True)
        for airport in AIRPORTS:
            channel.queue_declare(f"airport.{airport}", durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind(f"airport.{airport}", EXCHANGE, f"flight.{airport}.#")
        for carrier in CARRIERS:
            channel.queue_declare(f"carrier.{carrier}", durable=True)
            channel.queue_bind(f"carrier.{carrier}", EXCHANGE, f"flight.*.{carrier}.*")
        for queue, key in (("board", "flight.#"), ("cancelled", "flight.*.*.cancelled")):
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, EXCHANGE, key)
        channel.queue_declare("dead.letters", durable=True)
        channel.queue_bind("dead.letters", "dead", "")


def publish(port: int, flights: Iterable[Flight], done: Callable[[int], None]) -> None:
    """One airport's publisher, with confirms: each departure is safe on disk before the next one is sent."""
    with connect(port) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for flight in flights:
            properties = pika.BasicProperties(delivery_mode=2, content_type="application/json", app_id=flight.airport)
            channel.basic_publish(EXCHANGE, flight.routing_key, flight.body(), properties, mandatory=True)
            done(1)


class Desk(threading.Thread):
    """A consumer. An airport desk acks; it hands a late flight back once, so that another desk looks at it, and it
    never manages a flight to `unreadable`: that one comes back until the delivery limit takes it. `slow`: seconds of
    work a message."""

    def __init__(self, port: int, queue: str, unreadable: str = "", slow: float = 0.0) -> None:
        super().__init__(daemon=True, name=queue)
        self.port = port
        self.queue = queue
        self.unreadable = unreadable
        self.slow = slow
        self.counts: Counter[str] = Counter()
        self.stopping = threading.Event()

    def run(self) -> None:
        connection = connect(self.port)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        for method, _, body in channel.consume(self.queue, inactivity_timeout=0.2):
            if method is not None:
                self.handle(channel, method, json.loads(body))
            if method is None and self.stopping.is_set():
                break
            if self.slow:
                connection.sleep(self.slow)
        channel.cancel()
        connection.close()

    def handle(self, channel: BlockingChannel, method: pika.spec.Basic.Deliver, flight: dict[str, Any]) -> None:
        self.counts["delivered"] += 1
        late = (flight["delay_minutes"] or 0) > 120
        if flight["to"] == self.unreadable or (late and not method.redelivered):
            self.counts["nacked"] += 1
            channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            self.counts["acked"] += 1
            channel.basic_ack(method.delivery_tag)


class DoomedDesk:
    """A desk in a process of its own that takes messages, never settles one, and is killed on the way (SIGKILL)."""

    def __init__(self, port: int, queue: str) -> None:
        self.process = multiprocessing.get_context("spawn").Process(target=_hoard, args=(port, queue), daemon=True)
        self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _hoard(port: int, queue: str) -> None:
    channel = connect(port).channel()
    channel.basic_qos(prefetch_count=20)
    channel.basic_consume(queue, lambda *_: None)
    channel.start_consuming()
