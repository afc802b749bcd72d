"""The management API reads long collections in slices, and others get turns in between."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.definitions.document import export
from rewindmq.engine.definitions.load import Import
from rewindmq.engine.errors import PreconditionFailed
from rewindmq.engine.host.loop_share import SLICE_SECONDS, LoopShare, Work, by_key
from rewindmq.engine.http.pieces import members
from rewindmq.engine.http.resources.metrics import detailed
from rewindmq.engine.http.resources.vhosts import numbers_of
from rewindmq.engine.http.statistics import AT_ONCE
from rewindmq.schemas.json_values import Json
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Harness

VHOSTS = 400
QUEUES = 4 * AT_ONCE  # all in the vhost v0
LOOKS = 4  # at the clock, in a slice
Reads = Callable[[Broker, Work], Awaitable[int]]


@pytest.fixture(scope="module")
def h(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """One broker for all tests: no test counts on what another one has not made."""
    with Harness(tmp_path_factory.mktemp("broker"), partitions=2) as harness:
        broker = harness.broker
        for number in range(VHOSTS):
            broker.vhosts.create(Actor("guest", 0), f"v{number}", "")
            broker.access.users.set_permissions(Actor("guest", 0), f"v{number}", "guest", ".*", ".*", ".*")
            broker.policies.set(Actor("guest", 0), f"v{number}", "p", "^x", {"max-length": 5}, 0, "queues")
            broker.parameters.set_vhost_limits(
                Actor("guest", 0), f"v{number}", {"max-connections": 5, "max-queues": 2 * QUEUES}
            )
        session = harness.session(vhost="v0")
        for number in range(QUEUES):
            harness.declare(session, f"q{number}")
        harness.bind(session, "amq.fanout", "q7")
        yield harness


def turns_beside(h: Harness, read: Reads) -> tuple[int, int]:
    """Return the result of a read, and the number of turns that others had meanwhile.

    The clock advances with each look at it, so that a slice has LOOKS of them."""
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return looks * SLICE_SECONDS / LOOKS

    async def main() -> tuple[int, int]:
        turns = 0
        broker = h.broker._broker
        broker.host.loop_share = LoopShare(clock)

        async def bystander() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.create_task(bystander())
        found = await read(broker, Work(broker.host.loop_share))
        beside.cancel()
        return found, turns

    return h.loop.run_until_complete(main())


async def bindings(broker: Broker, work: Work) -> int:
    return len([each async for each in broker.exchanges.bindings_by_source(work, broker.topology.vhosts)])


async def vhosts(broker: Broker, work: Work) -> int:
    return len(await by_key(work, broker.topology.vhosts))


async def definitions(broker: Broker, work: Work) -> int:
    return len([piece async for piece in members(work, await export(broker, work))])


@pytest.mark.parametrize(("read", "at_least"), [(bindings, 1), (vhosts, VHOSTS), (definitions, 4 * VHOSTS)])
def test_others_have_turns_while_many_things_are_read(h: Harness, read: Reads, at_least: int) -> None:
    """`bindings` goes through the exchanges of all vhosts, though hardly any has bindings."""
    found, turns = turns_beside(h, read)
    assert found >= at_least
    assert turns >= max(found, VHOSTS) / (LOOKS + 1)


def test_the_numbers_of_a_vhost_with_many_queues(h: Harness) -> None:
    session = h.session(vhost="v0")
    h.publish(session, "", "q0", b"one")
    h.publish(session, "", f"q{QUEUES - 1}", b"two")
    h.settle()
    depths = {}

    async def read(broker: Broker, work: Work) -> int:
        depths.update({name: depth for name, (depth, _) in (await numbers_of(broker, work, {"v0", "v1"})).items()})
        return len(depths)

    found, turns = turns_beside(h, read)
    assert found == 1, "v1 has no queues"
    assert depths["v0"] == {"messages": 2, "messages_ready": 2, "messages_unacknowledged": 0}
    assert turns >= QUEUES / (LOOKS + 1)


async def detailed_metrics(broker: Broker, family: str) -> int:
    """Return the number of bytes that /metrics/detailed has for one family."""
    scope = {"type": "http", "query_string": f"family={family}".encode(), "headers": []}
    response = await detailed(broker, Request(scope))
    if isinstance(response, StreamingResponse):
        return sum([len(piece) async for piece in response.body_iterator])
    return len(response.body)


def test_metrics_of_exchanges(h: Harness) -> None:
    """The exchanges of all vhosts are put in order and their bindings are counted in slices, as the lines are told."""
    session = h.session(vhost="v0")
    for number in range(QUEUES):
        h.bind(session, "amq.topic", f"q{number}")
    exchanges = len(h.broker.topology.exchanges)

    _, without = turns_beside(h, lambda broker, _: detailed_metrics(broker, "none"))
    for family, looked_at in (("exchange_names", exchanges), ("exchange_bindings", exchanges + QUEUES)):
        size, turns = turns_beside(h, lambda broker, _, family=family: detailed_metrics(broker, family))  # type: ignore[misc]
        assert size > 40 * exchanges
        assert turns - without >= (exchanges + looked_at) / (LOOKS + 1), family


def test_limits_of_vhosts_in_an_import(h: Harness) -> None:
    queues: list[Json] = [{"name": "new", "vhost": f"v{number}"} for number in range(VHOSTS)]

    async def judge(broker: Broker, document: dict[str, Json]) -> int:
        with pytest.raises(PreconditionFailed, match="no vhost is named"):
            await Import(broker, Actor("guest", 0), document).carry_out()
        return 0

    # The last entry is wrong, so nothing is carried out.
    _, without = turns_beside(h, lambda broker, _: judge(broker, {"bindings": [{}]}))
    _, turns = turns_beside(h, lambda broker, _: judge(broker, {"queues": queues, "bindings": [{}]}))
    assert turns - without >= (VHOSTS + QUEUES) / (LOOKS + 1), "the queues that are there are counted in slices"


def test_an_import_knows_what_is_there_when_it_is_judged(h: Harness) -> None:
    """It copies nothing of the broker when it begins: that would be one long piece of work."""

    async def read(broker: Broker, _: Work) -> int:
        document: Json = {
            "permissions": [{"vhost": "late", "user": "late", "configure": "", "write": "", "read": ""}],
            "bindings": [
                {
                    "vhost": "late",
                    "source": "amq.direct",
                    "destination": "amq.topic",
                    "destination_type": "exchange",
                    "routing_key": "",
                    "arguments": {},
                }
            ],
        }
        later = Import(broker, Actor("guest", 0), document)
        await broker.vhosts.create(Actor("guest", 0), "late", "")
        await broker.access.users.set(Actor("guest", 0), "late", "password", ())
        await later.carry_out()
        return len(broker.topology.bindings_from("late", "amq.direct"))

    assert turns_beside(h, read)[0] == 1
