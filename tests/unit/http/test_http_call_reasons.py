"""The actor of an HTTP call, and its reason (B-78)."""

from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.http.call import Call
from rewindmq.engine.http.resources import queues
from rewindmq.engine.identity.grants import Identity
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import MachineUpgraded, Purged
from rewindmq.schemas.values import BROKER
from tests.support.broker_harness import Harness
from tests.support.memory_nodes import Nodes, declare, on_nodes, session, settled
from tests.support.next_version import KNOWING


def call(broker: Any, reason: bytes) -> Call:
    scope = {"type": "http", "method": "DELETE", "path": "/api", "query_string": b"", "client": None, "server": None}
    headers = [(b"x-reason", reason)] if reason else []
    request = Request(scope | {"headers": headers, "path_params": {}, "endpoint": queues.purge})
    workers: Any = None
    return Call(request, broker, workers, Identity("guest", None))


def test_b78_a_reason_waits_until_every_partition_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata log has the upgrade first. A partition that has not followed yet could not store the reason."""
    with monkeypatch.context() as older:
        for module in KNOWING:
            older.setattr(f"rewindmq.{module}.MACHINE_VERSION", 1)
        with Harness(tmp_path) as h:
            h.declare(h.session(), "orders")
    with Harness(tmp_path) as h:

        async def upgrade_and_ask() -> None:
            await h.broker.metadata.ask(BROKER, MachineUpgraded(2))
            assert h.broker.topology.machine_version == 2
            assert {each.machine.machine_version for each in h.broker.partitions} == {1}
            with pytest.raises(PreconditionFailed, match="a reason needs machine version 2, and the history follows 1"):
                call(h.broker, b"why").actor()
            assert call(h.broker, b"").actor().reason == ""

        h.loop.run_until_complete(upgrade_and_ask())
        h.settle()

        async def ask() -> None:
            assert call(h.broker, b" why \xc3\xa9").actor().reason == "why é"

        h.loop.run_until_complete(ask())


def test_b78_an_event_with_a_field_of_its_own_has_the_reason_there(tmp_path: Path) -> None:
    """Also in a second attempt of the call (partition/certainty.py)."""
    with Harness(tmp_path) as h:

        async def ask() -> None:
            given = call(h.broker, b"header")
            for _ in range(2):
                assert given.own_reason("body") == "header"
                assert given.actor().reason == ""
            only = call(h.broker, b"")
            for _ in range(2):
                assert only.own_reason("body") == "body"
                assert only.actor().reason == ""

        h.loop.run_until_complete(ask())


@on_nodes()
async def test_b78_nodes_on_one_log_read_it_back(nodes: Nodes) -> None:
    """The event that a node folds is the one that it would have without a reason."""
    a, b = await nodes.start("a"), await nodes.start("b")
    await declare(a, session(a))
    home = a.queues.partition_for("/", "q")
    await home.ask(call(a, b"test data").actor(), Purged("/", "q"))
    await settled()
    decoded = [Decoder().decode(value) for value in nodes.history.queues[home.index].values]
    ((_, actor, _),) = [each for each in decoded if isinstance(each[2], Purged)]
    assert (actor.user, actor.reason) == ("guest", "test data")
    assert b.partitions[home.index].machine.digest() == home.machine.digest()
