"""Who came, from where, and what was refused, is in the history, and no attacker fills it (B-28)."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from rewindmq.engine.amqp.connection import Connection
from rewindmq.engine.broker import access_log
from rewindmq.engine.broker.access_log import MOST_GROUPS, MOST_QUESTIONS, AccessLog, Arrival
from rewindmq.engine.identity.grants import Identity
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.partition.counters import all_counters
from rewindmq.engine.tls import TlsPeer
from rewindmq.projections.replay import events_of
from rewindmq.projections.rewind import At
from rewindmq.schemas.access_events import AccessRefused, LoginRefused, SessionOpened
from rewindmq.schemas.amqp import tables
from rewindmq.schemas.events import PastRead, SessionClosed
from rewindmq.schemas.values import BROKER, Actor
from tests.support.amqp_wire import HANDSHAKE, HEADER, IdleSocket, connection_open, method, start_ok, tune_ok
from tests.support.async_tests import run_by
from tests.support.broker_harness import Harness

FOLLOWED = (SessionOpened, SessionClosed, LoginRefused, AccessRefused)


def noted(h: Harness) -> list[tuple[Actor, Any]]:
    """Return the metadata log's events about clients, each with its actor, in order."""
    h.settle()
    log = h.broker.keeper.log.metadata
    return [(actor, event) for _, _, actor, event in events_of(log) if isinstance(event, FOLLOWED)]


def connect(h: Harness, *frames: bytes, tls: TlsPeer | None = None) -> Connection:
    """A connection that has sent these frames, one read for each."""
    connection = Connection(h.broker, "10.0.0.7:51230", True, IdleSocket(), tls, "0.0.0.0:5672")

    async def talk() -> None:
        for frame in frames:
            connection.receive(frame)
            h.broker.turns.end()
            for _ in range(200):  # until a thread has verified the password
                if not connection.gate.waiting:
                    break
                await asyncio.sleep(0.01)

    h.loop.run_until_complete(talk())
    return connection


def test_b28_a_connection_is_a_session_with_its_end(h: Harness) -> None:
    tls = TlsPeer("TLSv1.3", "TLS_AES_256_GCM_SHA384", "CN=shop", None, False)
    connection = connect(h, HANDSHAKE, tls=tls)
    assert connection.session is not None
    session = connection.session.session_id
    h.in_loop(connection.lost)
    (who, opened), (again, closed) = noted(h)
    assert who == again == Actor("guest", session)
    assert opened == SessionOpened(
        session,
        vhost="/",
        protocol="amqp",
        address="10.0.0.7:51230",
        listener="0.0.0.0:5672",
        proxy="",
        mechanism="PLAIN",
        tls="TLSv1.3 TLS_AES_256_GCM_SHA384",
        certificate="CN=shop",
        client_properties=opened.client_properties,
    )
    assert [(each.name, each.value) for each in opened.client_properties][:1] == [("product", "wire")]
    assert closed == SessionClosed(session, 0)


def test_b28_no_session_before_its_vhost_is_open(h: Harness) -> None:
    connection = connect(h, HEADER, start_ok(), tune_ok())
    h.in_loop(connection.lost)
    assert noted(h) == []


def test_b28_a_clean_stop_ends_the_sessions(h: Harness) -> None:
    connect(h, HANDSHAKE)
    h.restart()
    assert [type(event) for _, event in noted(h)] == [SessionOpened, SessionClosed]


def test_b28_properties_are_kept_up_to_a_size() -> None:
    table = tables.encode({"first": 2**63 - 1, "nested": {"a": [1, "b"]}, "long": "x" * 100, "last": True})
    kept = tables.first_arguments(table, 100)
    assert kept == tables.arguments(table)[:2]
    assert tables.first_arguments(table, 4_096) == tables.arguments(table)


def test_b28_a_wrong_password_is_in_the_history_at_once(h: Harness) -> None:
    connect(h, HEADER, start_ok(password="wrong"))
    [(who, refused)] = noted(h)
    assert who == BROKER
    assert (refused.user, refused.host, refused.listener) == ("guest", "10.0.0.7", "0.0.0.0:5672")
    assert (refused.protocol, refused.mechanism, refused.count) == ("amqp", "PLAIN", 1)
    assert "the password is not this user's" in refused.reason
    assert refused.first_ms == h.now_ms


def test_b28_so_is_a_vhost_that_the_user_may_not_enter(h: Harness) -> None:
    connect(h, HEADER, start_ok(), tune_ok(), connection_open("/secret"))
    [(_, refused)] = noted(h)
    assert (refused.user, refused.reason) == ("guest", "vhost /secret not found")


def test_b28_what_a_session_may_not_do_is_in_the_history(h: Harness) -> None:
    h.broker.access.users.set_permissions(Actor("guest", 0), "/", "guest", "^mine", ".*", ".*")
    declare = method(1, "Queue.Declare", queue="orders", arguments=b"")
    connection = connect(h, HANDSHAKE, method(1, "Channel.Open"), declare)
    assert connection.session is not None
    (_, opened), (who, refused) = noted(h)
    assert who == Actor("guest", opened.session)
    assert refused == AccessRefused(
        "queue.declare",
        vhost="/",
        kind="queue",
        name="orders",
        reason="configure access to queue 'orders' in vhost '/' refused for user 'guest'",
        count=1,
        first_ms=h.now_ms,
    )


def test_b28_sessions_change_no_route_and_no_permission(h: Harness) -> None:
    version = h.broker.router.version
    h.broker.access.control.check(Identity("guest"), "/", "read", "queue", "q")
    known = dict(h.broker.access.control._decisions)
    h.in_loop(connect(h, HANDSHAKE).lost)
    assert h.broker.router.version == version
    assert h.broker.access.control._decisions == known


# -- bounds -----------------------------------------------------------------------------------------------------------


class Log:
    """A metadata log that keeps what it gets, and an access log before it with a clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(access_log, "COUNT_SECONDS", 0.001)
        self.events: list[tuple[Actor, Any]] = []
        self.joined = True
        self.refuses = False
        self.now_ms = 1_000
        doubles: Any = self, self, lambda: self.now_ms, lambda: None, all_counters(), SimpleNamespace(ended=print)
        self.log = AccessLog(*doubles)

    def append(self, actor: Actor, event: Any) -> None:
        if self.refuses:
            raise LogError("no")
        self.events.append((actor, event))

    def refuse(self, user: str, address: str = "10.0.0.7:1") -> None:
        self.log.login_refused(Arrival("amqp", address, "l:1"), user, "PLAIN", "wrong")

    def taken(self) -> list[tuple[str, str, int, int]]:
        """User, host, count and time of the first, of what was logged since the last call."""
        events, self.events = self.events, []
        return [(event.user, event.host, event.count, event.first_ms) for _, event in events]


in_a_loop = run_by(lambda test: asyncio.run(test()), given=0)


async def minutes(log: Log) -> None:
    """Let minutes pass until the log has nothing to count any longer."""
    async with asyncio.timeout(20):
        while log.log._timer is not None:
            await asyncio.sleep(0.001)


@in_a_loop
async def test_b28_the_first_at_once_and_then_a_count_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    for number in range(5):
        log.now_ms = 1_000 + number
        log.refuse("root", f"10.0.0.7:{number}")
    log.refuse("admin")
    log.refuse("root", "[fe80::1]:7")
    assert log.taken() == [
        ("root", "10.0.0.7", 1, 1_000),
        ("admin", "10.0.0.7", 1, 1_004),
        ("root", "fe80::1", 1, 1_004),
    ]
    await minutes(log)
    assert log.taken() == [("root", "10.0.0.7", 4, 1_001)]
    log.refuse("root")
    assert [each[2] for each in log.taken()] == [1]  # none came for a minute: this is a first one again


@in_a_loop
async def test_b28_any_number_of_names_is_some_hundred_events(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    names = 100_000
    for number in range(names):
        log.refuse(f"user{number}", f"h{number}:1")
    assert sum(map(len, log.log._groups.values())) <= MOST_GROUPS + 1
    log.log.close()
    taken = log.taken()
    assert len(taken) == MOST_GROUPS + 2
    assert taken[-1] == ("", "", names - MOST_GROUPS - 1, 1_000)
    assert sum(each[2] for each in taken) == names


@in_a_loop
async def test_b28_a_drag_of_the_slider_is_one_reading_with_its_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    way, actor = "GET /api/queues/{vhost}/{queue}/at", Actor("ann", 7)

    def read(at: At, queue: str = "orders", incarnation: int | None = None, who: Actor = actor) -> None:
        which = ("/", queue, incarnation)
        log.log.moment_read(who, log, which, way, f"time={at.time_ms}", at)  # type: ignore[arg-type]  # a double

    def requests() -> list[tuple[str, str, str]]:
        events, log.events = log.events, []
        assert all((type(each), each.way) == (PastRead, way) for _, each in events)
        return [(who.user, each.queue, each.request) for who, each in events]

    for time_ms in (5_000, 9_000, 2_000, 4_000):
        read(At(time_ms=time_ms))
    read(At(offset=12))
    read(At(offset=11))
    read(At(time_ms=1), "other")
    read(At(time_ms=1), who=Actor("bob", 8))
    read(At(time_ms=3), incarnation=4)
    read(At(time_ms=3), incarnation=4)
    first = [("ann", "orders", "time=5000"), ("ann", "other", "time=1"), ("bob", "orders", "time=1")]
    assert requests() == [*first, ("ann", "orders", "time=3")]
    await minutes(log)
    at = "1970-01-01T00:00:0{}+00:00".format
    assert requests() == [
        ("ann", "orders", f"reads=5&from={at('2.000')}&to={at('9.000')}&from_offset=11&to_offset=12"),
        ("ann", "orders", f"reads=1&incarnation=4&from={at('0.003')}&to={at('0.003')}"),
    ]
    read(At(time_ms=6), "other")
    assert requests() == [("ann", "other", "time=6")]  # none came for a minute: this is a first one again
    read(At(time_ms=7))
    read(At(time_ms=8))
    log.log.close()
    assert requests()[1:] == [("ann", "orders", f"reads=1&from={at('0.008')}&to={at('0.008')}")]


@in_a_loop
async def test_b28_reads_of_very_many_queues_are_logged_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    for number in range(MOST_QUESTIONS + 5):
        for _ in range(2):
            which = ("/", f"q{number}", None)
            log.log.moment_read(Actor("ann", 7), log, which, "GET", "", At(offset=1))  # type: ignore[arg-type]
    assert len(log.log._moments) == MOST_QUESTIONS
    assert len(log.events) == MOST_QUESTIONS + 2 * 5


@in_a_loop
async def test_b28_long_names_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    log.refuse("ä" * 10_000)
    [(user, *_)] = log.taken()
    assert user == "ä" * 127


@in_a_loop
async def test_b28_refusals_of_sessions_are_counted_for_each_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    for number in range(1_000):
        log.log.access_refused(Actor("u", 7), "/", "queue.declare", ("queue", f"q{number % 300}"), "no")
    assert len(log.events) == MOST_GROUPS + 1
    assert log.events[-1][0] == BROKER
    log.log.close()
    names = Counter({"": 0})
    for _, event in log.events:
        names[event.name] += event.count
    assert sum(names.values()) == 1_000
    assert names["q1"] == 4


@in_a_loop
async def test_b28_an_error_of_the_log_reaches_no_client(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(monkeypatch)
    log.refuses = True
    log.refuse("root")
    assert "LoginRefused could not be logged" in caplog.text
    log.refuses = False
    log.refuse("root")
    assert len(log.taken()) == 1


@in_a_loop
async def test_b28_a_node_that_has_not_joined_logs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    log.joined = False
    log.refuse("root")
    assert log.taken() == []
