"""A browser logs in by the form of the desk, and its login ends as it should (B-30)."""

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import give, go, has_address, log_in
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

FROM_PAGE = {"x-requested-with": "page"}


def administrator(api: httpx2.Client, name: str, password: str) -> None:
    assert api.put(f"/users/{name}", json={"password": password, "tags": "administrator"}).is_success
    granted = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api.put(f"/permissions/%2F/{name}", json=granted).is_success


def test_b30_a_user_logs_in_by_the_form_and_out(page: Page, broker: RunningBroker) -> None:
    log_in(page, broker)
    expect(page.locator("#user")).to_have_text("guest")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    [cookie] = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    cookies, url = {cookie["name"]: cookie["value"]}, f"{broker.http_url}/api/whoami"
    assert httpx2.get(url, cookies=cookies, trust_env=False).json()["name"] == "guest"
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert page.context.cookies() == []
    assert httpx2.get(url, cookies=cookies, trust_env=False).status_code == 401


def test_b30_a_wrong_password_shows_the_reason(page: Page, broker: RunningBroker) -> None:
    page.goto(broker.http_url)
    give(page, "guest", "wrong")
    expect(page.get_by_role("alert").filter(has_text="Login failed")).to_be_visible()
    expect(page.get_by_label("Password")).to_have_value("")
    give(page, "guest", "guest")
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def test_b30_a_login_that_ended_leads_to_the_form_and_back(
    page: Page, broker: RunningBroker, api: httpx2.Client
) -> None:
    administrator(api, "ann", "one")
    log_in(page, broker, "ann", "one")
    go(page, broker, "#/find?x=1")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Find")
    administrator(api, "ann", "two")
    go(page, broker, "#/queues?name=a+b")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    give(page, "ann", "two")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    has_address(page, "#/queues?name=a+b")


def test_b30_the_browser_asks_for_no_password_itself(page: Page, broker: RunningBroker) -> None:
    page.goto(broker.http_url)
    with page.expect_response(lambda answer: answer.url.endswith("/api/whoami")) as found:
        page.reload()
    assert found.value.status == 401
    assert found.value.header_value("www-authenticate").startswith("Cookie ")  # type: ignore[union-attr]
    whoami = f"{broker.http_url}/api/whoami"
    assert "Basic" in httpx2.get(whoami, trust_env=False).headers["www-authenticate"], "programs do"
    assert "Basic" not in httpx2.get(whoami, headers=FROM_PAGE, trust_env=False).headers["www-authenticate"]


def test_b30_the_form_stays_when_the_other_ways_are_not_known(
    page: Page, broker: RunningBroker, faults: list[str]
) -> None:
    """The question whether there is an identity provider gets no answer."""
    page.route("**/api/login", lambda route: route.abort() if route.request.method == "GET" else route.continue_())
    page.goto(broker.http_url)
    shown = page.get_by_role("alert").filter(has_text="Whether there is another way to log in is not known")
    expect(shown).to_be_visible()
    give(page, "guest", "guest")
    expect(page.locator("#user")).to_have_text("guest")
    expect(page.get_by_role("alert").filter(has_text="not known")).to_have_count(0)
    assert faults == ["console: Failed to load resource: net::ERR_FAILED"], "only what was asked for here"
    faults.clear()
