"""A broker with 20,000 queues, and the desk beside it: neither the page nor the broker's other clients wait (B-44)."""

import json
import threading
import time
from collections.abc import Callable

import httpx
import pika
import pytest
from playwright.sync_api import Page, Response, expect

from tests.support.browser import go, log_in
from tests.support.running import RunningBroker

QUEUES = 20_000
ROWS = 100  # of a page
ANSWER_BYTES = 200_000
SECONDS = 15  # a page of the list, on a machine with other work
BESIDE_MS = 150  # by so much a publish may take longer beside the desk, in one of a hundred


@pytest.fixture(scope="module")
def many(broker: RunningBroker) -> RunningBroker:
    """The broker with its queues: order00000 has most messages."""
    queues = [
        {"name": f"order{number:05}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for number in range(QUEUES)
    ]
    with httpx.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False) as api:
        assert api.post("/definitions", content=json.dumps({"queues": queues}), timeout=300).is_success
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(10):
            for _ in range(10 - number):
                channel.basic_publish("", f"order{number:05}", b"x")
    return broker


class Bystander:
    """A client of AMQP that publishes a transient message and gets it back, again and again."""

    def __init__(self, broker: RunningBroker) -> None:
        self._url = broker.amqp_url + "?heartbeat=0"
        self._over = threading.Event()
        self.took_ms: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
            channel = connection.channel()
            channel.queue_declare("bystander")
            while not self._over.is_set():
                began = time.perf_counter()
                channel.basic_publish("", "bystander", b"x")
                while channel.basic_get("bystander", auto_ack=True)[0] is None:
                    pass
                self.took_ms.append((time.perf_counter() - began) * 1_000)
                time.sleep(0.005)

    def p99(self) -> float:
        """Of what came since the last call, in milliseconds."""
        took, self.took_ms = sorted(self.took_ms), []
        return took[len(took) * 99 // 100]


@pytest.fixture
def timed() -> Callable[[str], None]:
    """`timed(what)`: what was asked for is there, in time."""
    began = time.monotonic()

    def there(what: str) -> None:
        nonlocal began
        took, began = time.monotonic() - began, time.monotonic()
        print(f"{what}: {took:.2f} s")
        assert took < SECONDS, what

    return there


def test_b44_twenty_thousand_queues_slow_neither_the_page_nor_the_broker(
    page: Page, many: RunningBroker, timed: Callable[[str], None]
) -> None:
    sizes: list[int] = []

    def note(response: Response) -> None:
        if "/api/queues" in response.url:
            sizes.append(len(response.body()))

    log_in(page, many)
    page.on("response", note)
    with Bystander(many) as bystander:
        time.sleep(3)
        alone = bystander.p99()
        timed("log in")
        go(page, many, "#/queues")
        rows = page.locator("tbody tr")
        expect(page.get_by_text("Page 1 of 201")).to_be_visible()  # the bystander has a queue, too
        timed("first page")
        for title in ("Ready", "Name", "Consumers"):
            page.get_by_role("button", name=title).click()
            expect(page.get_by_role("columnheader", name=f"{title} ▲")).to_be_visible()
            timed(f"sort by {title}")
        page.get_by_role("button", name="Ready").click()
        page.get_by_role("button", name="Ready ▲").click()
        expect(rows.first).to_contain_text("order00000")
        timed("sort by ready, both ways")
        page.get_by_role("button", name="Next").click()
        expect(page.get_by_text("Page 2 of 201")).to_be_visible()
        timed("next page")
        page.get_by_label("Name contains").fill("order0012")
        page.get_by_role("button", name="Filter").click()
        expect(rows).to_have_count(10)
        expect(page.get_by_text("10 of 20,001")).to_be_visible()
        timed("filter")
        page.get_by_label("regular expression").check()
        page.get_by_label("Name contains").fill("^order.*99$")
        page.get_by_role("button", name="Filter").click()
        expect(page.get_by_text("200 of 20,001")).to_be_visible()
        expect(rows).to_have_count(ROWS)
        timed("filter by a pattern")
        go(page, many, "#/")
        expect(page.get_by_role("row").filter(has_text="Queues").get_by_text("20,001")).to_be_visible()
        timed("overview")
        go(page, many, "#/queues/%2F/order00000?time=-0s")
        expect(page.get_by_role("table", name="Messages of order00000 at").locator("tbody tr")).to_have_count(10)
        timed("a queue at a moment")
        beside = bystander.p99()
    print(f"a publish and its delivery, p99: alone {alone:.1f} ms, beside the desk {beside:.1f} ms")
    assert max(sizes) < ANSWER_BYTES
    assert beside < alone + BESIDE_MS
