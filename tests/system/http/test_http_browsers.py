"""A page of another site cannot make a browser change anything in the broker."""

import re
import socket

import httpx2
import pytest

from rewindmq.engine.http.browsers import is_same, stays_here
from rewindmq.engine.http.web import STATIC
from tests.support.running import RunningBroker

BOUNDARY = "multipart/form-data; boundary=x"
ADMINISTRATOR = (
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="d.json"\r\n\r\n'
    b'{"users": [{"name": "mallory", "password": "m", "tags": "administrator"}]}\r\n--x--\r\n'
)
FOREIGN = [
    {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    {"sec-fetch-site": "same-site"},
    {"origin": "http://evil.example"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "null"},
    {"origin": "http://["},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_form_of_a_foreign_page_makes_no_administrator(api: httpx2.Client, headers: dict[str, str]) -> None:
    answer = api.post("/definitions", content=ADMINISTRATOR, headers={"content-type": BOUNDARY, **headers})
    assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")
    assert "another site" in answer.json()["reason"]
    assert api.get("/users/mallory").status_code == 404


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_nothing_else_is_changed_either(api: httpx2.Client, queue: str, method: str, headers: dict[str, str]) -> None:
    paths = {"PUT": f"/queues/%2F/{queue}x", "POST": f"/queues/%2F/{queue}/get", "DELETE": f"/queues/%2F/{queue}"}
    assert api.request(method, paths[method], json={}, headers=headers).status_code == 403
    assert api.get("/aliveness-test/%2F", headers=headers).status_code == 403
    assert api.get(f"/queues/%2F/{queue}").status_code == 200
    assert api.get(f"/queues/%2F/{queue}x").status_code == 404


def test_our_own_page_and_programs_go_on_working(api: httpx2.Client, broker: RunningBroker, name: str) -> None:
    for number, headers in enumerate(
        (
            {},
            {"origin": broker.http_url, "sec-fetch-site": "same-origin"},
            {"origin": broker.http_url},
            {"sec-fetch-site": "none"},
        )
    ):
        assert api.put(f"/queues/%2F/{name}{number}", json={"durable": True}, headers=headers).status_code == 201
        assert api.get("/queues", headers=headers).status_code == 200


def test_another_site_may_link_to_the_api_but_not_load_it(api: httpx2.Client, broker: RunningBroker) -> None:
    there = {"sec-fetch-site": "cross-site"}
    assert api.get("/queues", headers=there | {"sec-fetch-mode": "navigate"}).status_code == 200
    assert api.get("/queues", headers=there | {"sec-fetch-mode": "no-cors"}).status_code == 403
    assert httpx2.get(broker.http_url, headers=there | {"sec-fetch-mode": "navigate"}).status_code == 200


@pytest.mark.parametrize("where", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_an_import_leads_to_no_other_site(api: httpx2.Client, name: str, where: str) -> None:
    definitions = f'{{"users": [{{"name": "{name}", "password": "m", "tags": ""}}]}}'.encode()
    answer = api.post("/definitions", files={"file": ("d.json", definitions)}, data={"redirect": where})
    assert answer.status_code == 400
    assert answer.json()["reason"] == "redirect leads to another site: give a relative address"
    assert api.get(f"/users/{name}").status_code == 404, "refused as a whole"


def test_which_redirects_stay_here() -> None:
    assert all(map(stays_here, ("", "#/", "../#/import-succeeded", "/x", "?a=//b", "a/b:c")))
    assert not any(map(stays_here, ("http:x", " //e", "///e", "\\\\e", "/\\e", "HTTPS://e", "data:,", "//[")))


def test_which_origins_are_the_host_that_was_asked() -> None:
    same = [("http://a:1", "a:1"), ("http://A", "a:80"), ("https://a", "a"), ("http://[::1]:5", "[::1]:5")]
    other = [("http://a:1", "a:2"), ("http://a", "b"), ("null", ""), ("", ""), ("file://", ""), ("http://a:x", "a:x")]
    assert all(is_same(*pair) for pair in same)
    assert not any(is_same(*pair) for pair in other)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:15672", "[", ""])
def test_a_name_that_leads_to_loopback_is_not_served(broker: RunningBroker, host: str) -> None:
    for path in ("/", "/api/overview", "/metrics"):
        answer = httpx2.get(f"{broker.http_url}{path}", headers={"host": host}, auth=("guest", "guest"))
        assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")


@pytest.mark.parametrize("host", ["localhost", "LocalHost:80", "127.0.0.1", "a.localhost:1", "[::1]:7", "10.0.0.1"])
def test_addresses_and_localhost_are(broker: RunningBroker, host: str) -> None:
    assert httpx2.get(broker.http_url, headers={"host": host}).status_code == 200


def test_a_check_without_a_host_is_answered(broker: RunningBroker) -> None:
    with socket.create_connection((broker.host, broker.http_port)) as sock:
        sock.sendall(b"GET /metrics HTTP/1.0\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n")
        assert sock.recv(15).startswith(b"HTTP/1.1 200")


def test_every_answer_says_what_it_is(api: httpx2.Client, broker: RunningBroker) -> None:
    answers = [
        api.get("/overview"),
        api.get("/nothing"),
        api.get("/overview", auth=("guest", "wrong")),
        api.post("/definitions", headers=FOREIGN[0]),
        httpx2.get(f"{broker.http_url}/metrics", auth=("guest", "guest")),
        *(httpx2.get(f"{broker.http_url}{path}") for path in ("/", "/app.js", "/desk.css")),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 401, 403, 200, 200, 200, 200]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]


def test_the_page_has_no_script_or_style_in_it() -> None:
    """The policy forbids them, so a browser would leave them out."""
    html = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL) == [""]
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", html)
    for script in STATIC.rglob("*.js"):
        assert not re.search(r"\beval\(|new Function|innerHTML|\.style\b", script.read_text()), script
