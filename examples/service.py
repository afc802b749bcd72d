"""A service: publishes orders with confirms, and consumes them with acks. Any AMQP 0-9-1 client will do; this is pika.

python examples/service.py publish 5 amqp://guest:guest@127.0.0.1:5672/
python examples/service.py consume 5 amqp://guest:guest@127.0.0.1:5672/
"""

import sys

import pika

QUEUE = "orders"


def connect(url: str) -> pika.BlockingConnection:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
    return connection


def publish(count: int, url: str) -> None:
    """Publish `count` orders. basic_publish returns when the broker has confirmed: the order is on the disk."""
    with connect(url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(1, count + 1):
            properties = pika.BasicProperties(delivery_mode=2, message_id=f"order-{number}")
            channel.basic_publish("", QUEUE, f"order {number}".encode(), properties, mandatory=True)
            print(f"confirmed: order {number}")


def consume(count: int, url: str) -> None:
    """Take `count` orders, and ack each when its work is done. An order without an ack comes again."""
    with connect(url) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=10)
        for method, properties, body in channel.consume(QUEUE, inactivity_timeout=10):
            if method is None:
                sys.exit("no order came within 10 seconds")
            print(f"done: {body.decode()} ({properties.message_id})")
            channel.basic_ack(method.delivery_tag)
            count -= 1
            if count == 0:
                break
        channel.cancel()


if __name__ == "__main__":
    what, number_of, address = sys.argv[1:]
    {"publish": publish, "consume": consume}[what](int(number_of), address)
