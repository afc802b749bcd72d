"""A broker with 20,000 queues, and the desk beside it: neither the page nor the broker's other clients wait (B-44).

The broker answers its other clients between the answers to the page, so what counts is how long one of these takes it:
CPU seconds of its process, which other work on the machine hardly changes. `tests/bench/bench_desk.py` has the clock.
"""

import json
from collections.abc import Callable

import httpx2
import pika
import pytest
from playwright.sync_api import Page, Response, expect

from tests.support.browser import go, log_in
from tests.support.running import RunningBroker

pytestmark = pytest.mark.rare

QUEUES = 20_000
ROWS = 100  # of a page
ANSWER_BYTES = 200_000
CPU_SECONDS = 3  # of the broker, for a page of the list, with the answers to what the page asks again


@pytest.fixture(scope="module")
def many(broker: RunningBroker) -> RunningBroker:
    """The broker with its queues: order00000 has most messages."""
    queues = [
        {"name": f"order{number:05}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for number in range(QUEUES)
    ]
    with httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        assert api.post("/definitions", content=json.dumps({"queues": queues}), timeout=300).is_success
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(10):
            for _ in range(10 - number):
                channel.basic_publish("", f"order{number:05}", b"x")
    return broker


@pytest.fixture
def cheap(many: RunningBroker) -> Callable[[str], None]:
    """`cheap(what)`: the broker took little for what was asked for since the last call."""
    before = many.cpu_seconds()

    def checked(what: str) -> None:
        nonlocal before
        now = many.cpu_seconds()
        took, before = now - before, now
        print(f"{what}: {took:.2f} CPU seconds")
        assert took < CPU_SECONDS, what

    return checked


def test_b44_twenty_thousand_queues_slow_neither_the_page_nor_the_broker(
    page: Page, many: RunningBroker, cheap: Callable[[str], None]
) -> None:
    sizes: list[int] = []

    def note(response: Response) -> None:
        if "/api/queues" in response.url:
            sizes.append(len(response.body()))

    log_in(page, many)
    page.on("response", note)
    cheap("log in")
    go(page, many, "#/queues")
    rows = page.locator("tbody tr")
    expect(page.get_by_text("Page 1 of 200")).to_be_visible()
    cheap("first page")
    for title in ("Ready", "Name", "Consumers"):
        page.get_by_role("button", name=title).click()
        expect(page.get_by_role("columnheader", name=f"{title} ▲")).to_be_visible()
        cheap(f"sort by {title}")
    page.get_by_role("button", name="Ready").click()
    page.get_by_role("button", name="Ready ▲").click()
    expect(rows.first).to_contain_text("order00000")
    cheap("sort by ready, both ways")
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("Page 2 of 200")).to_be_visible()
    cheap("next page")
    page.get_by_label("Name contains").fill("order0012")
    page.get_by_role("button", name="Filter").click()
    expect(rows).to_have_count(10)
    expect(page.get_by_text("10 of 20,000")).to_be_visible()
    cheap("filter")
    page.get_by_label("regular expression").check()
    page.get_by_label("Name contains").fill("^order.*99$")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("200 of 20,000")).to_be_visible()
    expect(rows).to_have_count(ROWS)
    cheap("filter by a pattern")
    go(page, many, "#/")
    expect(page.get_by_role("row").filter(has_text="Queues").get_by_text("20,000")).to_be_visible()
    cheap("overview")
    go(page, many, "#/queues/%2F/order00000?time=-0s")
    expect(page.get_by_role("table", name="Messages of order00000 at").locator("tbody tr")).to_have_count(10)
    cheap("a queue at a moment")
    assert max(sizes) < ANSWER_BYTES
