"""Consumers, basic.get, sessions, confirms, time and a full disk, through the broker without sockets."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import WriteBatch

from rewindmq.engine.broker.consumers import CREDIT_WINDOW
from rewindmq.engine.broker.turns import TICK_EVERY_MS
from rewindmq.engine.errors import AccessRefused, NotFound, NotImplementedByBroker, PreconditionFailed
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.partition.log_clock import wall_clock_ms
from rewindmq.projections.machine.data.effects import Quarantine
from rewindmq.projections.replay import Block
from rewindmq.projections.store.rocks import Database
from rewindmq.schemas.events import Acked, ConsumerAttached, Tick
from tests.support.broker_harness import Client, Harness, HistoryDouble, args, overheard, refusal

Q = "queue 'q' in vhost '/'"


def test_deliveries_start_at_the_end_of_the_turn_and_respect_prefetch(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    for number in range(5):
        h.publish(session, "", "q", b"%d" % number)
    h.settle()
    client = Client()
    consumer = h.consume(session, "q", client, prefetch=2)
    assert client.deliveries == []
    h.settle()
    assert client.bodies == [b"0", b"1"]
    h.ack(session, consumer, client.deliveries[0][1])
    h.settle()
    assert client.bodies == [b"0", b"1", b"2"]
    assert h.broker.counters["global_messages_acknowledged_total"] == 1
    assert h.broker.counters["global_messages_delivered_consume_manual_ack_total"] == 3


def test_a_message_that_comes_and_goes_in_a_turn_is_never_stored(h: Harness) -> None:
    session = h.session()
    queue = h.declare(session, "q")
    client = Client()
    h.consume(session, "q", client, no_ack=True)
    h.publish(session, "", "q", b"quick")
    h.settle()
    assert client.bodies == [b"quick"]
    with pytest.raises(KeyError):
        h.broker.queues.partition_for("/", "q").projector.message(queue.queue_id, client.deliveries[0][1])


def test_unlimited_consumers_get_a_window_of_credit(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    attached = overheard(ConsumerAttached, h.broker.queues.partition_for("/", "q"))
    for prefetch, no_ack in ((0, False), (0, True), (10, True), (10, False)):
        h.consume(session, "q", Client(), prefetch=prefetch, no_ack=no_ack)
    h.settle()
    assert [event.credit for event in attached()] == [CREDIT_WINDOW, CREDIT_WINDOW, CREDIT_WINDOW, 0]


def test_after_cancel_nothing_more_comes_but_what_was_on_its_way(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    client = Client()
    consumer = h.consume(session, "q", client, prefetch=5)
    h.publish(session, "", "q", b"before")
    h.broker.consumers.cancel(session, *consumer)
    h.publish(session, "", "q", b"after")
    h.settle()
    assert client.bodies == [b"before"]
    assert h.queue("q").messages_unacked == 1
    h.ack(session, consumer, client.deliveries[0][1])
    assert h.queue("q").messages_unacked == 0


def test_a_global_prefetch_reaches_the_consumers_that_are_there(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    client, other = Client(), Client()
    consumer = h.consume(session, "q", client)
    h.consume(session, "q", other, channel=2)
    h.broker.consumers.set_global_prefetch(session, 3, 1)  # a channel without consumers
    h.broker.consumers.set_global_prefetch(session, 2, 1)
    h.broker.consumers.set_global_prefetch(session, 1, 2)
    for number in range(7):
        h.publish(session, "", "q", b"%d" % number)
    h.settle()
    assert (len(client.bodies), len(other.bodies)) == (2, 1)
    h.broker.consumers.set_global_prefetch(session, 1, 1)
    h.ack(session, consumer, client.deliveries[0][1])
    h.settle()
    assert len(client.bodies) == 2
    h.broker.consumers.set_global_prefetch(session, 1, 3)
    h.settle()
    assert len(client.bodies) == 4
    h.broker.consumers.set_global_prefetch(session, 1, 0)
    h.settle()
    assert (len(client.bodies), len(other.bodies)) == (6, 1)


def test_refused_consumers(h: Harness) -> None:
    session = h.session()
    client = Client()
    h.declare(session, "q")
    h.declare(session, "quorum", args(x_queue_type="quorum"))
    with refusal(NotFound, "no queue 'nope' in vhost '/'"):
        h.consume(session, "nope", client)
    with refusal(NotFound, "no queue 'nope' in vhost '/'"):
        h.broker.consumers.fetch(session, 1, client, "nope", True)
    with refusal(NotImplementedByBroker, "queue 'quorum' in vhost '/' does not support global qos"):  # S-097
        h.consume(session, "quorum", client, prefetch=5, shared=1)
    with refusal(PreconditionFailed, f"invalid arg 'x-priority' for {Q}: \"expected integer, got longstr\""):  # S-096
        h.consume(session, "q", client, arguments=args(x_priority="high"))
    with refusal(PreconditionFailed, f"consumer prefetch count is not set for '{Q}'"):
        h.consume(session, "q", client, arguments=args(x_stream_offset="first"))
    h.consume(session, "q", client, exclusive=True)
    for exclusive in (True, False):
        with refusal(AccessRefused, f"{Q} in exclusive use"):
            h.consume(session, "q", client, exclusive=exclusive)


def test_s096_priority_is_taken_from_the_arguments(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    low, high = Client(), Client()
    h.consume(session, "q", low, prefetch=5)
    h.consume(session, "q", high, prefetch=1, arguments=args(x_priority=5))
    for number in range(3):
        h.publish(session, "", "q", b"%d" % number)
    h.settle()
    assert (high.bodies, low.bodies) == ([b"0"], [b"1", b"2"])


def test_basic_get(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    client = Client()
    h.broker.consumers.fetch(session, 1, client, "q", False)
    h.publish(session, "", "q", b"1")
    h.publish(session, "", "q", b"2")
    first = h.broker.consumers.fetch(session, 1, client, "q", False)
    second = h.broker.consumers.fetch(session, 1, client, "q", True)
    other = h.broker.consumers.fetch(session, 2, client, "q", True)
    assert client.fetches == []
    h.settle()
    assert [(body, behind) for _, body, behind in client.fetches] == [(None, 0), (b"1", 1), (b"2", 0), (None, 0)]
    assert first[2] == second[2] != other[2]
    h.ack(session, first, client.fetches[1][0])
    assert h.queue("q").messages_unacked == 0
    counters = h.broker.counters
    assert counters["global_messages_get_empty_total"] == 2
    assert counters["global_messages_delivered_get_manual_ack_total"] == 1
    assert counters["global_messages_delivered_get_auto_ack_total"] == 1


@pytest.mark.parametrize("end", ["channel", "session"])
def test_the_end_of_a_channel_or_session_gives_everything_back(h: Harness, end: str) -> None:
    session, other = h.session(), h.session()
    h.declare(session, "q")
    for number in range(3):
        h.publish(session, "", "q", b"%d" % number)
    client = Client()
    h.consume(session, "q", client, prefetch=1, channel=7)
    h.broker.consumers.fetch(session, 7, client, "q", False)
    h.settle()
    assert h.queue("q").messages_unacked == 2
    if end == "channel":
        h.broker.sessions.close_channel(session, 7)
    else:
        h.broker.sessions.close(session)
        h.broker.sessions.close(session)  # once is enough
        assert session.session_id not in h.broker.sessions.by_id
    h.settle()
    assert h.ready("q") == [b"0", b"1", b"2"]
    assert h.queue("q").consumer_count() == 0
    again = Client()
    h.consume(other, "q", again, prefetch=9)
    h.settle()
    assert [(body, redelivered) for _, _, body, redelivered, _ in again.deliveries] == [
        (b"0", True),
        (b"1", True),
        (b"2", False),
    ]


def test_a_session_that_touched_nothing_leaves_no_event(h: Harness) -> None:
    before = [partition.log.next_offset for partition in h.broker.partitions]
    session = h.session()
    h.broker.sessions.close_channel(session, 1)
    h.broker.sessions.close(session)
    assert [partition.log.next_offset for partition in h.broker.partitions] == before


def test_a_delivery_to_a_connection_that_went_in_the_same_turn_is_dropped(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    client = Client()
    h.consume(session, "q", client, prefetch=5)
    h.publish(session, "", "q", b"m")
    h.broker.sessions.close(session)
    h.settle()
    assert client.deliveries == []
    assert h.ready("q") == [b"m"]


def test_the_end_of_a_queue_cancels_its_consumers(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    client = Client()
    h.consume(session, "q", client)
    h.broker.queues.delete(session, "q", False, False)
    h.settle()
    assert client.cancellations == 1


def test_s070_auto_delete_goes_with_its_last_consumer(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q", auto_delete=True)
    h.bind(session, "amq.fanout", "q")
    h.settle()
    assert h.broker.queues.get("/", "q") is not None  # S-088: it never had a consumer
    h.broker.consumers.cancel(session, *h.consume(session, "q", Client()))
    h.settle()
    assert h.broker.queues.get("/", "q") is None
    assert list(h.broker.topology.queue_bindings()) == []


def test_a_wrong_ack_is_quarantined_counted_and_harmless(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    session = h.session()
    h.declare(session, "q")
    partition = h.broker.queues.partition_for("/", "q")
    for _ in range(3):
        partition.append(session.actor, Acked("/", "q", 12345, ((7, 7),)))
    assert all(isinstance(effect, Quarantine) for effect in partition.effects[-3:])
    h.settle()
    assert partition.deliveries.quarantined == {"Acked": 3}
    assert len([record for record in caplog.records if "quarantined" in record.message]) == 1
    listed = partition.projector.quarantine.newest()
    last = partition.machine.next_offset - 1
    assert [(each.offset, each.event_type) for each in listed] == [(last - n, "Acked") for n in (2, 1, 0)]
    assert listed[0].reason == "consumer 12345 holds nothing of queue 'q'"
    h.restart()
    again = h.broker.queues.partition_for("/", "q").projector
    assert (again.quarantine_count, again.quarantine.newest()) == (3, listed)


def test_a_body_missing_in_the_store_is_read_from_the_log(h: Harness, caplog: pytest.LogCaptureFixture) -> None:
    session = h.session()
    queue = h.declare(session, "q")
    for number in range(3):
        h.publish(session, "", "q", b"%d" % number)
    h.settle()
    partition = h.broker.queues.partition_for("/", "q")
    partition.projector.forget(queue.queue_id, [list(queue.ready_ids())[1]])
    client = Client()
    h.consume(session, "q", client, no_ack=True)
    h.settle()
    assert client.bodies == [b"0", b"1", b"2"]
    assert "missing in the state store" in caplog.text


@pytest.mark.parametrize("damage", [None, RuntimeError("Corruption: block checksum mismatch")])
def test_who_cannot_be_given_a_message_is_told_and_gives_it_back(
    h: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: Exception | None
) -> None:
    """The store has lost it, and the log does not answer. When it does, the next consumer gets the message."""
    session, other = h.session(), h.session()
    queue = h.declare(session, "q")
    for body in (b"0", b"1", b"2"):
        h.publish(session, "", "q", body)
    h.settle()
    partition = h.broker.queues.partition_for("/", "q")
    partition.projector.forget(queue.queue_id, list(queue.ready_ids()))
    asked: list[int] = []

    def damaged(database: Database, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        if damage is not None:
            raise damage
        return iter(())

    def silent(offset: int, end: int) -> Iterator[Block]:
        asked.append(offset)
        raise LogError("no answer")

    closed: list[str] = []

    def close(reason: str) -> None:
        closed.append(reason)
        h.broker.sessions.close(session)

    session.close = close
    monkeypatch.setattr(Database, "scan", damaged)
    client = Client()
    with monkeypatch.context() as away:
        away.setattr(partition, "history", HistoryDouble(partition.history, silent))
        h.consume(session, "q", client)
        h.settle()
        h.settle()
    assert (client.bodies, closed) == ([], ["a message could not be delivered, see the broker's log"])
    assert len(asked) == 1, "it was given more, while nobody else had a turn"
    assert h.queue("q").messages_ready == 3
    assert "no answer" in caplog.text
    caplog.clear()
    h.consume(other, "q", client)
    h.settle()
    assert client.bodies == [b"0", b"1", b"2"]


def test_who_cannot_be_given_what_he_fetches_is_told_and_gives_it_back(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, other = h.session(), h.session()
    queue = h.declare(session, "q")
    h.publish(session, "", "q", b"m")
    h.settle()
    partition = h.broker.queues.partition_for("/", "q")
    partition.projector.forget(queue.queue_id, list(queue.ready_ids()))
    session.close = lambda reason: h.broker.sessions.close(session)
    with monkeypatch.context() as empty:
        empty.setattr(partition, "history", HistoryDouble(partition.history, lambda offset, end: iter(())))
        h.broker.consumers.fetch(session, 1, Client(), "q", False)
        h.settle()
        h.settle()
    assert session.session_id not in h.broker.sessions.by_id
    message = h.fetch(other, "q")
    assert message is not None
    assert message.body == b"m"


# -- confirms and durability ------------------------------------------------------------------------------------------


def test_a_confirm_waits_for_the_disk_and_a_delivery_does_not(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    client = Client()
    h.consume(session, "q", client, no_ack=True)
    h.settle()
    h.publish(session, "", "q", b"m", client)
    h.broker.queues.partition_for("/", "q").carry_out()
    assert client.bodies == [b"m"]
    assert client.confirms == []
    h.settle()
    assert client.confirms == [(1, False)]


def test_confirms_come_in_order(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q", args(x_max_length=3, x_overflow="reject-publish"))
    client = Client()
    for _ in range(5):
        h.publish(session, "", "q", b"m", client)
    h.settle()
    assert client.confirms == [(1, False), (2, False), (3, False), (4, True), (5, True)]
    assert not h.broker.queues.partition_for("/", "q").refused


def test_when_durable_calls_back_in_the_loop_and_in_order(h: Harness) -> None:
    session = h.session()
    called: list[int] = []
    h.in_loop(lambda: h.broker.turns.when_durable(lambda: called.append(0)))
    h.declare(session, "q")
    h.broker.turns.when_durable(lambda: called.append(1))
    h.declare(session, "r")
    h.broker.turns.when_durable(lambda: called.append(2))
    assert 1 not in called
    h.settle()
    assert called == [0, 1, 2]


def test_a_full_disk_holds_publishing_back_until_it_is_not_full(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    session = h.session()
    h.declare(session, "q")
    h.settle()
    told: list[str | None] = []
    h.broker.turns.on_blocked.append(lambda: told.append(h.broker.turns.blocked))
    h.in_loop(lambda: h.broker.keeper.commit_failed(OSError(28, "No space left on device")))
    h.in_loop(lambda: h.broker.keeper.commit_failed(OSError(28, "No space left on device")))
    assert told == ["the log can't be written: [Errno 28] No space left on device"]
    client = Client()
    h.publish(session, "", "q", b"m", client)
    h.settle()
    assert told[-1] is None
    assert len(told) == 2
    assert client.confirms == [(1, False)]


def test_a_store_that_cannot_be_written_blocks_publishing_without_loss(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rewindmq.engine.partition.partition.PREPARE_EVENTS", 1)
    session = h.session()
    h.declare(session, "q")
    h.settle()
    write = Database.write
    broken = True

    def flaky(database: Database, batch: WriteBatch) -> None:
        if broken:
            raise RuntimeError("IO error: No space left on device")
        write(database, batch)

    monkeypatch.setattr(Database, "write", flaky)
    client = Client()
    h.publish(session, "", "q", b"1", client)
    h.settle()
    assert h.broker.turns.blocked == "the state can't be written: IO error: No space left on device"
    assert client.confirms == [(1, False)]
    broken = False
    h.publish(session, "", "q", b"2", client)
    h.settle()
    assert h.broker.turns.blocked is None
    assert h.ready("q") == [b"1", b"2"]


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_tick_is_appended_only_when_something_is_due(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q", args(x_message_ttl=1_000))
    h.publish(session, "", "q", b"m")
    h.settle()
    ticks = overheard(object, h.broker.queues.partition_for("/", "q"))
    h.pass_time(500)
    assert ticks() == []
    h.pass_time(501)
    assert ticks() == [Tick()]
    assert h.queue("q").messages_ready == 0
    h.pass_time(5_000)
    assert ticks() == [Tick()]


class RealTimeHarness(Harness):
    @property
    def now_ms(self) -> int:
        return wall_clock_ms()

    @now_ms.setter
    def now_ms(self, _: int) -> None:
        """Nobody sets the machine's clock."""


def test_the_timer_rings_by_itself_and_not_for_every_message(tmp_path: Path) -> None:
    """A real clock: the loop's timer is armed by the end of the turn."""
    with RealTimeHarness(tmp_path) as h:
        session = h.session()
        h.declare(session, "q")
        begun = wall_clock_ms()
        for number in range(200):
            h.publish(session, "", "q", b"m", expiration_ms=30 + number)
        h.settle()
        before = h.broker.queues.partition_for("/", "q").log.next_offset

        async def wait() -> None:
            for _ in range(500):
                if h.queue("q").messages_ready == 0:
                    return
                await asyncio.sleep(0.01)

        h.loop.run_until_complete(wait())
        assert h.queue("q").messages_ready == 0
        ticks = h.broker.queues.partition_for("/", "q").log.next_offset - before
        assert 1 <= ticks <= (wall_clock_ms() - begun) / TICK_EVERY_MS + 2


def test_time_never_runs_backwards_in_a_partition(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    partition = h.broker.queues.partition_for("/", "q")
    h.publish(session, "", "q", b"1")
    before = partition.machine.clock_ms
    h.now_ms -= 3_600_000
    h.publish(session, "", "q", b"2")
    assert partition.machine.clock_ms == before
    h.settle()
    h.restart()
    assert h.broker.queues.partition_for("/", "q").now_ms() == before


def test_a_message_can_be_read_in_the_turn_that_publishes_it(h: Harness) -> None:
    """Its effects wait for the end of the turn; a request of the management API may be served before."""
    session = h.session()
    queue = h.declare(session, "q")
    partition = h.broker.queues.partition_for("/", "q")

    def at_once() -> bytes:
        h.publish(session, "", "q", b"now")
        assert partition.effects, "the turn has not ended"
        return bytes(partition.message(queue.queue_id, next(iter(queue.ready_ids()))).body)

    assert h.in_loop(at_once) == b"now"
