"""Seals and audits over HTTP: how far the history is sealed, and whether it is as it was sealed (B-44)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.http_clients import publish
from tests.support.running import RunningBroker
from tests.support.seals import keys, seal
from tests.support.trimmed_broker import live, trimmed

pytestmark = pytest.mark.long


def asked(broker: RunningBroker) -> httpx2.Client:
    return httpx2.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), trust_env=False)


def checked(api: httpx2.Client, partition: str, **query: str) -> dict[str, Any]:
    """All portions of a check."""
    found: dict[str, Any] = {"next": 0, "harms": []}
    while found["next"] is not None:
        answer = api.get(f"/seals/{partition}/check", params={**query, "next": str(found["next"])})
        assert answer.status_code == 200, answer.text
        found = answer.json() | {"harms": found["harms"] + answer.json()["harms"]}
    return found


def test_b44_how_far_the_history_is_sealed_and_that_the_seals_hold(
    start_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    broker = start_broker()
    key, public = keys(tmp_path)
    (tmp_path / "other").mkdir()
    _, other = keys(tmp_path / "other")
    with asked(broker) as api:
        assert api.get("/audits").json() == []
        assert api.put("/queues/%2F/orders", json={"durable": True}).is_success
        rows = {each["partition"]: each for each in api.get("/seals").json()["items"]}
        assert set(rows) == {"metadata-0", "queues-0", "queues-1"}
        for each in rows.values():
            assert (each["seals"], each["sealed_to"], each["key"], each["sealed"]) == (0, 0, None, None)
        assert "there is no seal of it" in checked(api, "metadata-0")["harms"][0]["what"]
        seal(broker.data, key)
        publish(api, "orders", "later")
        rows = {each["partition"]: each for each in api.get("/seals").json()["items"]}
        home = api.get("/queues/%2F/orders").json()["partition"]
        assert rows["metadata-0"]["seals"] == 1
        assert rows["metadata-0"]["sealed_to"] > 0
        assert len(rows[home]["key"]) == 64
        assert rows[home]["keys"] == [rows[home]["key"]]
        assert rows[home]["not_sealed"] == rows[home]["next_offset"] - rows[home]["sealed_to"] > 0

        seal(broker.data, key)
        for query, signatures in ({}, False), ({"public_key": public}, True):
            found = checked(api, home, **query)
            assert (found["harms"], found["stretches"], found["checked"]) == ([], 2, 2), found
            assert found["signatures"] is signatures
            assert found["sealed_to"] > rows[home]["sealed_to"]
        assert checked(api, home, public_key=other)["harms"] != []
        for path, status, reason in (
            ("/seals/queues-9/check", 404, "there is no partition queues-9"),
            ("/seals/queues-0/check?public_key=no", 400, "not a public key in PEM"),
            ("/seals/queues-0/check?next=x", 400, "next is a whole number"),
            ("/seals/queues-0/check?" + "&public_key=x" * 21, 400, "at most 20 keys"),
        ):
            answer = api.get(path)
            assert answer.status_code == status, path
            assert reason in answer.json()["reason"]
        assert api.put("/users/plain", json={"password": "plain", "tags": "management"}).is_success
        for path in ("/seals", "/audits", "/seals/queues-0/check"):
            assert api.get(path, auth=("plain", "plain")).status_code == 401


def test_b44_a_changed_byte_is_found(start_broker: Callable[..., RunningBroker], tmp_path: Path) -> None:
    broker = start_broker()
    key, public = keys(tmp_path)
    with asked(broker) as api:
        assert api.put("/queues/%2F/orders", json={"durable": True}).is_success
        for number in range(3):
            publish(api, "orders", f"order number {number}")
        home = api.get("/queues/%2F/orders").json()["partition"]
        seal(broker.data, key)
        assert checked(api, home, public_key=public)["harms"] == []
        [segment] = (broker.data / "log" / home).glob("*.avro")
        content = segment.read_bytes()
        at = content.index(b"order number 1")
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(b"0rder number 1")
        [harm] = checked(api, home, public_key=public)["harms"]
        assert home in harm["what"]
        assert harm["offset"] is not None
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(b"order number 1")
        assert checked(api, home, public_key=public)["harms"] == []


def test_b44_what_the_audit_before_a_trim_found_is_listed(
    start_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    story = live(tmp_path / "data")
    report = trimmed(tmp_path / "data", story, 2, "enough")
    broker = start_broker(tmp_path / "data")
    with asked(broker) as api:
        [floor] = api.get("/audits").json()
    assert (floor["audited_to"], floor["findings"], floor["reason"]) == (report.offset, [], "enough")
    assert len(floor["chain"]) == len(floor["digest"]) == 64
