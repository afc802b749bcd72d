"""The login of a browser over HTTP: its cookie, what it allows, and what ends it (B-30)."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.support.running import RunningBroker

PAGE = {"x-requested-with": "page"}


@pytest.fixture
def browser(broker: RunningBroker) -> Iterator[httpx2.Client]:
    """A client that keeps cookies, and says what the desk's script says."""
    with httpx2.Client(base_url=broker.http_url, headers=PAGE, trust_env=False) as client:
        yield client


@pytest.fixture
def api(broker: RunningBroker) -> Iterator[httpx2.Client]:
    """A program: Basic, without cookies."""
    with httpx2.Client(base_url=broker.http_url, auth=("guest", "guest"), trust_env=False) as client:
        yield client


def log_in(client: httpx2.Client, user: str = "guest", password: str = "guest") -> httpx2.Response:
    return client.post("/api/login", json={"username": user, "password": password})


def test_b30_the_cookie_is_for_this_site_and_for_no_script(browser: httpx2.Client) -> None:
    answer = log_in(browser)
    assert answer.status_code == 204
    words = {word.strip().lower() for word in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= words
    assert "secure" not in words, "the test speaks plain HTTP"
    assert browser.get("/api/whoami").json()["name"] == "guest"


def test_b30_a_change_needs_the_header_that_no_other_site_can_set(browser: httpx2.Client) -> None:
    log_in(browser)
    del browser.headers["x-requested-with"]
    refused = browser.put("/api/queues/%2F/forged", json={"durable": True})
    assert (refused.status_code, refused.json()["error"]) == (403, "forbidden")
    assert "X-Requested-With" in refused.json()["reason"]
    assert browser.get("/api/queues/%2F/forged").status_code == 404
    cross = browser.put(
        "/api/queues/%2F/forged", json={"durable": True}, headers={**PAGE, "sec-fetch-site": "cross-site"}
    )
    assert cross.status_code == 403
    assert browser.put("/api/queues/%2F/made", json={"durable": True}, headers=PAGE).status_code == 201


def test_b30_a_login_ends_with_the_password_the_tag_and_the_user(browser: httpx2.Client, api: httpx2.Client) -> None:
    def put(password: str, tags: str) -> None:
        api.put("/api/users/ann", json={"password": password, "tags": tags}).raise_for_status()

    put("one", "monitoring")
    assert log_in(browser, "ann", "one").status_code == 204
    assert browser.get("/api/whoami").json()["tags"] == ["monitoring"]
    put("two", "monitoring")
    ended = browser.get("/api/whoami")
    assert (ended.status_code, ended.json()["reason"]) == (401, "The login ended: log in again")
    assert log_in(browser, "ann", "two").status_code == 204
    put("two", "")
    assert browser.get("/api/whoami").status_code == 401
    put("two", "management")
    log_in(browser, "ann", "two")
    api.delete("/api/users/ann").raise_for_status()
    assert browser.get("/api/whoami").status_code == 401


def test_b30_logging_out_ends_it_for_every_copy_of_the_cookie(browser: httpx2.Client, broker: RunningBroker) -> None:
    log_in(browser)
    copied = dict(browser.cookies)
    assert browser.delete("/api/login").status_code == 204
    assert not browser.cookies
    again = httpx2.get(f"{broker.http_url}/api/whoami", cookies=copied, trust_env=False)
    assert again.status_code == 401


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"no json", 400),
        (b"[1]", 400),
        (b'{"username": "guest"}', 400),
        (b'{"username": 1, "password": "x"}', 400),
        (b'{"username": "\\ud800", "password": "x"}', 400),
        (b"[" * 4_000, 400),
        (b'{"username": "guest", "password": "' + b"x" * 1_000_000 + b'"}', 413),
        (b'{"username": "guest", "password": "wrong"}', 401),
        (b'{"username": "nobody", "password": "guest"}', 401),
    ],
)
def test_b30_a_login_that_makes_no_sense_is_refused(browser: httpx2.Client, content: bytes, status: int) -> None:
    answer = browser.post("/api/login", content=content)
    assert answer.status_code == status, answer.text
    assert answer.json()["reason"]
    assert "set-cookie" not in answer.headers
