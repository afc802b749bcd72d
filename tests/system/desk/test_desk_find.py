"""Order 4711 is found in the desk, and its life is told."""

import re

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import go, log_in
from tests.support.deadlines import until
from tests.support.http_clients import publish
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

HOSTILE = "<img src=x onerror=alert(1)>\"'&<script>alert(2)</script>"


def ended(page: Page, text: str) -> None:
    """Wait for the end of a search that says this."""
    expect(page.get_by_role("status")).to_have_text(re.compile(re.escape(text) + ".* until "))


def test_order_4711_is_found_by_each_key_and_its_life_names_the_rules(
    api: httpx2.Client, broker: RunningBroker, page: Page
) -> None:
    arguments = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "late"}
    api.put("/queues/%2F/late", json={"durable": True})
    api.put("/queues/%2F/orders", json={"durable": True, "arguments": arguments})
    for order in range(4_600, 4_800):
        headers = {"order": f"h-{order}"}
        ids = {"message_id": f"o-{order}", "correlation_id": f"c-{order}"}
        publish(api, "orders", f'{{"order": {order}}}', headers=headers, **ids)
    until(lambda: api.get("/queues/%2F/late/at?time=-0s&count=0").json()["messages"] == 200, "orders expire")
    log_in(page, broker)
    page.get_by_role("link", name="Find", exact=True).click()
    for fields in (
        {"Message id": "o-4711"},
        {"Correlation id": "c-4711"},
        {"Header": "order", "Value of the header": "h-4711"},
        {"Text in the body": '"order": 4711}'},
    ):
        go(page, broker, "#/")
        go(page, broker, "#/find")
        page.get_by_label("Queue").fill("orders")
        for label, text in fields.items():
            page.get_by_label(label, exact=True).fill(text)
        page.get_by_role("button", name="Find").click()
        ended(page, "1 found in queue orders of vhost /")
    page.reload()
    ended(page, "1 found in queue orders of vhost /")  # the search is in the address
    page.locator("tbody a").first.click()
    ends = page.locator(".ends li")
    expect(ends).to_have_count(2)
    expect(ends.nth(0)).to_contain_text("orders: expired")
    expect(ends.nth(0)).to_contain_text("Decided by: argument x-message-ttl")
    expect(ends.nth(1)).to_have_text("late: still in the queue")
    expect(page.locator("pre")).to_have_text('{"order": 4711}')
    page.get_by_label("Hex").check()
    expect(page.locator("pre")).to_contain_text("7b 22 6f 72 64 65 72 22")
    before = page.locator(".life li a[href*='/late?offset=']").filter(has_text="The queue before").last
    found = re.fullmatch(r"#/queues/%2F/late\?offset=(\d+)&partition=queues-\d+", before.get_attribute("href") or "")
    assert found is not None
    offset = int(found[1])
    counts = [api.get(f"/queues/%2F/late/at?offset={offset + each}&count=0").json()["messages"] for each in (0, 1)]
    assert counts[1] == counts[0] + 1
    before.click()
    expect(page).to_have_url(re.compile(r"#/queues/%2F/late\?"))
    go(page, broker, "#/history/%2F/orders?tail=100")
    expect(page.locator("tbody tr")).to_have_count(100)
    expect(page.get_by_role("link", name="Older")).to_be_visible()


def test_messages_that_no_queue_took_are_found_by_administrators(
    api: httpx2.Client, broker: RunningBroker, page: Page
) -> None:
    wish = {"routing_key": "nobody", "payload": "lost", "payload_encoding": "string", "properties": {}}
    assert api.post("/exchanges/%2F/amq.topic/publish", json=wish).json() == {"routed": False}
    log_in(page, broker)
    go(page, broker, "#/find")
    page.get_by_label("Only unrouted messages").check()
    page.get_by_label("Published since").fill("1h")
    page.get_by_role("button", name="Find").click()
    ended(page, "1 found in vhost /")
    expect(page.locator("tbody tr")).to_contain_text("amq.topic, nobody")
    page.locator("tbody a").first.click()
    expect(page.locator("pre")).to_have_text("lost")


def test_b82_a_user_without_contents_sees_what_became_of_a_message(
    api: httpx2.Client, broker: RunningBroker, page: Page
) -> None:
    api.put("/queues/%2F/withheld", json={"durable": True})
    publish(api, "withheld", "secret", message_id="w-1", headers={"token": "secret"})
    api.put("/users/support", json={"password": "x", "tags": "management,without-contents"})
    api.put("/permissions/%2F/support", json={"configure": "", "write": "", "read": ".*"})
    log_in(page, broker, "support", "x")
    go(page, broker, "#/find?vhost=%2F&queue=withheld&body=secret")
    expect(page.get_by_role("status")).to_contain_text("searches neither by header nor by body")
    go(page, broker, "#/find?vhost=%2F&queue=withheld&message_id=w-1")
    ended(page, "1 found in queue withheld")
    page.locator("tbody a").first.click()
    expect(page.locator(".ends li")).to_have_text("withheld: still in the queue")
    expect(page.get_by_text("Withheld from you: headers, body.")).to_be_visible()
    expect(page.get_by_text("secret")).to_have_count(0)


def test_hostile_texts_are_texts_and_fit_a_phone(api: httpx2.Client, broker: RunningBroker, page: Page) -> None:
    api.put("/queues/%2F/hostile", json={"durable": True})
    headers = {HOSTILE: HOSTILE, "long": "x" * 2_000, "__proto__": "p"}
    publish(api, "hostile", HOSTILE, message_id=HOSTILE[:200], headers=headers)
    page.set_viewport_size({"width": 360, "height": 740})
    log_in(page, broker)
    go(page, broker, "#/find?vhost=%2F&queue=hostile&body=onerror")
    ended(page, "1 found in queue hostile")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("tbody a").first.click()
    expect(page.locator("pre")).to_have_text(HOSTILE)
    expect(page.get_by_text(f"header {HOSTILE}")).to_be_visible()
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_nothing_found_and_a_user_who_may_read_one_queue(api: httpx2.Client, broker: RunningBroker, page: Page) -> None:
    for queue in ("mine", "other"):
        api.put(f"/queues/%2F/{queue}", json={"durable": True})
        publish(api, queue, f"secret of {queue}")
    api.put("/users/reader", json={"password": "x", "tags": "management"})
    api.put("/permissions/%2F/reader", json={"configure": "", "write": "", "read": "mine"})
    log_in(page, broker, "reader", "x")
    go(page, broker, "#/find?vhost=%2F&queue=mine&body=nowhere")
    ended(page, "Nothing found in queue mine of vhost /")
    expect(page.get_by_label("Only unrouted messages")).to_have_count(0)
    for where, reason in (("", "name a queue"), ("&queue=other", "Not searched")):
        go(page, broker, f"#/find?vhost=%2F{where}&body=secret")
        expect(page.get_by_role("status")).to_contain_text(reason)
        expect(page.locator("tbody tr")).to_have_count(0)
    go(page, broker, "#/find?vhost=%2F&queue=mine&body=secret")
    ended(page, "1 found in queue mine")
    page.locator("tbody a").first.click()
    expect(page.locator("pre")).to_have_text("secret of mine")
    expect(page.locator(".ends li")).to_have_text("mine: still in the queue")
