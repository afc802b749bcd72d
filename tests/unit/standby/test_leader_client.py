"""A follower copes with the answers of its leader's address: nonsense, too much, and a way without TLS (B-59)."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rewindmq.engine.broker.followers import ANSWER_BYTES
from rewindmq.engine.config import Config
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.standby.client import MOST_HEAD_BYTES, Away, LeaderClient
from rewindmq.engine.standby.refusal import RefusedByLeader

Asking = Callable[[LeaderClient], Awaitable[object]]
LEADER = {
    "node": "one",
    "root": "r",
    "queue_partitions": 1,
    "starts": {"metadata-0": 0, "queues-0": 0},
    "branches": [],
    "seals": {"queues-0": [7]},
}


def answered(status: str, body: bytes, asking: Asking, scheme: str = "http") -> tuple[object, bytes]:
    """Return the client's result for this answer to its first request, and the bytes that it sent."""
    sent = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent.extend(await reader.read(1 << 16))
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        writer.close()

    async def run() -> object:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = LeaderClient(Config(Path(), follow=f"{scheme}://127.0.0.1:{port}", leader_pass="hidden"))
        try:
            return await asking(client)
        finally:
            await client.close()
            server.close()

    return asyncio.run(run()), bytes(sent)


async def leader(client: LeaderClient) -> object:
    return await client.leader()


async def fetch(client: LeaderClient) -> object:
    return await client.fetch({}, 1)


def test_b59_a_leader_is_understood() -> None:
    found: Any = answered("200 OK", json.dumps(LEADER).encode(), leader)[0]
    assert (found.node, found.starts, found.seals) == ("one", LEADER["starts"], LEADER["seals"])
    head = {"target": {"queues-0": 3}, "ends": {"queues-0": 4}, "pieces": [["queues-0", 0, 0, 4]]}
    fetched: Any = answered("200 OK", json.dumps(head).encode() + b"\n" + b"data", fetch)[0]
    assert (fetched.pieces, fetched.target) == ([("queues-0", 0, 0, b"data")], {"queues-0": 3})


@pytest.mark.parametrize(
    "content",
    [
        b"<html>sign in</html>",
        b"[]",
        b"{}",
        b'{"starts": 1}',
        json.dumps(LEADER | {"queue_partitions": 1 << 40}).encode(),
        json.dumps(LEADER | {"starts": {"metadata-0": 0, "../../x": 0}}).encode(),
        json.dumps(LEADER | {"seals": {"../../x": [0]}}).encode(),
        json.dumps(LEADER | {"seals": {"queues-0": [-1]}}).encode(),
        b"\xff" * 100,
    ],
)
def test_b59_another_program_at_the_address_is_named(content: bytes) -> None:
    with pytest.raises(RefusedByLeader, match=r"what answers at http://127.0.0.1:\d+ is not a leader"):
        answered("200 OK", content, leader)


@pytest.mark.parametrize(
    "content",
    [
        b"no line",
        b"{}\n",
        b"x" * (MOST_HEAD_BYTES + 1) + b"\n",
        b'{"target": {}, "ends": {}, "pieces": [["queues-0", 0, 0, 9]]}\n1234',
        b'{"target": {}, "ends": {}, "pieces": [["queues-0", 0, 0, -1]]}\n1234',
        b'{"target": {}, "ends": {}, "pieces": []}\n' + bytes(ANSWER_BYTES),
    ],
)
def test_b59_more_than_was_asked_for_is_not_taken(content: bytes) -> None:
    with pytest.raises(RefusedByLeader, match="is not a leader"):
        answered("200 OK", content, fetch)


def test_b59_what_a_proxy_or_a_brake_answers_is_asked_again() -> None:
    for status in ("408 Timeout", "429 Too Many Requests", "502 Bad Gateway", "503 Service Unavailable"):
        with pytest.raises(Away, match="answers " + status[:3]):
            answered(status, b"<html>" + bytes(1 << 20), leader)
    with pytest.raises(RefusedByLeader, match="it knows no followers"):
        answered("404 Not Found", b"", leader)
    with pytest.raises(RefusedByLeader, match="no RewindMQ is there"):
        answered("302 Found", b"", leader)


def test_b59_a_leader_without_tls_gets_no_password() -> None:
    async def refused(client: LeaderClient) -> object:
        with pytest.raises(Away, match="does not answer"):
            await client.leader()
        return None

    _, sent = answered("200 OK", b"{}", refused, "https")
    assert sent[:1] == b"\x16"  # the beginning of a TLS handshake, and nothing else
    assert b"authorization" not in sent.lower()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("leader:15672", "is not the address of a management API"),
        ("amqp://leader", "is not the address of a management API"),
        ("http://", "is not the address of a management API"),
        ("http://[::1", "is not the address of a management API"),
        ("http://leader:99999", "is not the address of a management API"),
        ("http://le\nader", "is not the address of a management API"),
        ("http://ann:secret@leader:15672", "no user in the address of the leader"),
    ],
)
def test_b59_a_wrong_address_is_one_clear_line(address: str, said: str) -> None:
    with pytest.raises(LogError, match=said) as caught:
        LeaderClient(Config(Path(), follow=address))
    assert "secret" not in str(caught.value)


def test_b59_an_authority_for_a_leader_without_tls_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="--leader-ca is for a leader at https://"):
        LeaderClient(Config(tmp_path, follow="http://leader:15672", leader_ca=tmp_path))
    with pytest.raises(LogError, match="no certificates to trust"):
        LeaderClient(Config(tmp_path, follow="https://leader:15672", leader_ca=tmp_path / "none"))
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("no certificate")
    with pytest.raises(LogError, match="no certificates to trust"):
        LeaderClient(Config(tmp_path, follow="https://leader:15672", leader_ca=damaged))
