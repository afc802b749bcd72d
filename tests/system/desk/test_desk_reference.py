"""The reference of the HTTP API as a page (B-52), for people who have no login."""

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import PHONE, inaccessible, log_in
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long


def test_b52_the_page_shows_every_operation_and_its_types(page: Page, broker: RunningBroker) -> None:
    page.goto(f"{broker.http_url}/api/index.html")
    expect(page.get_by_role("heading", level=1)).to_contain_text("HTTP API of RewindMQ")
    operations = page.locator("section[id^=of-] details")
    assert operations.count() > 180
    page.get_by_label("Path or word").fill("Removes all ready")
    shown = page.locator("section[id^=of-] details:visible")
    expect(shown).to_have_count(1)
    shown.locator("summary").click()
    expect(shown).to_contain_text("DELETE /api/queues/{vhost}/{queue}/contents")
    expect(shown.get_by_role("table", name="Answers")).to_contain_text("204")

    page.get_by_label("Path or word").fill("/api/marks/")
    page.locator("#get_marks_name summary").click()
    page.locator("#get_marks_name").get_by_role("link", name="Mark", exact=True).click()
    expect(page.locator("details#Mark")).to_be_in_viewport()
    expect(page.locator("details#Mark")).to_contain_text("positions")
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    assert inaccessible(page) == []


def test_b52_the_desk_has_a_link_to_it(page: Page, broker: RunningBroker) -> None:
    page.goto(broker.http_url)
    log_in(page, broker)
    page.get_by_role("link", name="HTTP API").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("HTTP API of RewindMQ")
    page.get_by_role("link", name="RewindMQ", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Overview")
