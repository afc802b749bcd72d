"""The desk on two sizes of screen, light and dark, by keyboard alone, and for a screen reader (B-44).

axe-core looks for what a screen reader cannot tell and an eye cannot see: names, roles, labels, contrast."""

import re

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from playwright.sync_api import Locator, Page, expect

from tests.support.browser import PHONE, WIDE, go, has_address, inaccessible, log_in
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

# Pages, and what is on them when they are complete
PAGES = {
    "#/": "Partitions of the log",
    "#/queues": "orders",
    "#/queues/%2F/orders?time=-0s": "Messages of orders at",
    "#/find?queue=orders": "Find",
    "#/history/%2F/orders": "Who did what in orders",
    "#/policies": "short",
    "#/exchanges": "amq.topic",
    "#/users": "guest",
    "#/seals": "metadata-0",
    "#/nodes": "Nodes",
}


@pytest.fixture
def orders(broker: RunningBroker, channel: BlockingChannel) -> None:
    """A queue with 20 messages."""
    channel.queue_delete("orders")
    channel.queue_declare("orders", durable=True)
    for number in range(20):
        channel.basic_publish("", "orders", f"order {number}".encode(), pika.BasicProperties(delivery_mode=2))


@pytest.mark.rare(scheme=["light"])
@pytest.mark.rare(size=[WIDE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_b44_pages_fit_and_a_screen_reader_can_tell_them(
    page: Page, broker: RunningBroker, orders: None, size: tuple[int, int], scheme: str
) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(broker.http_url)
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    assert inaccessible(page) == []
    log_in(page, broker)
    page.request.put(
        f"{broker.http_url}/api/policies/%2F/short",
        data={"pattern": "^orders$", "definition": {"max-length": 100}},
        headers={"x-requested-with": "page"},
    )
    backs = set()
    for address, sign in PAGES.items():
        go(page, broker, address)
        expect(page.get_by_role("main")).to_contain_text(sign)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert [(address, each) for each in inaccessible(page)] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], address
        backs.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert backs == {"rgb(20, 24, 29)" if scheme == "dark" else "rgb(255, 255, 255)"}


def reach(page: Page, wanted: Locator, most: int = 120) -> None:
    """Press Tab until the element has the focus, as a person without a mouse does."""
    expect(wanted).to_be_visible()
    for _ in range(most):
        page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"Tab does not lead to {wanted}")


def test_b44_a_purge_is_found_and_undone_by_keyboard_alone(
    page: Page, broker: RunningBroker, channel: BlockingChannel, orders: None
) -> None:
    channel.queue_declare("other", durable=True)
    channel.queue_purge("orders")
    page.goto(broker.http_url)
    for label, text in (("User", "guest"), ("Password", "guest")):
        reach(page, page.get_by_label(label))
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    reach(page, page.get_by_role("link", name="Queues"))
    page.keyboard.press("Enter")
    reach(page, page.get_by_label("Name contains"))
    page.keyboard.type("order")
    page.keyboard.press("Enter")
    has_address(page, "name=order")
    reach(page, page.get_by_role("link", name="orders", exact=True))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")

    slider = page.get_by_role("slider", name="Moment in the history of orders")
    reach(page, slider)
    assert slider.evaluate("element => getComputedStyle(element).outlineStyle") == "solid", "the focus is not seen"
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"\d{4}-\d\d-\d\dT"))
    expect(page.get_by_role("table", name="Messages of orders at")).to_be_visible()

    reach(page, page.get_by_role("button", name="Show what would come back"))
    page.keyboard.press("Enter")
    back = page.get_by_role("button", name="Bring 20 messages back")
    expect(back).to_be_visible()
    reach(page, back)
    page.keyboard.press("Enter")
    expect(page.get_by_text("20 messages came back into orders.")).to_be_visible()
    assert channel.queue_declare("orders", passive=True).method.message_count == 20


def test_b44_a_question_before_a_deletion_holds_the_focus(
    page: Page, broker: RunningBroker, channel: BlockingChannel
) -> None:
    channel.queue_declare("asked", durable=True)
    log_in(page, broker)
    go(page, broker, "#/queues?name=asked")
    delete = page.get_by_role("button", name="Delete asked in vhost /")
    reach(page, delete)
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Delete asked in vhost /?")
    expect(dialog.get_by_role("button", name="No")).to_be_focused()
    assert inaccessible(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    channel.queue_declare("asked", passive=True)
