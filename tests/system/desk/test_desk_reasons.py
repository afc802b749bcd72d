"""The desk of a broker that wants a reason asks for one, and shows it (B-78)."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import go, log_in
from tests.support.http_clients import publish_to
from tests.support.pika_clients import confirming
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long


def test_b78_the_desk_asks_why_and_shows_it(start_broker: Callable[..., RunningBroker], page: Page) -> None:
    broker = start_broker(None, "--require-reason")
    with confirming(broker) as channel:
        channel.queue_declare("orders", durable=True)
    publish_to(broker, "orders", "one")
    log_in(page, broker)
    go(page, broker, "#/queues/%2F/orders")
    page.get_by_role("button", name="Pause deliveries").click()
    page.get_by_label("Reason", exact=True).press("Escape")
    expect(page.get_by_text("this broker wants a reason (pause)")).to_be_visible()
    page.get_by_role("button", name="Pause deliveries").click()
    page.get_by_label("Reason", exact=True).fill("Messe é")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("cell", name="paused", exact=True)).to_be_visible()
    page.get_by_role("button", name="Resume deliveries").click()
    page.get_by_label("Reason", exact=True).fill("it is over")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("cell", name="running", exact=True)).to_be_visible()
    go(page, broker, "#/queues/%2F/orders?time=-0s")
    page.get_by_text("Events (").click()
    expect(page.get_by_role("cell", name="paused · Messe é · by guest", exact=True)).to_be_visible()
    expect(page.get_by_role("cell", name="resumed · by guest (it is over)", exact=True)).to_be_visible()
