"""Doors: limits of connections, what becomes of those that are refused, and a broker with few descriptors."""

import asyncio
import contextlib
import logging

import pytest
import uvloop

import rewindmq.engine.amqp.server
from rewindmq.engine.amqp.server import AmqpServer
from rewindmq.engine.host.admission import (
    FULL,
    NETWORK,
    UNKNOWN,
    AdmittedConnection,
    ConnectionQuota,
    host_of,
    network_of,
    shares,
)
from rewindmq.projections.store import rocks
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_sockets import Socket
from tests.support.amqp_wire import HANDSHAKE


def entered(quota: ConnectionQuota, address: str) -> AdmittedConnection:
    admitted = quota.enter(address)
    assert admitted is not None
    return admitted


# -- counting ---------------------------------------------------------------------------------------------------------


def test_one_network_leaves_room_for_the_others() -> None:
    quota = ConnectionQuota("http", 40)
    mine = [quota.enter(f"10.0.0.{n}") for n in range(30)]
    assert sum(admitted is not None for admitted in mine) == quota.most_of_network == 10
    assert quota.enter("10.0.1.2") is not None
    assert quota.refused == {FULL: 0, UNKNOWN: 0, NETWORK: 20}


def test_those_that_have_not_logged_in_leave_room_for_those_that_have() -> None:
    quota = ConnectionQuota("http", 40)
    entered_ones = [quota.enter(f"10.0.{n}.1") for n in range(40)]
    assert sum(admitted is not None for admitted in entered_ones) == quota.most_unknown == 20
    assert quota.refused[UNKNOWN] == 20
    for admitted in entered_ones[:10]:
        assert admitted is not None
        assert admitted.log_in()
        assert admitted.log_in(), "once is enough"
    assert (quota.logged_in, quota.unknown) == (10, 10)
    assert quota.enter("10.0.0.2") is not None


def test_never_more_than_the_share() -> None:
    quota = ConnectionQuota("http", 40)
    entered_ones = []
    for n in range(100):
        admitted = quota.enter(f"10.0.{n}.1")
        if admitted is not None and admitted.log_in():
            entered_ones.append(admitted)
    assert quota.logged_in == len(entered_ones) == quota.most_logged_in == 38
    assert quota.logged_in + quota.unknown == quota.share, "two more are there to be told"
    assert quota.refused[FULL] == 62
    for admitted in entered_ones:
        admitted.leave()
        admitted.leave()
    assert (quota.logged_in, quota.unknown) == (0, 2)


def test_who_leaves_makes_room() -> None:
    quota = ConnectionQuota("http", 40)
    for _ in range(100):
        admitted = entered(quota, "10.0.0.1")
        admitted.leave()
        assert admitted.log_in(), "it is gone and does not count"
    assert (quota.logged_in, quota.unknown, quota.by_network) == (0, 0, {})


def test_an_ipv6_host_has_a_network_of_addresses() -> None:
    assert host_of("2001:db8::1") == host_of("2001:db8::2:3") != host_of("2001:db8:0:1::1")
    assert host_of("::1") == "::1"
    assert host_of("fe80::1%eth0") == host_of("fe80::2")
    assert host_of("::ffff:10.0.0.1") == host_of("10.0.0.1")


def test_what_is_refused_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    quota = ConnectionQuota("http", 40)
    with caplog.at_level(logging.WARNING):
        for _ in range(500):
            quota.enter("10.0.0.1")
    (record,) = caplog.records
    assert "10 connections of this network have not logged in, which is the limit" in record.getMessage()


class Crowd:
    """Connections at a quota, and those that it dropped, by the names that they came with."""

    def __init__(self, share: int = 40) -> None:
        self.quota = ConnectionQuota("http", share)
        self.dropped: list[str] = []
        self.entered_ones: dict[str, AdmittedConnection] = {}

    def comes(self, address: str, name: str = "") -> bool:
        name = name or address
        admitted = self.quota.enter(address)
        if admitted is None:
            return False
        admitted.wait(lambda: self.dropped.append(name))
        self.entered_ones[name] = admitted
        return True


def test_at_a_limit_the_largest_networks_oldest_connection_makes_room() -> None:
    crowd = Crowd()
    for n in range(10):
        assert crowd.comes(f"10.0.0.{n}")
        assert crowd.comes(f"10.0.1.{n}")
    assert crowd.comes("192.0.2.1", "ann")
    assert crowd.dropped == ["10.0.0.0"]
    assert crowd.comes("192.0.2.1", "bob")
    assert crowd.dropped == ["10.0.0.0", "10.0.1.0"]
    assert crowd.comes("10.0.0.77")
    assert crowd.dropped[2:] == ["10.0.0.1"], "a network displaces its own when none has more"
    for n in range(500):
        assert crowd.comes(f"10.0.{n % 2}.{n % 256}", f"flood {n}")
    assert not {"ann", "bob"} & set(crowd.dropped)
    assert crowd.quota.unknown == crowd.quota.most_unknown == 20
    assert sum(crowd.quota.refused.values()) == len(crowd.dropped) == 503
    for admitted in crowd.entered_ones.values():
        admitted.leave()
    assert (crowd.quota.unknown, crowd.quota.by_network, crowd.quota.waiting) == (0, {}, {})


def test_a_network_at_its_limit_makes_room_itself() -> None:
    crowd = Crowd()
    for n in range(30):
        assert crowd.comes(f"10.0.0.{n % 3}", f"{n}")
    assert crowd.comes("10.0.0.99", "ann")
    assert crowd.dropped == [f"{n}" for n in range(21)]
    assert crowd.quota.refused == {FULL: 0, UNKNOWN: 0, NETWORK: 21}
    assert crowd.quota.by_network == {"10.0.0": 10}


def test_a_connection_whose_password_is_under_verification_stays() -> None:
    crowd = Crowd()
    for n in range(10):
        assert crowd.comes("10.0.0.1", f"{n}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(crowd.entered_ones["0"].presenting())
        assert crowd.comes("10.0.0.1", "10")
        assert crowd.dropped == ["1"]
        for n in range(2, 11):
            stack.enter_context(crowd.entered_ones[f"{n}"].presenting())
        assert not crowd.comes("10.0.0.1", "late"), "none waits for its client"
    assert crowd.entered_ones["0"].log_in()
    assert crowd.comes("10.0.0.1", "11")
    assert crowd.dropped == ["1"], "there was room"
    assert crowd.comes("10.0.0.1", "12")
    assert crowd.dropped == ["1", "10"], "whoever brought a wrong password waits again, as one that came now"


def test_a_door_full_of_logged_in_clients_has_no_room_for_strangers() -> None:
    crowd = Crowd()
    for n in range(38):
        assert crowd.comes("10.0.0.1", f"{n}")
        assert crowd.entered_ones[f"{n}"].log_in()
    assert crowd.comes("10.0.0.1", "a")
    assert crowd.comes("10.0.0.1", "b")
    assert crowd.comes("10.0.0.1", "c")
    assert crowd.dropped == ["a"]
    assert (crowd.quota.logged_in, crowd.quota.unknown) == (38, 2)


def test_a_network_is_a_24_or_a_64() -> None:
    assert network_of("192.0.2.7") == network_of("::ffff:192.0.2.99") != network_of("192.0.3.7")
    assert network_of("2001:db8::1") == network_of("2001:db8::2:3") != network_of("2001:db8:0:1::1")
    assert network_of("unknown") == "unknown"


@pytest.mark.parametrize("descriptors", [64, 256, 1_024, 4_096, 65_536, 1_048_576])
@pytest.mark.parametrize("partitions", [1, 2, 64])
def test_store_and_log_come_first_then_amqp_then_http(descriptors: int, partitions: int) -> None:
    amqp, http = shares(descriptors, partitions)
    kept = descriptors - amqp.share - http.share
    assert kept >= min(descriptors // 2, rocks.open_files(descriptors) + 8 * partitions)
    assert amqp.share >= 3 * http.share > 0
    assert http.share <= 1_000
    assert amqp.most_logged_in < amqp.share


# -- sockets ----------------------------------------------------------------------------------------------------------


def test_amqp_clients_above_the_limit_are_told_as_rabbitmq_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        quota = ConnectionQuota("amqp", 8)  # six that have logged in, and two more
        server = AmqpServer(DoubleBroker(), quota)  # type: ignore[arg-type]  # a double of the broker
        await server.listen("127.0.0.1", 0, None)
        server.begin()
        clients = []
        for _ in range(6):
            clients.append(await connected(server, HANDSHAKE))
            await clients[-1].until("Connection.OpenOk")
        refused = await connected(server, HANDSHAKE)
        said = await refused.until("Connection.Close")
        assert said.reply_code == 530
        assert said.reply_text == "NOT_ALLOWED - connection refused: node connection limit (6) is reached"
        silent = await connected(server)
        while quota.unknown < 2:
            await asyncio.sleep(0.01)
        late = await connected(server, HANDSHAKE)
        assert (await late.until("Connection.Close")).reply_code == 530
        assert await refused.reader.read() == b"", "it made room, for it was there before the silent one"
        for client in (*clients, refused, silent, late):
            client.writer.close()
        await server.stop()
        assert (quota.logged_in, quota.unknown) == (0, 0)

    monkeypatch.setattr(rewindmq.engine.amqp.server, "CLOSING_SECONDS", 10.0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 20))


async def connected(server: AmqpServer, *frames: bytes) -> Socket:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.listeners[0][1])
    made = Socket(reader, writer)
    with contextlib.suppress(ConnectionError):
        await made.send(*frames)
    return made


# -- a broker with few descriptors ------------------------------------------------------------------------------------
