"""A queue's page: its moments, a purge by mouse, its undo, and what a link to a moment shows (B-31)."""

import re
from typing import Any

import httpx2
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from playwright.sync_api import Browser, Page, Route, expect

from tests.support.browser import PHONE, go, log_in, watch
from tests.support.deadlines import until
from tests.support.pika_clients import fill, take_all
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

HOSTILE = "<img src=x onerror=alert(1)>\"'&</script>"


def orders(count: int) -> list[str]:
    return [f"order {number}" for number in range(1, count + 1)]


def test_b31_a_purge_is_seen_and_undone_by_mouse(page: Page, broker: RunningBroker, channel: BlockingChannel) -> None:
    fill(channel, "orders", *orders(20))
    log_in(page, broker)
    go(page, broker, "#/queues/%2F/orders")
    page.get_by_role("button", name="Purge this queue").click()
    page.get_by_role("button", name="Purge now").click()
    expect(page.get_by_text("The queue was purged.")).to_be_visible()
    assert channel.queue_declare("orders", passive=True).method.message_count == 0
    page.get_by_text("Events (").click()
    page.get_by_role("button", name=re.compile("before purged, 20 messages")).click()
    expect(page.get_by_text("order 20", exact=True)).to_be_visible()
    page.get_by_role("button", name="Show what would come back").click()
    expect(page.get_by_text("would come back into orders")).to_be_visible()
    assert channel.queue_declare("orders", passive=True).method.message_count == 0
    page.get_by_role("button", name="Bring 20 messages back").click()
    expect(page.get_by_text("20 messages came back into orders.")).to_be_visible()
    assert take_all(channel, "orders") == [body.encode() for body in orders(20)]


@pytest.mark.parametrize("address", ["#/queues/%2F/valued", "#/queues/%2F/valued?time=2001-01-01T00:00:00Z"])
def test_b44_the_slider_has_a_value_before_one_is_chosen(
    page: Page, broker: RunningBroker, channel: BlockingChannel, address: str
) -> None:
    fill(channel, "valued", *orders(3))
    log_in(page, broker)
    go(page, broker, address)
    slider = page.get_by_role("slider", name="Moment in the history of valued")
    expect(slider).to_have_attribute("aria-valuenow", re.compile(r"^\d+$"))


def test_b31_a_link_to_a_moment_opens_it_in_another_browser(
    page: Page, browser: Browser, broker: RunningBroker, channel: BlockingChannel, faults: list[str]
) -> None:
    fill(channel, "linked", *orders(3))
    log_in(page, broker)
    go(page, broker, "#/queues/%2F/linked")
    page.get_by_label("Time, mark or offset").fill("-0s")
    page.get_by_role("button", name="Show", exact=True).click()
    rows = page.get_by_role("table", name="Messages of linked at").locator("tbody tr")
    expect(rows).to_have_count(3)
    shown, link = rows.all_inner_texts(), page.evaluate("location.href")
    assert "time=" in link
    channel.queue_purge("linked")
    with browser.new_context() as context:
        other = context.new_page()
        watch(other, faults)
        log_in(other, broker)
        other.goto(link)
        again = other.get_by_role("table", name="Messages of linked at").locator("tbody tr")
        expect(again).to_have_count(3)
        assert again.all_inner_texts() == shown


def test_b44_until_a_moment_is_there_the_page_says_what_the_chart_knows(
    page: Page, broker: RunningBroker, channel: BlockingChannel
) -> None:
    fill(channel, "far", *orders(3))
    points: list[dict[str, Any]] = []
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    def charted() -> bool:
        """Draw the chart again until its last point but one comes after the publishes."""
        with page.expect_response("**/history/depth/**") as answer:
            page.get_by_role("button", name="Refresh").click()
        points[:] = answer.value.json()["points"]
        return bool(points[-2]["ready"] == 3)

    log_in(page, broker)
    go(page, broker, "#/queues/%2F/far?range=0")
    expect(page.get_by_text("below: published")).to_be_visible()
    until(charted, "the chart does not know the publishes")
    page.route("**/queues/*/far/at?*", hold)
    page.get_by_label("Time, mark or offset").fill(points[-2]["time"])
    page.get_by_role("button", name="Show", exact=True).click()
    expect(
        page.get_by_text(re.compile("Reading the history … By the chart, at .*: 3 ready, 0 unacked"))
    ).to_be_visible()
    held[0].continue_()
    expect(page.get_by_role("table", name="Messages of far at").locator("tbody tr")).to_have_count(3)
    expect(page.get_by_text("Reading the history")).to_have_count(0)


def test_b31_hostile_names_and_bodies_are_text(page: Page, broker: RunningBroker, channel: BlockingChannel) -> None:
    fill(channel, HOSTILE, HOSTILE)
    log_in(page, broker)
    query = httpx2.QueryParams({"time": "-0s"})
    name = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%22'%26%3C%2Fscript%3E"
    go(page, broker, f"#/queues/%2F/{name}?{query}")
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    expect(page.locator("pre")).to_have_text(HOSTILE)
    page.get_by_label("Bodies as").select_option("hex")
    expect(page.locator("pre")).to_have_text(HOSTILE.encode().hex(" "))
    assert page.locator("main img").count() == 0


def test_b31_the_keyboard_is_enough_to_move_the_moment(
    page: Page, broker: RunningBroker, channel: BlockingChannel
) -> None:
    fill(channel, "keys", *orders(2))
    log_in(page, broker)
    go(page, broker, "#/queues/%2F/keys")
    slider = page.get_by_role("slider", name="Moment in the history of keys")
    slider.press("End")
    rows = page.get_by_role("table", name="Messages of keys at").locator("tbody tr")
    expect(rows).to_have_count(2)
    before = slider.get_attribute("aria-valuenow")
    slider.press("ArrowLeft")
    assert int(slider.get_attribute("aria-valuenow") or 0) < int(before or 0)
    field = page.get_by_label("Time, mark or offset")
    field.fill("-0s")
    field.press("Enter")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="One event back").press("Enter")
    expect(page).to_have_url(re.compile("offset="))


def test_b31_it_fits_a_phone(page: Page, broker: RunningBroker, channel: BlockingChannel) -> None:
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    fill(channel, "phone", "x" * 2_000, *orders(2))
    log_in(page, broker)
    go(page, broker, "#/queues/%2F/phone?time=-0s")
    expect(page.get_by_role("table", name="Messages of phone at").locator("tbody tr")).to_have_count(3)
    expect(page.get_by_role("slider")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_b31_pages_a_comparison_and_a_restoration_into_another_queue(
    page: Page, broker: RunningBroker, channel: BlockingChannel
) -> None:
    channel.queue_declare("copies", durable=True)
    fill(channel, "orders", *orders(45))
    log_in(page, broker)
    go(page, broker, "#/queues/%2F/orders?time=-0s")
    expect(page.get_by_text("order 1", exact=True)).to_be_visible()
    page.get_by_role("button", name="Next messages").click()
    expect(page.get_by_text("order 21", exact=True)).to_be_visible()
    page.get_by_role("button", name="Next messages").click()
    expect(page.get_by_text("order 45", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Next messages")).to_be_disabled()
    page.get_by_role("button", name="Previous messages").click()
    expect(page.get_by_text("order 21", exact=True)).to_be_visible()

    page.get_by_label("Name of the mark").fill("full")
    page.get_by_role("button", name="Set mark").click()
    expect(page.get_by_text("This moment is mark:full")).to_be_visible()
    channel.queue_purge("orders")
    page.get_by_label("From", exact=True).fill("mark:full")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("table").filter(has_text="Offsets").get_by_role("cell", name="purged")).to_be_visible()

    page.get_by_label("Into queue").fill("copies")
    page.get_by_role("button", name="Show what would come back").click()
    page.get_by_role("button", name="Bring 45 messages back").click()
    expect(page.get_by_text("45 messages came back into copies.")).to_be_visible()
    assert take_all(channel, "copies") == [order.encode() for order in orders(45)]
    assert channel.queue_declare("orders", passive=True).method.message_count == 0
    page.get_by_role("link", name="Who did what").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Who did what in orders")
    expect(page.get_by_role("cell", name=re.compile("purged")).first).to_be_visible()


def test_b34_a_policy_is_tried_before_it_is_set(page: Page, broker: RunningBroker, channel: BlockingChannel) -> None:
    fill(channel, "tried", *orders(5))
    log_in(page, broker)
    go(page, broker, "#/queues/%2F/tried")
    expect(page.get_by_role("table").filter(has_text="Ready").first).to_be_visible()
    ask = page.get_by_role("button", name="Show what it would do")
    page.get_by_label("Definition (JSON)").fill('{"max-length": 2}')
    for since in ("the last hour", "what is queued now"):
        page.get_by_role("combobox", name="Over").select_option(since)
        with page.expect_response("**/api/history/what-if/**"):
            ask.click()
        row = page.get_by_role("row").filter(has_text="With this policy").filter(has_text="maxlen")
        expect(row.get_by_role("cell").nth(2)).to_have_text("2")
        expect(page.get_by_role("cell", name="maxlen (policy what-if.max-length)", exact=True)).to_be_visible()
    page.get_by_label("Definition (JSON)").fill('{"max-length": 20}')
    ask.click()
    expect(page.get_by_text("No message would have ended otherwise.")).to_be_visible()
    page.get_by_label("Definition (JSON)").fill('{"max-lenght": 2}')
    ask.click()
    expect(page.get_by_text(re.compile("max-lenght.* are not recognised"))).to_be_visible()
    assert channel.queue_declare("tried", passive=True).method.message_count == 5
