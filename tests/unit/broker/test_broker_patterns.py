"""Patterns that would take for ever: refused when they are set, harmless where the history has them. Many queues are
gone through in slices."""

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.errors import AccessRefused, PreconditionFailed
from rewindmq.engine.host import slices
from rewindmq.engine.http import filters
from rewindmq.engine.http.call import ApiError
from rewindmq.engine.http.filters import NameFilter
from rewindmq.engine.identity.grants import Identity
from rewindmq.projections.rules.patterns import in_history
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.metadata_events import PermissionsSet, PolicySet, TopicPermissionsSet, UserSet
from rewindmq.schemas.values import BROKER, Actor
from tests.support.broker_harness import Harness

HARD = "^(.|.|.|.)*X"
HARD_NAME = "X" + "a" * 240
QUEUES = 100


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path, partitions=2) as harness:
        yield harness


@pytest.mark.parametrize("pattern", [HARD, "(a+)+$", "("])
def test_it_is_refused_by_name_when_it_is_set(h: Harness, pattern: str) -> None:
    with pytest.raises(PreconditionFailed, match=r"invalid regular expression '.*': (it takes too many|missing)"):
        h.broker.access.users.set_permissions(Actor("guest", 0), "/", "guest", ".*", pattern, ".*")
    with pytest.raises(PreconditionFailed, match="invalid regular expression"):
        h.broker.access.users.set_topic_permissions(Actor("guest", 0), "/", "guest", "amq.topic", ".*", pattern)
    for set_policy in (h.broker.policies.set, h.broker.operator_policies.set):
        with pytest.raises(PreconditionFailed, match="pattern should be regular expression but is invalid"):
            set_policy(Actor("guest", 0), "/", "p", pattern, {"max-length": 1}, 0, "all")
    assert h.broker.topology.permissions["/", "guest"].write == ".*"
    assert not h.broker.topology.policies
    assert not h.broker.topology.operator_policies


def test_a_policy_of_the_history_holds_up_no_start(h: Harness, tmp_path: Path) -> None:
    """It matched names of a few characters, and still does."""
    session = h.session()
    h.declare(session, "aX")
    for number in range(QUEUES):
        h.declare(session, f"{number}-{HARD_NAME}")
    h.broker.metadata.append(BROKER, PolicySet("/", "hard", HARD, '{"max-length":7}', 0, "all"))
    h.settle()
    began = time.process_time()
    h.restart()
    assert time.process_time() - began < 20, "a hundred names of 250 bytes, each of which would take 4^250 steps"
    assert h.queue("aX").policy is not None
    assert h.queue(f"0-{HARD_NAME}").policy is None


def test_a_permission_of_the_history_refuses_what_takes_too_long(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    in_history.cache_clear()  # nobody was told yet
    h.broker.metadata.append(BROKER, PermissionsSet("/", "guest", ".*", HARD, ".*"))
    h.broker.access.control.check(Identity("guest"), "/", "write", "queue", "aX")
    with caplog.at_level(logging.WARNING), pytest.raises(AccessRefused):
        h.broker.access.control.check(Identity("guest"), "/", "write", "queue", HARD_NAME)
    assert [f"pattern '{HARD}'" in each for each in caplog.messages] == [True]


def test_a_users_name_may_make_a_topic_permission_hard(h: Harness) -> None:
    """Variables are filled in as they are, as at RabbitMQ; the limit holds for what comes of them."""
    user = "(a+)+"
    for event in (
        UserSet(user, "", ()),
        PermissionsSet("/", user, ".*", ".*", ".*"),
        TopicPermissionsSet("/", user, "amq.topic", "^{username}$", ".*"),
    ):
        h.broker.metadata.append(BROKER, event)
    exchange = h.broker.topology.exchanges["/", "amq.topic"]
    h.broker.access.control.check_topic(Identity(user), exchange, "write", "aaa")
    with pytest.raises(AccessRefused):
        h.broker.access.control.check_topic(Identity(user), exchange, "write", "a" * 250 + "!")


def test_a_pattern_in_the_history_that_is_none_is_nonsense() -> None:
    assert Topology().apply(0, 0, BROKER, PolicySet("/", "p", r"^\h", "{}", 0, "all")) == ""
    told = Topology().apply(0, 0, BROKER, PolicySet("/", "q", "(*UTF)x", "{}", 0, "all"))
    assert told.startswith("pattern of policy 'q'")


def test_a_policy_over_many_queues_lets_others_have_their_turn(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is applied to all of them, also if nobody waits for the answer any more."""
    monkeypatch.setattr(slices, "SLICE_SECONDS", -1.0)
    session = h.session()
    for number in range(QUEUES):
        h.declare(session, f"q{number}")
    broker = h.broker._broker

    def applied(name: str) -> int:
        policies = [h.queue(f"q{number}").policy for number in range(QUEUES)]
        return sum(policy is not None and policy.name == name for policy in policies)

    async def set_it() -> None:
        task = asyncio.ensure_future(
            broker.policies.set(Actor("guest", 0), "/", "p", "^q", {"max-length": 1}, 0, "all")
        )
        seen = []
        while not task.done():
            seen.append(applied("p"))
            await asyncio.sleep(0)
        assert len([count for count in seen if 0 < count < QUEUES]) >= 2, seen
        assert applied("p") == QUEUES
        cancelled = asyncio.ensure_future(
            broker.policies.set(Actor("guest", 0), "/", "r", "^q", {"max-length": 2}, 1, "all")
        )
        await asyncio.sleep(0)
        cancelled.cancel()
        while applied("r") < QUEUES:
            await asyncio.sleep(0)

    h.loop.run_until_complete(asyncio.wait_for(set_it(), 30))


def test_a_filter_has_a_budget_for_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"q{number}" for number in range(1_000)]
    wanted = NameFilter("Q99[0-9]$", ignore_case=True)
    assert [name for name in names if wanted.fits(name)] == names[990:]
    with pytest.raises(ApiError) as none:
        NameFilter("(")
    assert (none.value.status, none.value.reason[:44]) == (400, "not a regular expression '(': missing closin")
    with pytest.raises(ApiError) as hard:
        NameFilter("(a+)+$").fits(HARD_NAME + "!")
    assert hard.value.status == 400
    assert hard.value.reason.startswith("regular expression '(a+)+$' takes too many steps on 'Xaaa")
    monkeypatch.setattr(filters, "FILTER_SECONDS", 0.0)
    with pytest.raises(ApiError, match="takes too long on all these names"):
        NameFilter("x").fits("q")
