"""A queue's page: single messages are deleted and moved by mouse, and the queue is paused (B-38, B-39)."""

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from playwright.sync_api import Page, expect

from tests.support.browser import go, log_in
from tests.support.pika_clients import fill, take_all
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long


def test_b38_messages_are_deleted_and_moved_by_mouse(
    page: Page, broker: RunningBroker, channel: BlockingChannel
) -> None:
    fill(channel, "handled", "one", "two", "three")
    fill(channel, "handled.to")
    log_in(page, broker)
    go(page, broker, "#/queues/%2F/handled?time=-0s")
    rows = page.get_by_role("table", name="Messages of handled at").locator("tbody tr")
    expect(rows).to_have_count(3)
    rows.nth(0).get_by_role("button", name="Delete message").click()
    page.get_by_role("button", name="Leave it").click()
    expect(page.get_by_role("button", name="Delete now")).to_have_count(0)
    rows.nth(0).get_by_role("button", name="Delete message").click()
    page.get_by_label("Reason").fill("poison")
    page.get_by_role("button", name="Delete now").click()
    expect(page.get_by_text("was deleted. This can be undone below.")).to_be_visible()
    expect(rows).to_have_count(2)
    rows.nth(0).get_by_role("button", name="Move message").click()
    page.get_by_label("To queue", exact=True).fill("nowhere")
    page.get_by_role("button", name="Move now").click()
    expect(page.get_by_text("no queue 'nowhere' in vhost '/'")).to_be_visible()
    rows.nth(0).get_by_role("button", name="Move message").click()
    page.get_by_label("To queue", exact=True).fill("handled.to")
    page.get_by_role("button", name="Move now").click()
    expect(page.get_by_text("is now in handled.to.")).to_be_visible()
    expect(rows).to_have_count(1)
    assert (take_all(channel, "handled"), take_all(channel, "handled.to")) == ([b"three"], [b"two"])
    page.get_by_role("combobox", name="Undo").select_option("remove")
    page.get_by_role("button", name="Show what would come back").click()
    page.get_by_role("button", name="Bring 1 messages back").click()
    expect(page.get_by_text("1 messages came back into handled.")).to_be_visible()
    assert take_all(channel, "handled") == [b"one"]


def test_b39_a_queue_is_paused_and_resumed_by_mouse(
    page: Page, broker: RunningBroker, channel: BlockingChannel
) -> None:
    fill(channel, "held", "one")
    log_in(page, broker)
    go(page, broker, "#/queues/%2F/held")
    page.get_by_role("button", name="Pause deliveries").click()
    expect(page.get_by_role("cell", name="paused", exact=True)).to_be_visible()
    assert take_all(channel, "held") == []
    page.get_by_role("button", name="Resume deliveries").click()
    expect(page.get_by_role("cell", name="running", exact=True)).to_be_visible()
    assert take_all(channel, "held") == [b"one"]
