"""The sessions of HTTP clients: kept while they are used, ended when they are idle, and never too many (B-28)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rewindmq.engine.broker import callers
from rewindmq.engine.broker.access_log import Arrival
from rewindmq.engine.broker.callers import Callers
from rewindmq.engine.partition.sessions import Session
from tests.support.broker_harness import Client, Harness


class Told:
    """An access log that lists sessions, a keeper of epoch 7, and ids."""

    def __init__(self) -> None:
        self.epoch = 7
        self.joined = True
        self.nodes = self
        self.opened_ids: list[int] = []
        self.ended_ids: list[int] = []
        self.count = 0

    def next_id(self) -> int:
        self.count += 1
        return self.epoch << 24 | self.count

    def opened(self, session: Session, *facts: Any) -> None:
        self.opened_ids.append(session.session_id)

    def ended(self, session: Session) -> None:
        self.ended_ids.append(session.session_id)


def with_callers(test: Callable[[Told, Callers], Any]) -> Told:
    """Run a test with callers in a loop."""
    told = Told()

    async def run() -> None:
        made = Callers(told, told, told, lambda: None, False)  # type: ignore[arg-type]  # doubles
        await test(told, made)
        made.close()

    asyncio.run(run())
    return told


def session_of(made: Callers, user: str = "u", host: str = "h", product: str = "p") -> int:
    found = made.caller(user, Arrival("http", f"{host}:1", "l:2"), product, None, "basic")
    assert found is not None
    return found.session.session_id


def test_b28_a_client_has_one_session_until_it_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(callers, "IDLE_SECONDS", 0.05)

    async def talk(told: Told, made: Callers) -> None:
        first = session_of(made)
        assert session_of(made) == first
        assert len({session_of(made, "v"), session_of(made, host="i"), session_of(made, product="q"), first}) == 4
        await asyncio.sleep(0.2)
        assert told.ended_ids == told.opened_ids
        assert session_of(made) not in told.ended_ids

    told = with_callers(talk)
    assert told.ended_ids == told.opened_ids, "a stop ends the last one"


def test_b28_products_and_hosts_make_no_more_sessions_than_there_may_be() -> None:
    async def talk(told: Told, made: Callers) -> None:
        for number in range(10_000):
            session_of(made, product=f"p{number}", host=f"h{number}")
        assert len(told.opened_ids) == callers.MOST_CALLERS + 1
        assert session_of(made, "v", "new", "new") != session_of(made, "w", "new", "new")

    with_callers(talk)


def test_b28_a_node_that_joined_again_begins_its_sessions_again() -> None:
    async def talk(told: Told, made: Callers) -> None:
        before = session_of(made)
        told.epoch = 9
        assert session_of(made) >> 24 == 9
        assert before not in told.ended_ids, "the end of the epoch was its end"
        told.joined = False
        assert made.caller("u", Arrival("http", "h:1"), "p", None, "basic") is None

    with_callers(talk)


def test_b28_a_call_leaves_nothing_in_the_session(h: Harness) -> None:
    """Messages that one request holds are given back when it ends, and the session continues."""
    own = h.session()
    h.declare(own, "q")
    for body in (b"1", b"2"):
        h.publish(own, "", "q", body)
    caller = h.in_loop(
        lambda: h.broker.access.callers.caller("guest", Arrival("http", "127.0.0.1:1"), "p", None, "basic")
    )
    for number in (1, 2):
        within = (caller.session.actor, number)
        call = h.broker.sessions.open("guest", "/", "127.0.0.1:1", {}, within=within)
        h.broker.consumers.fetch(call, call.channel, Client(), "q", False)
        h.settle()
        assert h.queue("q").messages_unacked == 1
        h.broker.sessions.close(call)
        h.settle()
        assert (h.queue("q").messages_ready, h.queue("q").messages_unacked) == (2, 0)
