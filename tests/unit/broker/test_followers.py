"""A broker keeps account of its followers, and confirms and publishers wait for them (B-60)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rewindmq.engine.broker import followers as module
from rewindmq.engine.broker.followers import Follower, FollowerRefused, Followers, JoinRequest
from rewindmq.engine.config import Config
from rewindmq.engine.log.contract import BelowStart
from rewindmq.engine.log.embedded.ends import End
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.roles import FENCED, FOLLOWERS, noted_followers
from rewindmq.projections.topology.about_history import AboutHistory
from tests.support.broker_harness import Client, Harness

T = TypeVar("T")
ROOT = "r" * 64
EMPTY = JoinRequest("copy", None, (), {})


@asynccontextmanager
async def alone(data: Path, failed: list[Exception]) -> AsyncIterator[Followers]:
    """The followers of a real log, without a broker."""
    log = EmbeddedLog.open(data, 1)
    try:
        yield Followers(Config(data, confirm_after="follower"), log, AboutHistory(), [], failed.append)
    finally:
        log.close()


def noted(data: Path) -> dict[str, str]:
    return noted_followers(data)


class Copy:
    """A follower of a broker in this process, which has synced whatever it says."""

    def __init__(self, h: Harness, name: str = "two") -> None:
        self.h, self.name = h, name
        self.followers: Followers = h.broker.followers
        self.follower: Follower = self.run(self.followers.join(name, JoinRequest(name, None, (), {}), "", ROOT))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.h.loop.run_until_complete(work)

    def acknowledge_all(self) -> None:
        """Be led toward the newest moment, and have it."""
        newest = {name: end.offset for name, end in self.followers.ends.items()}
        for _ in range(3):  # the moment of before, the newest one, and its acknowledgement
            self.run(self._ask())
        assert self.follower.acknowledged == newest

    async def _ask(self) -> None:
        asking = asyncio.create_task(self.followers.fetch(self.name, self.follower.token, self.followers.ends, 1))
        await asyncio.sleep(0)
        self.followers.landed()  # it does not wait for more
        await asking


def committed(h: Harness) -> None:
    """Write what was appended, and perform what may be performed then."""

    async def landed() -> None:
        h.broker.turns.end()
        ends = [each.append_position for each in (h.broker.metadata, *h.broker.partitions)]
        while [end.offset for end in h.broker.followers.ends.values()] != ends:
            await asyncio.sleep(0.001)

    h.loop.run_until_complete(landed())


def said(h: Harness, caplog: pytest.LogCaptureFixture, text: str) -> str:
    """The first line of the log with this text, once it is there."""

    async def found() -> str:
        async with asyncio.timeout(20):
            while True:
                for line in caplog.messages:
                    if text in line:
                        return line
                await asyncio.sleep(0.01)

    return h.loop.run_until_complete(found())


@pytest.fixture
def waiting(tmp_path: Path) -> Callable[..., Harness]:
    """`waiting(**settings)`: a broker whose confirms wait for followers."""
    return lambda **settings: Harness(tmp_path / "data", confirm_after="follower", partitions=1, **settings)


# -- which ones -------------------------------------------------------------------------------------------------------


def test_b60_a_follower_that_could_not_be_noted_is_not_known(tmp_path: Path) -> None:
    """Else a leader that starts again would confirm without it."""

    async def run() -> None:
        async with alone(tmp_path, []) as followers:
            (tmp_path / FOLLOWERS).mkdir()  # nothing can be written there
            with pytest.raises(OSError, match=FOLLOWERS):
                await followers.join("two", EMPTY, "", ROOT)
            assert not followers.known
            (tmp_path / FOLLOWERS).rmdir()
            await followers.join("two", EMPTY, "", ROOT)
            assert noted(tmp_path) == {"two": "copy"}
            (tmp_path / FOLLOWERS).unlink()
            (tmp_path / FOLLOWERS).mkdir()
            with pytest.raises(OSError, match=FOLLOWERS):
                await followers.forget("two")
            assert list(followers.known) == ["two"]

    asyncio.run(run())


def test_b60_followers_that_join_at_once_are_all_noted(tmp_path: Path) -> None:
    async def run() -> None:
        async with alone(tmp_path, []) as followers:
            names = [f"node-{number}" for number in range(module.MOST_FOLLOWERS)]
            await asyncio.gather(*(followers.join(name, EMPTY, "", ROOT) for name in names))
            assert sorted(noted(tmp_path)) == sorted(followers.known) == sorted(names)
            with pytest.raises(FollowerRefused, match="there are 16 followers"):
                await followers.join("one-more", EMPTY, "", ROOT)

    asyncio.run(run())


def test_b60_a_fence_that_cannot_be_noted_stops_the_broker_all_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        failed: list[Exception] = []
        async with alone(tmp_path, failed) as followers:
            (tmp_path / FENCED).mkdir()
            followers.fence("a" * 64)
        assert [type(each) for each in failed] == [module.Fenced]
        assert f"{FENCED} cannot be written" in str(failed[0])

    asyncio.run(run())


def test_b60_nonsense_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with alone(tmp_path, []) as followers:
            for name in ("", "n" * 256, "two\nlines", "a\x00"):
                with pytest.raises(FollowerRefused, match="name of a follower"):
                    await followers.join(name, EMPTY, "", ROOT)
            follower = await followers.join("two", EMPTY, "", ROOT)
            with pytest.raises(FollowerRefused, match="has to join first"):
                await followers.fetch("two", "another token", {}, 1)
            far = {each: End(1 << 61, 1 << 61, -1, b"") for each in followers.ends}
            with pytest.raises(BelowStart, match="is no longer here"):
                await followers.fetch("two", follower.token, far, 1 << 60)

    asyncio.run(run())


# -- what waits for them ----------------------------------------------------------------------------------------------


def test_b60_publishers_are_held_back_once_many_records_wait(
    waiting: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    with waiting() as h:
        most = 50
        monkeypatch.setattr(module, "MOST_BEHIND", most)
        copy, session, client = Copy(h), h.session(), Client()
        h.declare(session, "q")
        committed(h)
        copy.acknowledge_all()
        assert copy.followers.unacknowledged() == 0
        for number in range(most):
            h.publish(session, "", "q", b"%d" % number, client)
        committed(h)
        assert (copy.followers.unacknowledged(), h.broker.turns.blocked, client.confirms) == (most, None, [])
        h.publish(session, "", "q", b"one more", client)
        committed(h)
        assert "more than 50 records wait for a follower's acknowledgement" in h.broker.turns.blocked
        assert client.confirms == []
        copy.acknowledge_all()
        assert (copy.followers.unacknowledged(), h.broker.turns.blocked) == (0, None)
        assert client.confirms == [(number + 1, False) for number in range(most + 1)]


def test_b60_what_was_confirmed_before_does_not_wait_again(
    waiting: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each start of a leader, and each follower that joins, would hold publishers back."""
    with waiting() as h:
        copy, session = Copy(h), h.session()
        h.declare(session, "q")
        for number in range(200):
            h.publish(session, "", "q", b"%d" % number)
        committed(h)
        copy.acknowledge_all()
        monkeypatch.setattr(module, "MOST_BEHIND", 50)
        h.restart()
        committed(h)
        assert (h.broker.followers.unacknowledged(), h.broker.turns.blocked) == (0, None)
        Copy(h).acknowledge_all()
        assert h.broker.followers.unacknowledged() == 0
        three, client = Copy(h, "three"), Client()  # it lacks everything
        h.publish(h.session(), "", "q", b"new", client)
        committed(h)
        assert (h.broker.followers.unacknowledged(), h.broker.turns.blocked, client.confirms) == (1, None, [])
        three.acknowledge_all()
        assert client.confirms == [], "two has not acknowledged"
        Copy(h).acknowledge_all()
        assert client.confirms == [(h.sequence, False)]


# -- what is said of that ---------------------------------------------------------------------------------------------


def test_b60_the_log_says_that_confirms_wait_also_if_nothing_more_comes(
    waiting: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The follower dies between two questions, and the publisher waits for its confirm: nothing lands any more."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.3)
    with waiting() as h:
        copy, session, client = Copy(h), h.session(), Client()
        h.declare(session, "q")
        committed(h)
        copy.acknowledge_all()
        caplog.clear()
        h.publish(session, "", "q", b"body", client)
        committed(h)
        assert said(h, caplog, "confirms wait") == "confirms wait for followers, for 0 s now: two (away)"
        assert h.in_loop(copy.followers.waiting_seconds) >= 0.3
        copy.acknowledge_all()
        assert said(h, caplog, "confirms go on")
        assert len(client.confirms) == 1
        assert h.in_loop(copy.followers.waiting_seconds) == 0


def test_b60_the_log_says_that_a_follower_asks_and_acknowledges_nothing(
    waiting: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its disk is full, for example."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.3)
    with waiting() as h:
        copy, session = Copy(h), h.session()
        h.declare(session, "q")
        committed(h)
        assert copy.followers.unacknowledged()

        async def keep_asking() -> None:
            while True:
                await copy.followers.fetch("two", copy.follower.token, {}, 1)
                await asyncio.sleep(0.01)

        task = h.loop.create_task(keep_asking())
        try:
            assert said(h, caplog, "confirms wait").endswith("two (connected, and acknowledges nothing)")
        finally:
            task.cancel()


def test_b60_the_log_says_that_no_follower_has_joined(
    waiting: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.05)
    with waiting() as h:
        h.declare(h.session(), "q")
        committed(h)
        assert said(h, caplog, "confirms wait").endswith("none has joined yet")
