"""Takes the pictures of the desk in docs/pictures anew: `python -m tests.support.pictures` (some 40 seconds).

A broker of its own, real clients, and Chromium. Take them again when a page of them has changed, and look at them.
"""

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel
from playwright.sync_api import Page, expect, sync_playwright

from tests.support.browser import go, log_in
from tests.support.needs import found
from tests.support.running import ROOT, RunningBroker

PICTURES = ROOT / "docs" / "pictures"
SIZE = (1300, 900)
A_LITTLE = 0.08  # seconds between two messages: the length over time is to be seen


@contextmanager
def connected(broker: RunningBroker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def publish(channel: BlockingChannel, queue: str, count: int, seconds: float = 0) -> None:
    for number in range(1, count + 1):
        channel.basic_publish("", queue, f'{{"order": {number}}}'.encode(), pika.BasicProperties(delivery_mode=2))
        time.sleep(seconds)


def a_queue(page: Page, broker: RunningBroker, channel: BlockingChannel) -> None:
    """Orders were purged, and it is seen which messages would come back."""
    channel.queue_declare("orders", durable=True)
    publish(channel, "orders", 90, A_LITTLE)
    channel.queue_purge("orders")
    time.sleep(1)
    publish(channel, "orders", 20, A_LITTLE)
    go(page, broker, "#/queues/%2F/orders")
    page.get_by_role("button", name="Show what would come back").click()
    expect(page.get_by_text("would come back into orders")).to_be_visible()
    page.get_by_text("Events (").click()
    expect(page.get_by_role("button", name=re.compile("before purged, 90 messages"))).to_be_visible()
    page.screenshot(path=PICTURES / "desk-queue.png", full_page=True)


def a_policy(page: Page, broker: RunningBroker, channel: BlockingChannel) -> None:
    """A shorter queue is asked for, and it is seen which messages would leave."""
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "late"}
    for queue, count, arguments in (("orders.eu", 340, {}), ("orders.us", 210, letters), ("orders.asia", 60, {})):
        channel.queue_declare(queue, durable=True, arguments=arguments)
        publish(channel, queue, count)
    go(page, broker, "#/policies")
    form = page.locator("form.change")
    form.get_by_label("Name", exact=True).fill("all-orders")
    form.get_by_label("Pattern").fill("^orders")
    form.get_by_label("Definition (JSON)").fill('{"max-length": 100}')
    form.get_by_role("button", name="Show what it would do").click()
    expect(page.get_by_text("350 messages would leave at once")).to_be_visible()
    page.screenshot(path=PICTURES / "desk-policy.png", full_page=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        broker = RunningBroker(Path(directory) / "data")
        chromium = playwright.chromium.launch(executable_path=found("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        log_in(page, broker)
        with connected(broker) as channel:
            a_queue(page, broker, channel)
            a_policy(page, broker, channel)
        chromium.close()
        broker.stop()


if __name__ == "__main__":
    main()
