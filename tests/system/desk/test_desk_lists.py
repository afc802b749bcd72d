"""Lists of the desk: names are text, every page fits a phone (B-30)."""

import httpx
from playwright.sync_api import Page, expect

from tests.support.browser import PHONE, go, log_in
from tests.support.running import RunningBroker

HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a b/c?d#e%2F")
PAGES = (
    ("", "Overview"),
    *((title.lower(), title) for title in ("Queues", "Exchanges", "Bindings", "Connections", "Channels", "Consumers")),
    *((title.lower(), title) for title in ("Policies", "Users", "Permissions", "Vhosts", "Quarantine", "Erasures")),
)


def test_b30_hostile_names_are_text_on_every_page_and_size(
    page: Page, broker: RunningBroker, api: httpx.Client
) -> None:
    for name in HOSTILE:
        part = httpx.URL("http://x").copy_with(params={"x": name}).query.decode()[2:].replace("+", "%20")
        part = part.replace("/", "%2F").replace("?", "%3F")
        assert api.put(f"/vhosts/{part}").is_success
        assert api.put(f"/queues/{part}/{part}", json={}).is_success
        assert api.put(
            f"/policies/{part}/{part}", json={"pattern": name[:1], "definition": {"max-length": 9}}
        ).is_success
    log_in(page, broker)
    for size in ((1300, 900), PHONE):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        for way, title in PAGES:
            go(page, broker, f"#/{way}")
            expect(page.get_by_role("heading", level=1)).to_have_text(title)
            expect(page.locator("table").first).to_be_visible()
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, (way, size)
            if way in ("queues", "policies"):
                for name in HOSTILE:
                    expect(page.get_by_role("cell", name=name, exact=True).first).to_be_visible()


def test_b30_a_queue_is_declared_and_deleted_with_a_confirmation(
    page: Page, broker: RunningBroker, api: httpx.Client
) -> None:
    log_in(page, broker)
    go(page, broker, "#/queues")
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_role("button", name="Declare a queue").click()
    expect(page.get_by_role("link", name="orders")).to_have_attribute("href", "#/queues/%2F/orders")
    page.get_by_role("button", name="Delete orders").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.get_by_role("link", name="orders")).to_have_count(0)
    assert api.get("/queues/%2F/orders").status_code == 404
