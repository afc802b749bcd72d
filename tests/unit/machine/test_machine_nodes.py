"""Nodes that share a partition: what a loss leaves, what comes late or twice, and that older states are as before."""

import json
from collections.abc import Callable

import pytest

from rewindmq.projections.machine import state
from rewindmq.projections.machine.data.effects import Effect, Quarantine
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.serialization.pack import pack_meta
from rewindmq.schemas.events import (
    Acked,
    BrokerStarted,
    CheckpointAsked,
    Checkpointed,
    ConsumerCancelled,
    DeadLettersForwarded,
    Event,
    MachineUpgraded,
    NodeLost,
    PolicyApplied,
    Published,
    Purged,
    QueueDeclared,
    QueueDeleted,
    Tick,
)
from rewindmq.schemas.values import BROKER, Actor, Origin
from tests.support.events_for_tests import VHOST, Bench, attached, declared, explain, policy, route


def lost(epoch: int) -> NodeLost:
    return NodeLost("n", epoch, "lapsed")


def of(epoch: int, number: int = 1) -> int:
    return epoch << 24 | number


def reloaded(bench: Bench) -> Machine:
    machine = bench.machine
    loaded = Machine.load("queues-0", machine.head(), [(meta, chunks) for _, meta, chunks in machine.pieces()])
    loaded.validate()
    assert loaded.digest() == machine.digest()
    return loaded


def declare_transient(bench: Bench, name: str, session: int) -> None:
    bench.do(declared(VHOST, name), session)


# -- what a loss leaves ------------------------------------------------------------------------------------------------


def test_the_epoch_is_over_for_good_also_after_loading() -> None:
    bench = Bench()
    bench.declare("q")
    bench.do(lost(7), 0)
    for machine in (bench.machine, reloaded(bench)):
        effects: list[Effect] = []
        machine.apply(bench.offset, bench.now_ms, Actor("guest", of(7)), Purged(VHOST, "q"), effects)
        assert effects == [Quarantine(bench.offset, "Purged", "node lost: epoch 7 is over")]
        message = Published(route("q"), b"", persistent=True, body=b"", body_size=1)
        machine.apply(bench.offset + 1, bench.now_ms, Actor("guest", of(8)), message, [])
        assert machine.by_name[(VHOST, "q")].messages_ready == 1


def test_the_broker_itself_is_of_no_epoch_even_if_the_first_is_lost() -> None:
    """Session 0 is the broker's, and it is not session 0 of epoch 0."""
    bench = Bench()
    bench.declare("q")
    declare_transient(bench, "brokers", 0)
    declare_transient(bench, "first", 1)
    bench.do(lost(0), 0)
    assert bench.do(Tick(), 0) == []
    assert bench.do(Tick(), 1) == [("quarantine",)]
    assert [queue.name for queue in bench.machine.queues()] == ["brokers", "q"]


def test_one_actor_after_the_other_is_judged_anew() -> None:
    """The last actor that was let in is remembered; a loss must end that."""
    bench = Bench()
    bench.do(lost(1), 0)
    actor = Actor("guest", of(7))
    for event, expected in ((Tick(), 0), (lost(7), 0), (Tick(), 1)):
        effects: list[Effect] = []
        bench.machine.apply(bench.offset, bench.now_ms, actor, event, effects)
        bench.offset += 1
        bench.machine.validate()
        assert len(effects) == expected


def test_a_loss_passes_time_first_and_quarantine_does_too() -> None:
    bench = Bench()
    bench.declare("q", message_ttl=10)
    bench.publish("q")
    bench.do(lost(7), 0)
    bench.now_ms += 10
    told = bench.do(Tick(), of(7))
    assert told == [("forget", "q", 1, "expired", 0), ("quarantine",)]


def test_only_so_many_epochs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "EPOCHS_REMEMBERED", 3)
    bench = Bench()
    for epoch in (4, 9, 5, 4, 2):  # the last one is of a node that lived long: its loss counts all the same
        bench.machine.apply(bench.offset, bench.now_ms, BROKER, lost(epoch), [])
    assert list(bench.machine.lost_epochs) == [9, 5, 2]
    loaded = Machine.load("queues-0", bench.machine.head(), [])
    assert list(loaded.lost_epochs) == [9, 5, 2]


def test_the_digest_knows_with_which_epoch_a_queue_goes() -> None:
    digests = set()
    for epoch in (1, 2):
        bench = Bench()
        bench.do(lost(9), 0)
        bench.do(declared(VHOST, "q", durable=False), of(epoch))
        digests.add(bench.machine.digest())
    assert len(digests) == 2


def test_there_is_no_epoch_below_zero() -> None:
    bench = Bench()
    assert bench.do(lost(-1), 0) == [("quarantine",)]
    assert not bench.machine.lost_epochs


def test_an_auto_delete_queue_goes_with_its_last_consumer_and_only_once() -> None:
    bench = Bench()
    bench.do(declared(VHOST, "q", auto_delete=True), of(7))
    bench.attach("q", prefetch=1, session=of(7))
    assert bench.do(lost(7), 0) == [("gone", "q", "auto_delete", 0)]


# -- twice or late: what brokers append, perhaps two at once -----------------------------------------------------------


def busy() -> Bench:
    bench = Bench()
    bench.declare("dead")
    bench.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead", max_length=1)
    bench.declare("k", type="quorum", delivery_limit=1)
    bench.attach("k", prefetch=1, session=of(8))
    for _ in range(3):
        bench.publish("q", "k")
    return bench


def source_id(bench: Bench) -> int:
    return bench.queue("q").queue_id


TWICE: dict[str, Callable[[Bench], Event]] = {
    "Tick": lambda bench: Tick(),
    "CheckpointAsked": lambda bench: CheckpointAsked(),
    "Checkpointed": lambda bench: Checkpointed(3, "", "n", True),
    "NodeLost": lambda bench: lost(8),
    "MachineUpgraded": lambda bench: MachineUpgraded(1),
    "PolicyApplied": lambda bench: PolicyApplied(VHOST, "q", policy("p", max_length=2), None),
    "DeadLettersForwarded": lambda bench: DeadLettersForwarded(VHOST, "q", source_id(bench), 1),
    "Published": lambda bench: Published(
        route("dead"),
        b"",
        persistent=True,
        origin=Origin(VHOST, "q", source_id(bench), 4, "maxlen", 1),
        body=b"",
        body_size=1,
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_what_a_broker_appends_may_come_twice(name: str) -> None:
    bench = busy()
    event = TWICE[name](bench)
    bench.do(event, 0)
    digest = bench.machine.digest()
    duplicates = bench.queue("dead").duplicates if name == "Published" else 0
    told = bench.do(event, 0)
    if name == "Published":
        assert told == [("duplicate", "dead", bench.offset - 1)]
        assert bench.queue("dead").duplicates == duplicates + 1
        bench.queue("dead").duplicates = duplicates  # all that may differ
    else:
        assert told == []
    assert bench.machine.digest() == digest


@pytest.mark.parametrize("name", TWICE)
def test_what_a_broker_appends_may_come_late(name: str) -> None:
    """When all that it was about has been done by another in the meantime."""
    bench = busy()
    event = TWICE[name](bench)
    bench.do(event, 0)
    bench.publish("q")
    bench.do(DeadLettersForwarded(VHOST, "q", source_id(bench), 9), 0)
    ready = bench.ready("dead"), bench.ready("q"), bench.ready("k")
    told = bench.do(event, 0)
    assert told in ([], [("duplicate", "dead", bench.offset - 1)])
    assert (bench.ready("dead"), bench.ready("q"), bench.ready("k")) == ready


def test_forwards_of_a_queue_that_is_forgotten_change_nothing() -> None:
    bench = busy()
    source = bench.queue("q")
    last = source.next_sequence - 1
    bench.do(QueueDeleted(VHOST, "q", False, False))
    event = DeadLettersForwarded(VHOST, "q", source.queue_id, last)
    assert bench.do(event, 0)[0][0] == "release"
    digest = bench.machine.digest()
    assert bench.do(event, 0) == [("quarantine",)]
    assert bench.machine.digest() == digest


def test_applying_a_policy_again_only_renews_the_lease() -> None:
    bench = Bench()
    bench.declare("q", expires=100)
    event = PolicyApplied(VHOST, "q", policy("p", max_length=1), None)
    bench.do(event, 0)
    bench.now_ms += 60
    bench.do(event, 0)
    bench.now_ms += 60
    bench.do(Tick(), 0)
    assert bench.queue("q").settings.max_length == 1
    bench.now_ms += 40
    assert bench.do(Tick(), 0) == [("gone", "q", "expired", 0)]


# -- races ------------------------------------------------------------------------------------------------------------


def test_a_queue_that_exists_is_only_renewed_whatever_it_is_declared_as() -> None:
    bench = Bench()
    queue = bench.declare("q", max_length=3, expires=100)
    before = json.loads(pack_meta(queue)[4:])
    bench.now_ms += 5
    assert (
        bench.do(
            QueueDeclared(
                VHOST,
                "q",
                type="quorum",
                durable=False,
                exclusive=True,
                auto_delete=True,
                owner=of(9),
                arguments=(),
                semantics="other",
            ),
            of(9),
        )
        == []
    )
    after = json.loads(pack_meta(queue)[4:])
    assert after.pop("last_used_ms") == before.pop("last_used_ms") + 5
    assert after == before


def test_anothers_exclusive_queue_is_not_renewed() -> None:
    bench = Bench()
    bench.do(declared(VHOST, "q", exclusive=True, owner=of(8)), of(8))
    digest = bench.machine.digest()
    bench.now_ms += 5
    again = declared(VHOST, "q", exclusive=True, owner=of(9))
    assert bench.do(again, of(9)) == [("quarantine",)]
    assert bench.machine.digest() == digest
    assert bench.do(again, of(8)) == []
    assert bench.machine.digest() != digest


def test_an_exclusive_consumer_that_was_cancelled_is_in_nobodys_way() -> None:
    """It may still hold messages; only who is attached counts."""
    bench = Bench()
    bench.declare("q")
    bench.publish("q")
    first = attached(VHOST, "q", 1, channel=1, tag="t", exclusive=True, prefetch=5)
    bench.do(first)
    bench.attach("q")
    assert explain(bench.effects) == [("quarantine",)]
    bench.do(ConsumerCancelled(VHOST, "q", 1))
    assert bench.do(attached(VHOST, "q", 2, channel=1, tag="t", exclusive=True, prefetch=5)) == []
    assert bench.do(Acked(VHOST, "q", 1, ((1, 1),))) == [("forget", "q", 1, "acked", 1)]


# -- after a crash ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type", ["classic", "quorum"])
def test_after_a_crash_what_was_there_counts_as_redelivered(type: str) -> None:
    bench = Bench()
    bench.declare("q", type=type)
    bench.declare("empty", type=type)
    old = bench.publish("q")
    bench.do(BrokerStarted("n", "1", 1, True), 0)
    new = bench.publish("q")
    assert [(view.message_id, view.redelivered) for view in bench.queue().messages()] == [(old, True), (new, False)]
    machine = reloaded(bench)
    assert machine.by_name[(VHOST, "q")].crash_offset == bench.queue().crash_offset == old + 1
    consumer = bench.attach("q", prefetch=5)
    assert explain(bench.effects) == [
        ("deliver", "q", old, consumer, True, 0, False),
        ("deliver", "q", new, consumer, False, 0, False),
    ]
    assert [(view.message_id, view.redelivered) for view in bench.queue().messages()] == [(old, True), (new, False)]
    reloaded(bench)


def test_after_a_clean_stop_nothing_is_suspected() -> None:
    bench = Bench()
    bench.declare("q")
    old = bench.publish("q")
    bench.do(BrokerStarted("n", "1", 1), 0)
    bench.get("q", consumer=9)
    assert explain(bench.effects) == [("get", "q", old, 9, False, 0, 0)]
