"""A browser signs in to the desk at a real OpenID provider, gets no token, and one message for each fault (B-66)."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.support.browser import give
from tests.support.openid.server import CLIENT, SCOPES, OpenIdProvider, require_openid
from tests.support.ports import free_port
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long


class Desk:
    """A broker whose desk signs people in, and the provider."""

    def __init__(self, data: Path) -> None:
        ports = free_port(), free_port()
        self.url = f"http://127.0.0.1:{ports[1]}"
        self.provider = OpenIdProvider(f"{self.url}/sign-in/callback")
        self.provider.__enter__()
        options = ("--oauth-resource-server-id", "rabbitmq", "--oauth-issuer", self.provider.issuer)
        more = ("--oauth-client-id", CLIENT, "--oauth-scopes", SCOPES)
        self.broker = RunningBroker(data, *options, *more, ports=ports)

    def begin(self, page: Page) -> None:
        """Open the desk, and follow its link to the provider, whose page asks another site for a font."""
        page.context.route("https://fonts.googleapis.com/**", lambda route: route.fulfill(content_type="text/css"))
        page.goto(self.url)
        page.get_by_role("link", name="Sign in with localhost:").click()

    def sign_in(self, page: Page, user: str) -> None:
        """Follow the desk's link, and be this user at the provider."""
        self.begin(page)
        page.locator("input[name=login]").fill(user)
        page.locator("input[name=password]").fill("any")
        page.get_by_role("button", name="Sign-in").click()
        page.get_by_role("button", name="Continue").click()

    def refused(self, page: Page, reason: str) -> None:
        """The desk says why, once, and nobody is logged in."""
        expect(page.get_by_role("alert").filter(has_text=reason)).to_be_visible()
        assert page.url.rstrip("/") == self.url
        assert named(page.context, "rewindmq_login") == []
        page.reload()
        expect(page.get_by_role("link", name="Sign in with localhost:")).to_be_visible()
        expect(page.get_by_role("alert").filter(has_text=reason)).to_have_count(0)

    def close(self) -> None:
        self.provider.stop()
        if self.broker.process.poll() is None:
            self.broker.kill()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    require_openid()
    made = Desk(tmp_path_factory.mktemp("sign-in") / "data")
    yield made
    assert made.broker.stop() == 0
    assert "Traceback" not in "".join(made.broker.errors)
    made.close()


def named(context: BrowserContext, name: str) -> list[str]:
    """The values of the desk's cookies whose name begins so, and is not that of the ticket."""
    return [
        each["value"] for each in context.cookies() if each["name"].startswith(name) and "_ticket" not in each["name"]
    ]


def test_b66_a_person_signs_in_at_the_provider_and_logs_out(page: Page, desk: Desk) -> None:
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    desk.sign_in(page, "ann")
    expect(page.locator("#user")).to_have_text("ann")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert page.url.rstrip("/") == desk.url, "no code stays in the address"
    [cookie] = [each for each in page.context.cookies() if "127.0.0.1" in each["domain"]]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    [callback] = [each for each in addresses if "/sign-in/callback" in each]
    assert set(parse_qs(urlsplit(callback).query)) == {"code", "state", "iss"}
    [begun] = [each for each in addresses if "/auth?" in each]
    asked = parse_qs(urlsplit(begun).query)
    assert (asked["response_type"], asked["code_challenge_method"]) == (["code"], ["S256"])
    for each in [*addresses, *desk.broker.errors, *named(page.context, "rewindmq")]:
        assert not re.search(r"eyJ[\w-]+\.", each), "a token is in an address, the log or a cookie"
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert named(page.context, "rewindmq_login") == []
    give(page, "guest", "guest")  # passwords go on as before
    expect(page.locator("#user")).to_have_text("guest")


def test_b66_a_login_ends_with_its_token_and_says_so(page: Page, desk: Desk) -> None:
    desk.sign_in(page, "brief")
    expect(page.locator("#user")).to_have_text("brief")
    expect(page.get_by_role("alert").filter(has_text="The token expired: log in again")).to_be_visible()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_b66_a_token_of_another_audience_is_refused(page: Page, desk: Desk) -> None:
    desk.sign_in(page, "stranger")
    desk.refused(page, "the token's audience is 'elsewhere', not 'rabbitmq'")


def test_b66_a_person_who_cancels_is_back_at_the_desk(page: Page, desk: Desk) -> None:
    desk.begin(page)
    page.get_by_role("link", name="Cancel").click()
    desk.refused(page, "the identity provider refused: access_denied")


def test_b66_an_answer_of_no_sign_in_is_refused(page: Page, desk: Desk) -> None:
    """Another site leads a browser here, with a code of its own."""
    page.goto(f"{desk.url}/sign-in/callback?code=x&state=y")
    desk.refused(page, "the answer belongs to no sign-in of this browser: begin again")
    desk.begin(page)  # this browser has a ticket, and the state is not that of the ticket
    page.locator("input[name=login]").wait_for()
    page.goto(f"{desk.url}/sign-in/callback?code=x&state=%C3%A9")
    desk.refused(page, "the answer belongs to no sign-in of this browser: begin again")


def test_b66_a_code_is_good_for_one_sign_in(page: Page, desk: Desk) -> None:
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    desk.begin(page)
    page.locator("input[name=login]").fill("ann")
    [ticket] = [each for each in page.context.cookies() if each["name"].endswith("_ticket")]
    page.locator("input[name=password]").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("#user")).to_have_text("ann")
    [callback] = [each for each in addresses if "/callback?" in each]
    with httpx2.Client(trust_env=False, cookies={ticket["name"]: ticket["value"]}) as thief:
        answer = thief.get(callback)
        assert (answer.status_code, answer.headers["location"]) == (303, "../")
        assert "refuses the code: invalid_grant" in thief.get(f"{desk.url}/api/login").json()["refused"]
        assert thief.get(f"{desk.url}/api/whoami").status_code == 401
    with httpx2.Client(trust_env=False) as thief:  # the address alone is of no use
        thief.get(callback)
        assert "belongs to no sign-in" in thief.get(f"{desk.url}/api/login").json()["refused"]


def test_b66_a_sign_in_begins_at_the_desk_only(desk: Desk) -> None:
    with httpx2.Client(trust_env=False) as api:
        for here in (
            "https://evil.example/",
            "//evil.example/",
            f"{desk.url}@evil.example/",
            "x" * 2_000,
            "http://[",
            "javascript:1",
        ):
            answer = api.get(f"{desk.url}/sign-in", params={"here": here})
            assert (answer.status_code, answer.headers["location"]) == (303, "./")
            assert "did not begin at the desk" in api.get(f"{desk.url}/api/login").json()["refused"]
        answer = api.get(f"{desk.url}/sign-in", params={"here": f"{desk.url}/behind/a/proxy/"})
        redirect = parse_qs(urlsplit(answer.headers["location"]).query)["redirect_uri"]
        assert redirect == [f"{desk.url}/behind/a/proxy/sign-in/callback"]
        forged = {f"rewindmq_login_{urlsplit(desk.url).port}_ticket": "aGVsbG8=.aGVsbG8"}
        with httpx2.Client(trust_env=False, cookies=forged) as other:
            assert other.get(f"{desk.url}/api/login").json()["refused"] == ""


def test_b66_a_provider_that_is_away_is_named(page: Page, desk: Desk) -> None:
    with httpx2.Client(trust_env=False) as api:
        api.get(f"{desk.url}/sign-in")  # the broker knows the provider
        desk.provider.stop()
        state = parse_qs(urlsplit(api.get(f"{desk.url}/sign-in").headers["location"]).query)["state"][0]
        api.get(f"{desk.url}/sign-in/callback", params={"code": "x", "state": state})
        assert "the identity provider does not answer" in api.get(f"{desk.url}/api/login").json()["refused"]
    again = RunningBroker(  # it has not seen the provider
        desk.broker.data.parent / "again",
        *(
            "--oauth-resource-server-id",
            "rabbitmq",
            "--oauth-issuer",
            desk.provider.issuer,
            "--oauth-client-id",
            CLIENT,
        ),
    )
    try:
        page.goto(again.http_url)
        page.get_by_role("link", name="Sign in with localhost:").click()
        expect(page.get_by_role("alert").filter(has_text="the identity provider does not answer")).to_be_visible()
        give(page, "guest", "guest")
        expect(page.locator("#user")).to_have_text("guest")
    finally:
        page.goto("about:blank")  # it asks that broker for nothing more
        again.kill()
        desk.provider.start()


def test_b66_without_a_client_id_the_desk_leads_nowhere(page: Page, broker: RunningBroker) -> None:
    page.goto(broker.http_url)
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.wait_for_load_state("networkidle")
    expect(page.get_by_role("link", name=re.compile("Sign in"))).to_have_count(0)
    answer = httpx2.get(f"{broker.http_url}/sign-in", trust_env=False)
    assert answer.status_code == 303
    assert httpx2.get(f"{broker.http_url}/api/login", trust_env=False, cookies=answer.cookies).json() == {
        "provider": None,
        "refused": "nobody signs in at an identity provider here: --oauth-client-id is not set",
    }
