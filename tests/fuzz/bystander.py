"""A client that behaves, beside those that do not: it publishes a message and waits until it is delivered, again and
again, in a vhost of its own. A process of its own, so that what others of us do is not in its figures.

    python -m tests.fuzz.bystander PORT      until its stdin ends; then a JSON list of milliseconds on stdout
"""

import json
import sys
import threading
import time

import pika

CALM = "calm"  # user, password and vhost
PAUSE_SECONDS = 0.01


def measured(port: int, over: threading.Event) -> list[float]:
    """From publish to delivery, in milliseconds."""
    url = f"amqp://{CALM}:{CALM}@127.0.0.1:{port}/{CALM}"
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare("bystander", durable=True)
    came: list[float] = []
    channel.basic_consume("bystander", lambda *_: came.append(time.perf_counter()), auto_ack=True)
    found = []
    while not over.is_set():
        began = time.perf_counter()
        channel.basic_publish("", "bystander", b"x", pika.BasicProperties(delivery_mode=2))
        while not came:
            connection.process_data_events(1)
        found.append((came.pop() - began) * 1e3)
        connection.sleep(PAUSE_SECONDS)
    connection.close()
    return found


def main() -> None:
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    print(json.dumps(measured(int(sys.argv[1]), over)))


if __name__ == "__main__":
    main()
