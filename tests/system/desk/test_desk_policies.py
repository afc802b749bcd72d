"""Policies in the desk: what a change would do is seen before it is saved (B-45)."""

import httpx2
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from playwright.sync_api import Page, expect

from tests.support.browser import go, log_in
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long


@pytest.fixture
def queues(api: httpx2.Client, channel: BlockingChannel) -> None:
    """Three queues of orders, with 3, 6 and 9 messages, and no policy."""
    for each in api.get("/policies").json():
        api.delete(f"/policies/%2F/{each['name']}")
    for name, messages in (("orders.a", 3), ("orders.b", 6), ("orders.c", 9)):
        channel.queue_delete(name)
        channel.queue_declare(name, durable=True)
        for number in range(messages):
            channel.basic_publish("", name, f"order {number}".encode())


def fill(page: Page, name: str, pattern: str, definition: str) -> None:
    form = page.locator("form.change")
    form.get_by_label("Name", exact=True).fill(name)
    form.get_by_label("Pattern").fill(pattern)
    form.get_by_label("Definition (JSON)").fill(definition)
    form.get_by_role("button", name="Show what it would do").click()


def length(channel: BlockingChannel, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def test_b45_what_a_policy_would_do_is_seen_before_it_is_saved(
    page: Page, broker: RunningBroker, api: httpx2.Client, channel: BlockingChannel, queues: None
) -> None:
    log_in(page, broker)
    go(page, broker, "#/policies")
    fill(page, "short", "^orders", '{"max-length": 4}')
    expect(page.get_by_text("3 queues would have this policy, 0 now. 3 queues would change.")).to_be_visible()
    expect(page.get_by_text("7 messages would leave at once (maxlen, policy short.max-length: 7)")).to_be_visible()
    rows = page.get_by_role("table", name="Queues that change").locator("tbody tr")
    expect(rows.first).to_contain_text("orders.c")
    expect(rows.first).to_contain_text("maxlen, policy short.max-length: 5")
    page.get_by_role("button", name="Show the last hour of orders.b").click()
    expect(page.get_by_role("heading", name="The last hour of orders.b")).to_be_visible()
    row = page.get_by_role("row").filter(has_text="With this policy").filter(has_text="maxlen")
    expect(row.get_by_role("cell").nth(2)).to_have_text("4")
    assert api.get("/policies").json() == [], "nothing is saved"
    assert length(channel, "orders.c") == 9

    page.locator("form.change").get_by_label("Pattern").fill("^orders.[ab]")
    expect(page.get_by_role("button", name="Set a policy")).to_have_count(0)  # what was shown is of another pattern
    page.get_by_role("button", name="Show what it would do").click()
    expect(page.get_by_text("2 messages would leave at once")).to_be_visible()
    page.get_by_role("button", name="Set a policy").click()
    expect(page.get_by_role("button", name="Edit short in vhost /")).to_be_visible()
    assert [length(channel, f"orders.{each}") for each in "abc"] == [3, 4, 9]


def test_b45_a_policy_is_edited_and_what_its_removal_would_do_is_seen(
    page: Page, broker: RunningBroker, api: httpx2.Client, channel: BlockingChannel, queues: None
) -> None:
    for name, limit, priority in (("high", 8, 3), ("low", 5, 0)):
        content = {"pattern": "^orders", "definition": {"max-length": limit}, "priority": priority}
        assert api.put(f"/policies/%2F/{name}", json={**content, "apply-to": "queues"}).is_success
    log_in(page, broker)
    go(page, broker, "#/policies")
    page.get_by_role("button", name="Edit high in vhost /").click()
    form = page.locator("form.change")
    expect(form.get_by_label("Name", exact=True)).to_have_value("high")
    expect(form.get_by_label("Applies to")).to_have_value("queues")
    expect(form.get_by_label("Priority")).to_have_value("3")
    form.get_by_label("Definition (JSON)").fill('{"max-length": 7}')
    page.get_by_role("button", name="Show what it would do").click()
    expect(page.get_by_text("1 message would leave at once")).to_be_visible()
    page.get_by_role("button", name="Set a policy").click()
    row = page.get_by_role("row").filter(has_text="high").filter(has_text='{"max-length":7}')
    expect(row).to_be_visible()
    assert length(channel, "orders.c") == 7

    page.get_by_role("button", name="Delete high in vhost /").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("3 messages would leave at once (maxlen, policy low.max-length: 3)")).to_be_visible()
    dialog.get_by_role("button", name="Yes").click()
    expect(page.get_by_role("button", name="Delete high in vhost /")).to_have_count(0)
    assert [length(channel, f"orders.{each}") for each in "abc"] == [3, 5, 5]


def test_b45_a_policy_that_would_be_refused_is_not_offered(page: Page, broker: RunningBroker, queues: None) -> None:
    log_in(page, broker)
    go(page, broker, "#/policies")
    fill(page, "wrong", "(", '{"max-length": 4}')
    expect(page.get_by_text("Validation failed")).to_be_visible()
    expect(page.get_by_role("button", name="Set a policy")).to_have_count(0)
    fill(page, "refusing", "^orders.c", '{"max-length": 9, "overflow": "reject-publish"}')
    expect(page.get_by_text("No message would leave a queue at once.")).to_be_visible()
    expect(page.get_by_text("1 queue would refuse the next message.")).to_be_visible()
