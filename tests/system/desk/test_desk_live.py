"""Live figures of the desk: they come by one stream a view, and by questions where there is no stream (B-37)."""

import re
from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Page, Request, Route, expect

from tests.support.browser import go, log_in
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

QUEUE = "live"


@pytest.fixture
def queue(api: httpx2.Client) -> Iterator[str]:
    api.put(f"/queues/%2F/{QUEUE}", json={"durable": True}).raise_for_status()
    yield QUEUE
    api.delete(f"/queues/%2F/{QUEUE}")


@pytest.fixture
def asked(page: Page) -> list[str]:
    """The paths below /api that the page has asked for."""
    found: list[str] = []

    def note(request: Request) -> None:
        path = re.sub(r"^.*/api|\?.*$", "", request.url)
        if "/api/" in request.url:
            found.append(path)

    page.on("request", note)
    return found


def publish(api: httpx2.Client, count: int) -> None:
    for _ in range(count):
        content = {"properties": {}, "routing_key": QUEUE, "payload": "x", "payload_encoding": "string"}
        api.post("/exchanges/%2F/amq.default/publish", json=content).raise_for_status()


def test_b37_figures_change_without_another_question(
    page: Page, broker: RunningBroker, api: httpx2.Client, queue: str, asked: list[str]
) -> None:
    log_in(page, broker)
    cells = {
        f"#/queues/%2F/{queue}": page.get_by_role("table", name="Now").locator("tbody tr td").nth(3),
        "#/queues": page.get_by_role("row").filter(has=page.get_by_role("link", name=queue)).locator("td").nth(6),
        "#/": page.get_by_role("row")
        .filter(has=page.get_by_role("cell", name="Ready", exact=True))
        .locator("td")
        .nth(1),
    }
    count = 0
    for way, cell in cells.items():
        go(page, broker, way)
        expect(cell).to_have_text(str(count))
        before = len(asked)
        publish(api, 2)
        count += 2
        expect(cell).to_have_text(str(count))
        publish(api, 1)
        count += 1
        expect(cell).to_have_text(str(count))
        assert [path for path in asked[before:] if not path.startswith("/live/")] == []
    assert asked.count("/live/overview") == 2  # after the login, and at the end
    assert asked.count(f"/live/queues/%2F/{queue}") == 1


def test_b37_without_a_stream_the_page_asks(
    page: Page, broker: RunningBroker, api: httpx2.Client, queue: str, asked: list[str], faults: list[str]
) -> None:
    def refuse(route: Route) -> None:
        route.fulfill(status=503, body="{}")

    page.route("**/api/live/**", refuse)
    log_in(page, broker)
    go(page, broker, f"#/queues/%2F/{queue}")
    cell = page.get_by_role("table", name="Now").locator("tbody tr td").nth(3)
    expect(cell).to_have_text("0")
    publish(api, 2)
    expect(cell).to_have_text("2")
    assert asked.count(f"/queues/%2F/{queue}") >= 2


def test_b37_a_hidden_tab_has_no_stream(page: Page, broker: RunningBroker, asked: list[str]) -> None:
    log_in(page, broker)
    expect(page.get_by_text("on node")).to_be_visible()
    closed: list[str] = []
    page.on("requestfailed", lambda request: closed.append(request.url))
    page.on("requestfinished", lambda request: closed.append(request.url))
    hide = """hidden => {
        Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.evaluate(hide, True)
    page.wait_for_timeout(500)
    assert [url for url in closed if "/api/live/" in url]
    before = len(asked)
    page.wait_for_timeout(6_000)
    assert asked[before:] == []
    page.evaluate(hide, False)
    expect(page.get_by_text("on node")).to_be_visible()
    page.wait_for_timeout(500)
    assert asked[before:] == ["/live/overview"]


def test_b37_a_login_that_ends_elsewhere_asks_for_another_one(
    page: Page, broker: RunningBroker, api: httpx2.Client
) -> None:
    api.put("/users/live", json={"password": "live", "tags": "monitoring"}).raise_for_status()
    log_in(page, broker, "live", "live")
    expect(page.get_by_text("on node")).to_be_visible()
    api.delete("/users/live").raise_for_status()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()


def test_b37_a_view_that_was_left_has_no_stream(
    page: Page, broker: RunningBroker, api: httpx2.Client, queue: str
) -> None:
    """Also one that was left before it was shown."""
    log_in(page, broker)
    closed: list[str] = []
    page.on("requestfailed", lambda request: closed.append(request.url))
    page.on("requestfinished", lambda request: closed.append(request.url))
    opened: list[str] = []
    page.on("request", lambda request: opened.append(request.url))
    for way in ("#/queues", f"#/queues/%2F/{queue}", "#/queues", "#/", "#/exchanges"):
        page.evaluate("way => { location.hash = way; }", way)
    expect(page.get_by_role("heading", level=1)).to_have_text("Exchanges")
    expect(page.locator("table").first).to_be_visible()
    page.wait_for_timeout(1_000)
    left = [url for url in opened if "/api/live/" in url]
    assert left
    for url in left:
        if url in closed:
            closed.remove(url)
        else:
            raise AssertionError(f"{url} is open")
