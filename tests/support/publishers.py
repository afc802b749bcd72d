"""Publishers in threads of their own."""

import threading
from contextlib import suppress
from queue import SimpleQueue

import pika

from tests.support.pika_clients import connect
from tests.support.running import RunningBroker

BODY = b"x" * 2_000


class Publisher(threading.Thread):
    """A publish every few milliseconds until told that publishing is blocked, as a decent client does. The broker tells
    those who publish, as RabbitMQ does. (SelectConnection, in a thread of its own.)"""

    def __init__(self, broker: RunningBroker) -> None:
        super().__init__()
        self.blocked: list[str] = []
        self.unblocked = 0
        self.published = 0
        self.confirmed = 0
        self.nacked = 0
        self.stopping = False
        self.ended = ""
        self.connection = pika.SelectConnection(
            pika.URLParameters(broker.amqp_url + "?heartbeat=0"),
            on_open_callback=self.opened,
            on_close_callback=self.closed,
        )
        self.connection.add_on_connection_blocked_callback(lambda _, frame: self.blocked.append(frame.method.reason))
        self.connection.add_on_connection_unblocked_callback(lambda *_: setattr(self, "unblocked", self.unblocked + 1))

    def run(self) -> None:
        self.connection.ioloop.start()

    def opened(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self.ready)

    def ready(self, channel: pika.channel.Channel) -> None:
        self.channel = channel
        channel.confirm_delivery(self.answered, lambda _: self.publish())

    def publish(self) -> None:
        if not self.channel.is_open:  # the broker has closed it, which `closed` hears next
            return
        if self.stopping and self.confirmed == self.published:
            self.connection.close()
            return
        if not self.stopping and len(self.blocked) == self.unblocked:
            body = b"%d " % self.published + BODY
            self.published += 1
            self.channel.basic_publish("", "kept", body, pika.BasicProperties(delivery_mode=2))
        self.connection.ioloop.call_later(0.005, self.publish)

    def answered(self, frame: pika.frame.Method) -> None:
        if isinstance(frame.method, pika.spec.Basic.Nack):
            self.nacked += 1
        elif frame.method.multiple:
            self.confirmed = frame.method.delivery_tag
        else:
            self.confirmed += 1

    def closed(self, connection: pika.SelectConnection, reason: Exception) -> None:
        self.ended = type(reason).__name__
        connection.ioloop.stop()


class WaitingPublisher:
    """A publisher in a thread of its own, which waits for each confirm. `confirmed`: how many came."""

    def __init__(self, broker: RunningBroker) -> None:
        self.confirmed = 0
        self._asked: SimpleQueue[bytes] = SimpleQueue()
        self._broker = broker
        threading.Thread(target=self._run, daemon=True).start()
        self.publish()

    def publish(self) -> None:
        self._asked.put(b"body")

    def _run(self) -> None:
        with suppress(pika.exceptions.AMQPError):  # the broker ends with the test
            channel = connect(self._broker).channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            while True:
                channel.basic_publish("", "q", self._asked.get(), pika.BasicProperties(delivery_mode=2))
                self.confirmed += 1
