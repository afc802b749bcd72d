"""Deliveries that stay unacked for too long (consumer timeout, docs/behaviours/profiles.md)."""

import asyncio

import pytest

from rewindmq.engine.amqp.consumer_timeout import DeliveryAges
from rewindmq.engine.amqp.settlement import DeliveryHolder, Settlement
from rewindmq.engine.errors import PreconditionFailed
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor, Argument, Policy
from tests.support.amqp_double import DoubleBroker
from tests.support.amqp_wire import Said, Wire, method, publish
from tests.support.events_for_tests import declared

HOUR_MS = 3_600_000
NOTHING: tuple[None, dict[DeliveryHolder, list[int]]] = (None, {})


@pytest.fixture
def wire() -> Wire:
    wire = Wire()
    wire.ask(1, "Queue.Declare", queue="q", durable=True)
    return wire


def names(said: list[Said]) -> list[str]:
    return [each.name for each in said]


def test_deliveries_must_be_acked_within_half_an_hour(wire: Wire) -> None:
    wire.send(*(publish(1, "", "q", b"m") for _ in range(3)), method(1, "Basic.Consume", queue="q"))
    look = wire.connection.check_timeouts
    for minute in range(31):
        look(minute * 60.0)
        if minute == 20:  # the first is acked in time, a fourth is delivered
            wire.send(method(1, "Basic.Ack", delivery_tag=1), publish(1, "", "q", b"m"))
    (said,) = wire.read()
    assert (said.name, said.reply_code, said.class_id, said.reply_text) == (
        "Channel.Close",
        406,
        0,
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms. This"
        " timeout value can be configured, see consumers doc guide to learn more",
    )
    assert ("close_channel", 1) in wire.broker.calls


def test_deliveries_that_are_acked_are_not_overdue(wire: Wire) -> None:
    wire.send(publish(1, "", "q", b"m"), method(1, "Basic.Consume", queue="q"))
    for minute in range(100):
        wire.connection.check_timeouts(minute * 60.0)
        if minute % 25 == 0:
            wire.send(publish(1, "", "q", b"m"), method(1, "Basic.Ack", delivery_tag=0, multiple=True))
    assert wire.read() == []
    for minute in range(100, 120):
        wire.connection.check_timeouts(minute * 60.0)
    assert names(wire.read()) == ["Channel.Close"]


async def rest(wire: Wire) -> None:
    """Until its connection does not wait any more."""
    while wire.connection.gate.waiting:
        await asyncio.sleep(0)


def test_who_gives_way_is_looked_at_when_he_has_his_turn() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        wire = Wire()
        wire.send(method(2, "Channel.Open"))
        for number in range(100):
            wire.ask(1, "Queue.Declare", queue=f"q{number}")
            wire.ask(1, "Queue.Bind", queue=f"q{number}", exchange="amq.topic", routing_key="k")
        wire.send(publish(1, "", "q0", b"m"), method(1, "Basic.Consume", queue="q0"))
        wire.connection.check_timeouts(loop.time() - 3_600)
        wire.push(*(publish(2, "amq.topic", "k", b"m") for _ in range(200)))
        assert wire.connection.gate.waiting
        wire.connection.check_timeouts(loop.time())
        assert wire.read() == []
        await asyncio.sleep(0)
        assert wire.connection.gate.waiting, "the connection has given way again already"
        (said,) = (each for each in wire.read() if each.name != "Basic.Deliver")
        assert (said.name, said.channel, said.reply_code) == ("Channel.Close", 1, 406)
        await rest(wire)
        assert sum(isinstance(event, Published) for event in wire.broker.events) == 201

    asyncio.run(run())


def test_who_waits_for_an_answer_is_looked_at_when_it_is_there() -> None:
    """A commit under way on the channel is answered before an overdue delivery closes the channel."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        broker = DoubleBroker(prompt=False)
        wire = Wire(broker)
        wire.send(method(1, "Queue.Declare", queue="q"), method(1, "Queue.Declare", queue="other"))
        broker.land()
        wire.send(publish(1, "", "q", b"m"), method(1, "Basic.Consume", queue="q"), method(1, "Tx.Select"))
        broker.land()
        wire.read()
        wire.connection.check_timeouts(loop.time() - 3_600)
        assert wire.send(publish(1, "", "other", b"m"), method(1, "Tx.Commit")) == []
        wire.connection.check_timeouts(loop.time())
        await asyncio.sleep(0)
        assert wire.read() == []
        broker.land()
        while wire.connection.gate.waiting:
            await asyncio.sleep(0)
        assert names(wire.read()) == ["Tx.CommitOk", "Channel.Close"]

    asyncio.run(run())


# -- the timeouts of queues -------------------------------------------------------------------------------------------


def holder(
    type: str, argument: int | None = None, policy: int | None = None, semantics: str = "rabbitmq-3.13"
) -> DeliveryHolder:
    arguments = () if argument is None else (Argument("x-consumer-timeout", "signedint", argument),)
    given = None if policy is None else Policy("p", f'{{"consumer-timeout":{policy}}}', 1)
    machine = Machine("queues-0")
    machine.machine_version = 2
    event = declared("/", "q", type=type, durable=True, arguments=arguments, semantics=semantics, policy=given)
    machine.apply(0, 1, Actor("guest", 1), event, [])
    holding = DeliveryHolder()
    holding.queue = machine.queue("/", "q")
    assert holding.queue is not None
    return holding


def deliver(settlement: Settlement, holding: DeliveryHolder) -> int:
    settlement.last_tag += 1
    settlement.unacked[settlement.last_tag] = (holding, 1)
    return settlement.last_tag


@pytest.mark.parametrize("type", ["classic", "quorum", "stream"])
@pytest.mark.parametrize(
    ("argument", "policy", "expected"),
    [
        (None, None, HOUR_MS),
        (5_000, None, 5_000),
        (None, 7_000, 7_000),
        (9_000, 7_000, 7_000),
        (5_000, 7_000, 5_000),
        (2 * HOUR_MS, None, 2 * HOUR_MS),
    ],
)
def test_the_smaller_of_argument_and_policy_else_the_nodes(
    type: str, argument: int | None, policy: int | None, expected: int
) -> None:
    settlement = Settlement(Actor("guest", 1))
    ages = DeliveryAges(settlement)
    deliver(settlement, holder(type, argument, policy))
    assert ages.overdue(100, HOUR_MS) == NOTHING
    assert ages.overdue(99.9 + expected / 1000, HOUR_MS) == NOTHING
    assert ages.overdue(100 + expected / 1000, HOUR_MS) == (expected, {})


def test_only_the_oldest_delivery_is_looked_at() -> None:
    settlement = Settlement(Actor("guest", 1))
    ages = DeliveryAges(settlement)
    patient = deliver(settlement, holder("classic", HOUR_MS))
    deliver(settlement, holder("classic", 1_000))
    assert ages.overdue(0, HOUR_MS) == NOTHING
    assert ages.overdue(60, HOUR_MS) == NOTHING
    del settlement.unacked[patient]
    assert ages.overdue(61, HOUR_MS) == (1_000, {})


def test_a_delivery_is_as_old_as_the_first_check_after_it() -> None:
    settlement, holding = Settlement(Actor("guest", 1)), holder("classic", 60_000)
    ages = DeliveryAges(settlement)
    first = deliver(settlement, holding)
    ages.overdue(0, HOUR_MS)
    deliver(settlement, holding)
    ages.overdue(30, HOUR_MS)
    del settlement.unacked[first]
    assert ages.overdue(60, HOUR_MS) == NOTHING
    assert ages.overdue(90, HOUR_MS) == (60_000, {})


def test_samples_are_forgotten_with_the_deliveries_that_they_cover() -> None:
    settlement, holding = Settlement(Actor("guest", 1)), holder("classic")
    ages = DeliveryAges(settlement)
    for now in range(1_000):
        tag = deliver(settlement, holding)
        ages.overdue(now, HOUR_MS)
        del settlement.unacked[tag]
    assert len(ages.samples) <= 2
    for now in range(1_000, 2_000):  # and where nothing happens, none are made
        ages.overdue(now, HOUR_MS)
    assert len(ages.samples) <= 2


# -- profile rabbitmq-4.3 ---------------------------------------------------------------------------------------------


def test_4_3_each_overdue_delivery_of_a_quorum_queue_is_given_back() -> None:
    settlement = Settlement(Actor("guest", 1))
    ages = DeliveryAges(settlement)
    patient, hasty = holder("quorum", HOUR_MS, semantics="rabbitmq-4.3"), holder("quorum", 1_000, None, "rabbitmq-4.3")
    tags = [deliver(settlement, each) for each in (patient, hasty, patient, hasty)]
    assert ages.overdue(0, HOUR_MS) == NOTHING
    deliver(settlement, hasty)
    assert ages.overdue(1, HOUR_MS) == (None, {hasty: [tags[1], tags[3]]})


def test_4_3_other_queues_have_no_timeout() -> None:
    settlement = Settlement(Actor("guest", 1))
    ages = DeliveryAges(settlement)
    for type in ("classic", "stream"):
        deliver(settlement, holder(type, 1_000, semantics="rabbitmq-4.3"))
    ages.overdue(0, 1_000)
    assert ages.overdue(3_600, 1_000) == NOTHING


def test_both_profiles_on_one_channel() -> None:
    settlement = Settlement(Actor("guest", 1))
    ages = DeliveryAges(settlement)
    later, first = holder("quorum", 1_000, semantics="rabbitmq-4.3"), holder("quorum", 1_000)
    tag = deliver(settlement, later)
    deliver(settlement, first)
    ages.overdue(0, HOUR_MS)
    assert ages.overdue(2, HOUR_MS) == (None, {later: [tag]})
    del settlement.unacked[tag]
    assert ages.overdue(3, HOUR_MS) == (1_000, {})


def test_4_3_what_was_given_back_may_be_settled_too_late() -> None:
    settlement = Settlement(Actor("guest", 1))
    settlement.returned.update((1, 2))
    settlement.settle(1, False, None)
    settlement.settle(2, True, ("nack", True))
    with pytest.raises(PreconditionFailed, match="unknown delivery tag 1"):
        settlement.settle(1, False, None)
