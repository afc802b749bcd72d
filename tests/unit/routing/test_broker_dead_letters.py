"""Dead letters across queues and partitions: chains, cycles, strategies, crashes (docs/behaviours/dead-letters.md)."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.routing.content import readable
from rewindmq.engine.routing.dead_letters import Forwarder
from rewindmq.projections.replay import Block
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor, Argument
from tests.support.broker_harness import Client, Harness, HistoryDouble, args
from tests.support.needs import require_patchable

DLX = args(x_dead_letter_exchange="dlx")


def history_of(message: Published) -> list[dict[str, Any]]:
    """Its x-death header."""
    history = readable(message.properties).headers["x-death"]
    assert isinstance(history, list)
    return history


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data", partitions=4) as harness:
        yield harness


def to(queue: str) -> tuple[Argument, ...]:
    """Dead letters go to this queue, by the default exchange."""
    return args(x_dead_letter_exchange="", x_dead_letter_routing_key=queue)


def deaths(message: Published | None) -> list[tuple[str, str, int]]:
    assert message is not None
    history = history_of(message)
    assert isinstance(history, list)
    return [(each["queue"], each["reason"], each["count"]) for each in history]


def at_least_once(queue: str, **more: int) -> tuple[Argument, ...]:
    return args(
        x_queue_type="quorum",
        x_overflow="reject-publish",
        x_dead_letter_strategy="at-least-once",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=queue,
        **more,
    )


def outboxes(h: Harness) -> int:
    return sum(len(queue.outbox) for partition in h.broker.partitions for queue in partition.machine.by_id.values())


def test_each_reason(h: Harness) -> None:
    session = h.session()
    h.declare(session, "dead")
    h.declare(session, "short", (*to("dead"), *args(x_max_length=1)))
    h.declare(session, "door", (*to("dead"), *args(x_max_length=0, x_overflow="reject-publish-dlx")))
    h.declare(session, "brief", (*to("dead"), *args(x_message_ttl=100)))
    h.declare(session, "plain", to("dead"))
    h.declare(session, "poison", (*to("dead"), *args(x_queue_type="quorum", x_delivery_limit=0)))
    client = Client()
    for queue in ("short", "short", "door", "brief", "plain", "poison"):
        h.publish(session, "", queue, queue.encode())
    plain, poison = h.consume(session, "plain", client), h.consume(session, "poison", client)
    h.settle()
    for consumer, requeue in ((plain, False), (poison, True)):
        h.nack(session, consumer, *(d[1] for d in client.deliveries if d[0] == consumer[1].name), requeue=requeue)
    h.settle()
    h.pass_time(101)
    found = {}
    while (message := h.fetch(session, "dead")) is not None:
        found[message.body] = deaths(message)
    assert found == {
        b"short": [("short", "maxlen", 1)],
        b"door": [("door", "maxlen", 1)],
        b"brief": [("brief", "expired", 1)],
        b"plain": [("plain", "rejected", 1)],
        b"poison": [("poison", "delivery_limit", 1)],
    }
    assert outboxes(h) == 0
    counters = h.broker.counters
    labels = '{queue_type="rabbit_classic_queue",dead_letter_strategy="at_most_once"}'
    assert counters[f"global_messages_dead_lettered_maxlen_total{labels}"] == 2
    assert counters[f"global_messages_dead_lettered_rejected_total{labels}"] == 1


@pytest.mark.parametrize("arguments", [to("dead"), at_least_once("dead")], ids=["at-most-once", "at-least-once"])
def test_a_letter_that_neither_store_nor_log_can_give_holds_up_nobody(
    h: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, arguments: tuple[Argument, ...]
) -> None:
    """While the log does not answer the letter waits; when it has it no more, the letter is given up."""
    session, client = h.session(), Client()
    h.declare(session, "dead")
    queue = h.declare(session, "q", arguments)
    for body in (b"damaged", b"m"):
        h.publish(session, "", "q", body)
    consumer = h.consume(session, "q", client)
    h.settle()
    damaged, whole = (delivery[1] for delivery in client.deliveries)
    partition = h.broker.queues.partition_for("/", "q")
    partition.projector.forget(queue.queue_id, [damaged])
    answers = [LogError("no answer"), None]

    def read(offset: int, end: int) -> Iterator[Block]:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return iter(())

    monkeypatch.setattr(partition, "history", HistoryDouble(partition.history, read))
    h.nack(session, consumer, damaged, whole)
    h.settle()
    assert (h.ready("dead"), outboxes(h)) == ([], 2)
    h.pass_time(60_000)
    assert (h.ready("dead"), outboxes(h), answers) == ([b"m"], 0, [])
    assert "forwarded later: no answer" in caplog.text
    assert "no longer exists" in caplog.text


def test_a_chain_across_partitions_ends_with_its_whole_history(h: Harness) -> None:
    session = h.session()
    names = [f"step{number}" for number in range(6)]
    assert len({h.broker.queues.partition_for("/", name).index for name in names}) > 1
    for name, following in zip(names, [*names[1:], "end"], strict=True):
        h.declare(session, name, (*to(following), *args(x_message_ttl=0)))
    h.declare(session, "end")
    h.publish(session, "", "step0", b"traveller")
    h.settle()
    message = h.fetch(session, "end")
    assert deaths(message) == [(name, "expired", 1) for name in reversed(names)]
    assert message is not None
    headers = readable(message.properties).headers
    assert (headers["x-first-death-queue"], headers["x-last-death-queue"]) == ("step0", "step5")
    assert message.origin is not None
    assert message.origin.queue == "step5"
    assert outboxes(h) == 0


def test_the_routing_key_is_kept_or_replaced(h: Harness) -> None:
    session = h.session()
    h.exchange(session, "dlx", "topic")
    h.declare(session, "kept")
    h.declare(session, "replaced")
    h.bind(session, "dlx", "kept", "a.#")
    h.bind(session, "dlx", "replaced", "other")
    h.declare(session, "q1", (*DLX, *args(x_max_length=0)))
    h.declare(session, "q2", (*DLX, *args(x_max_length=0, x_dead_letter_routing_key="other")))
    for queue in ("q1", "q2"):
        h.bind(session, "amq.topic", queue, "a.b")
    h.publish(session, "amq.topic", "a.b", b"m")
    h.settle()
    kept, replaced = h.fetch(session, "kept"), h.fetch(session, "replaced")
    assert kept is not None
    assert replaced is not None
    assert (kept.route.exchange, kept.route.routing_key) == ("dlx", "a.b")
    assert (replaced.route.exchange, replaced.route.routing_key) == ("dlx", "other")
    assert history_of(replaced)[0]["routing-keys"] == ["a.b"]


def test_s155_an_automatic_cycle_is_dropped(h: Harness) -> None:
    session = h.session()
    h.declare(session, "a", (*to("b"), *args(x_message_ttl=0)))
    h.declare(session, "b", (*to("a"), *args(x_message_ttl=0)))
    h.publish(session, "", "a", b"round and round")
    h.settle()
    assert [h.queue(name).counters["expired"] for name in "ab"] == [1, 1]
    assert outboxes(h) == 0


def test_s155_a_missing_dlx_and_a_missing_route_drop_in_silence(h: Harness) -> None:
    session = h.session()
    h.declare(session, "nowhere", (*args(x_dead_letter_exchange="nope"), *args(x_max_length=0)))
    h.declare(session, "unbound", (*args(x_dead_letter_exchange="amq.direct"), *args(x_max_length=0)))
    for queue in ("nowhere", "unbound"):
        h.publish(session, "", queue, b"m")
    h.settle()
    assert outboxes(h) == 0
    assert h.queue("nowhere").counters["maxlen"] == 1


def test_s154_delivery_mode_and_priority_stay_and_the_expiration_goes(h: Harness) -> None:
    session = h.session()
    h.declare(session, "dead")
    h.declare(session, "q", to("dead"))
    properties = b"\x11\x00\x02\x0250"  # delivery mode 2, expiration "50"
    h.publish(session, "", "q", b"m", properties=properties, expiration_ms=50)
    h.settle()
    h.pass_time(60)
    message = h.fetch(session, "dead")
    assert message is not None
    assert message.persistent
    assert message.expiration_ms is None
    history = history_of(message)
    assert history[0]["original-expiration"] == "50"


def test_carbon_copies_are_routed_again_and_told(h: Harness) -> None:
    session = h.session()
    for name in ("one", "two"):
        h.declare(session, name)
        h.bind(session, "amq.direct", name, name)
    h.declare(session, "q", args(x_max_length=0, x_dead_letter_exchange="amq.direct"))
    h.bind(session, "amq.topic", "q", "one")
    h.declare(session, "blind")
    h.bind(session, "amq.direct", "blind", "blind")
    properties = commands.Basic.Properties(headers={"CC": ["two", "nobody"], "BCC": ["blind"]}).marshal()
    h.publish(session, "amq.topic", "one", b"m", properties=properties)
    h.settle()
    for name in ("one", "two", "blind"):
        message = h.fetch(session, name)
        assert message is not None
        history = history_of(message)
        assert history[0]["routing-keys"] == ["one", "two", "nobody"]


def test_a_dead_letter_routing_key_replaces_blind_copies_for_good(h: Harness) -> None:
    session = h.session()
    for name in ("blind", "q"):
        h.declare(session, name)
    h.declare(session, "first", args(x_max_length=0, x_dead_letter_exchange="", x_dead_letter_routing_key="second"))
    h.declare(session, "second", args(x_max_length=0, x_dead_letter_exchange="amq.fanout"))
    h.bind(session, "amq.fanout", "q")
    properties = commands.Basic.Properties(headers={"BCC": ["blind"]}).marshal()
    h.publish(session, "", "first", b"m", properties=properties)
    h.settle()
    message = h.fetch(session, "q")
    assert message is not None
    assert "BCC" not in readable(message.properties).headers
    assert h.ready("blind") == []


def test_unreadable_properties_do_not_cost_the_message(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    session = h.session()
    h.declare(session, "dead")
    h.declare(session, "q", (*to("dead"), *args(x_max_length=0)))
    h.publish(session, "", "q", b"broken", properties=b"\x20\x00\0\0\0\x03\x01a?")
    h.publish(session, "", "q", b"whole")
    h.settle()
    assert [deaths(h.fetch(session, "dead")) for _ in range(2)] == [[("q", "maxlen", 1)]] * 2
    assert "loses its properties: field table with unknown type 63" in caplog.text


# -- at-least-once ----------------------------------------------------------------------------------------------------


def test_s149_s151_refused_letters_stay_and_are_tried_again_in_order(h: Harness) -> None:
    """S-152."""
    session = h.session()
    h.declare(session, "full", args(x_max_length=1, x_overflow="reject-publish"))
    h.declare(session, "src", at_least_once("full", x_message_ttl=0))
    for number in range(3):
        h.publish(session, "", "src", b"%d" % number)
    h.settle()
    h.pass_time(1)
    assert h.ready("full") == [b"0"]
    assert h.queue("src").messages_dlx == 2
    taken = []
    for _ in range(3):
        message = h.fetch(session, "full")
        assert message is not None
        taken.append(message.body)
        h.pass_time(60_000)
    assert taken == [b"0", b"1", b"2"]
    assert h.queue("src").messages_dlx == 0
    assert outboxes(h) == 0


def test_s151_without_a_route_letters_wait_for_one(h: Harness) -> None:
    session = h.session()
    h.declare(session, "src", at_least_once("later", x_message_ttl=0))
    h.publish(session, "", "src", b"patient")
    h.settle()
    h.pass_time(5_000)
    assert h.queue("src").messages_dlx == 1
    h.declare(session, "later")
    h.pass_time(60_000)
    assert h.ready("later") == [b"patient"]
    assert outboxes(h) == 0


def test_s151_only_the_target_that_refused_gets_it_again(h: Harness) -> None:
    session = h.session()
    h.exchange(session, "dlx", "fanout")
    for name, arguments in (("open", ()), ("shut", args(x_max_length=0, x_overflow="reject-publish"))):
        h.declare(session, name, arguments)
        h.bind(session, "dlx", name)
    h.declare(
        session,
        "src",
        args(
            x_queue_type="quorum",
            x_overflow="reject-publish",
            x_dead_letter_strategy="at-least-once",
            x_dead_letter_exchange="dlx",
            x_message_ttl=0,
        ),
    )
    h.publish(session, "", "src", b"m")
    h.settle()
    h.pass_time(1)
    h.pass_time(2_000)
    assert h.queue("open").counters["published"] == 1
    assert h.queue("open").counters["duplicates"] == 0
    assert h.queue("src").messages_dlx == 1


def test_s153_back_to_at_most_once_deletes_what_waits(h: Harness) -> None:
    session = h.session()
    h.broker.policies.set(
        Actor("guest", 0),
        "/",
        "safe",
        "^src$",
        {
            "dead-letter-exchange": "",
            "dead-letter-routing-key": "nope",
            "overflow": "reject-publish",
            "dead-letter-strategy": "at-least-once",
            "message-ttl": 0,
        },
        0,
        "quorum_queues",
    )
    h.declare(session, "src", args(x_queue_type="quorum"))
    h.publish(session, "", "src", b"m")
    h.settle()
    h.pass_time(1)
    assert outboxes(h) == 1
    h.broker.policies.clear(Actor("guest", 0), "/", "safe")
    h.settle()
    assert outboxes(h) == 0
    h.pass_time(60_000)
    assert outboxes(h) == 0


def test_a_burst_larger_than_a_round_is_forwarded_in_several_turns(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.broker.turns.ROUND", 10)
    session = h.session()
    h.declare(session, "dead")
    h.declare(session, "q", (*to("dead"), *args(x_message_ttl=50)))
    for number in range(95):
        h.publish(session, "", "q", b"%d" % number)
    h.settle()
    h.pass_time(51)
    assert h.ready("dead") == [b"%d" % number for number in range(95)]
    assert outboxes(h) == 0


def test_other_turns_do_not_forward_beside_the_slices(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn comes with each read of a socket: if each forwarded for a slice, busy connections would stop the loop."""
    monkeypatch.setattr("rewindmq.engine.broker.turns.ROUND", 10)
    session = h.session()
    h.declare(session, "dead")
    h.declare(session, "q", to("dead"))
    for number in range(95):
        h.publish(session, "", "q", b"%d" % number)
    h.settle()
    h.broker.policies.set(Actor("guest", 0), "/", "p", "^q$", {"max-length": 0}, 0, "queues")
    taken: list[int] = []

    async def reads() -> None:
        durable = asyncio.get_running_loop().create_future()
        h.broker.turns.end()
        h.broker.turns.when_durable(lambda: durable.set_result(None))
        await durable
        for _ in range(20):
            h.broker.turns.end()
            taken.append(h.queue("dead").counters["published"])

    h.loop.run_until_complete(reads())
    assert max(taken) <= 20
    h.settle()
    assert h.ready("dead") == [b"%d" % number for number in range(95)]


def test_a_slice_of_letters_ends_with_its_time(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    require_patchable("rewindmq.engine.routing.dead_letters.Forwarder.forward")
    monkeypatch.setattr("rewindmq.engine.routing.dead_letters.SLICE_SECONDS", 0.0)
    session = h.session()
    h.declare(session, "dead")
    h.declare(session, "q", (*to("dead"), *args(x_max_length=0)))
    for number in range(5):
        h.publish(session, "", "q", b"%d" % number)
    sent: list[int] = []
    real = Forwarder.forward

    def counted(self: Forwarder, budget: int) -> int:
        before = h.queue("dead").counters["published"]
        rest = real(self, budget)
        sent.append(h.queue("dead").counters["published"] - before)
        return rest

    monkeypatch.setattr(Forwarder, "forward", counted)
    h.settle()
    assert h.ready("dead") == [b"%d" % number for number in range(5)]
    assert max(sent) == 1


# -- crashes ----------------------------------------------------------------------------------------------------------


def test_b07_a_kill_between_forward_and_acknowledgement_forwards_once(h: Harness, tmp_path: Path) -> None:
    """The forward is durable in its target, `DeadLettersForwarded` is not: the target's fold drops the repetition."""
    session = h.session()
    h.declare(session, "dead")
    h.declare(session, "q", (*to("dead"), *args(x_max_length=0)))
    h.settle()
    h.publish(session, "", "q", b"once")
    left = tmp_path / "left"

    def end_and_then(durable: Callable[[], object]) -> None:
        h.broker.turns.end()
        h.broker.turns.when_durable(durable)

    def copy_when_forwarded() -> None:  # the death is durable, so this turn forwards the letter
        end_and_then(lambda: shutil.copytree(h.config.data, left))

    h.in_loop(lambda: end_and_then(copy_when_forwarded))
    h.settle()
    with Harness(left, partitions=h.config.partitions) as copy:
        copy.settle()
        assert copy.ready("dead") == [b"once"]
        assert copy.queue("dead").counters["duplicates"] == 1
        assert outboxes(copy) == 0


def test_a_restart_forwards_what_still_waits(h: Harness) -> None:
    session = h.session()
    h.declare(session, "src", at_least_once("later", x_message_ttl=0))
    for number in range(3):
        h.publish(session, "", "src", b"%d" % number)
    h.settle()
    h.pass_time(1)
    h.broker.queues.delete(session, "src", False, False)  # its outbox lives on
    h.restart()
    session = h.session()
    h.declare(session, "later")
    h.pass_time(60_000)
    assert h.ready("later") == [b"0", b"1", b"2"]
    assert outboxes(h) == 0
