"""Start, clean stop and kill: what is there afterwards, and that live state equals the history."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.cli.main import run
from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.writer import PartitionWriter
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import fold
from rewindmq.projections.store.snapshots import Snapshots, load
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import BrokerStarted, Checkpointed, Purged
from rewindmq.schemas.metadata_events import Unbound
from rewindmq.schemas.values import BROKER, Actor
from tests.support.broker_harness import Client, Harness, args
from tests.support.records import START_MS
from tests.support.refolds import refolded


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path / "data") as harness:
        yield harness


def events_of(data: Path, partition: int) -> list[object]:
    decoder = Decoder()
    return [
        decoder.decode(record)[2]
        for block in EmbeddedLogReader(data).queues[partition].read()
        for record in block.records
    ]


def populate(h: Harness) -> None:
    """A bit of everything, left in the middle of its life."""
    session = h.session()
    h.exchange(session, "events", "topic")
    h.exchange(session, "passing", "topic", durable=False)
    for number in range(6):
        name = f"q{number}"
        kind = "quorum" if number % 2 else "classic"
        h.declare(session, name, args(x_queue_type=kind, x_max_length=20))
        h.bind(session, "events", name, f"*.{number}.#")
        h.bind(session, "passing", name, "#")
    h.declare(session, "transient", durable=False)
    h.bind(session, "events", "transient", "#")
    h.declare(session, "mine", exclusive=True)
    client = Client()
    consumers = {name: h.consume(session, name, client, prefetch=3) for name in ("q0", "q1")}
    for number in range(60):
        h.publish(session, "events", f"a.{number % 6}.b", b"m%d" % number)
    h.settle()
    for name, consumer in consumers.items():
        ids = [message_id for queue, message_id, *_ in client.deliveries if queue == name]
        h.ack(session, consumer, ids[0])
        h.nack(session, consumer, ids[1], requeue=True)
    h.settle()


def test_a_clean_restart_keeps_what_is_durable(h: Harness) -> None:
    populate(h)
    ready = {f"q{number}": h.ready(f"q{number}") for number in range(2, 6)}
    h.restart()
    assert {name: h.ready(name) for name in ready} == ready
    assert h.ready("q0")[:2] == [b"m6", b"m12"]  # given back, in their place
    assert h.broker.queues.get("/", "transient") is None
    assert h.broker.queues.get("/", "mine") is None
    assert ("/", "passing") not in h.broker.topology.exchanges
    assert {bound.source for bound in h.broker.topology.bindings("/")} == {"events"}
    assert "transient" not in [bound.destination for bound in h.broker.topology.queue_bindings()]


def test_live_state_is_the_fold_of_the_log_after_every_restart(h: Harness) -> None:
    for _ in range(3):
        populate(h)
        assert h.digests() == refolded(h.config.data)
        h.restart()
        h.settle()
        assert h.digests() == refolded(h.config.data)


def test_a_clean_stop_leaves_nothing_to_fold_and_a_snapshot(h: Harness) -> None:
    populate(h)
    h.restart()
    events = events_of(h.config.data, 0)
    claims = [event for event in events if isinstance(event, Checkpointed)]
    assert len(claims) == 1
    assert claims[0].final
    machine = Machine("queues-0")
    log = EmbeddedLogReader(h.config.data).queues[0]
    fold(machine, log, claims[0].offset + 1)
    assert machine.digest() == claims[0].digest
    snapshots = Snapshots(h.config.data / "snapshots")
    offset = snapshots.offsets("queues-0")[-1]
    assert offset == claims[0].offset + 2  # behind the claim itself
    path = snapshots.nearest("queues-0", offset)
    assert path is not None
    assert load(path).digest() == claims[0].digest
    started = events[offset]
    assert isinstance(started, BrokerStarted)
    assert not started.after_crash


def test_the_last_word_is_the_very_last_event(tmp_path: Path) -> None:
    """Even if it brings the time at which dead letters go behind it, to the other partition too."""
    with Harness(tmp_path, partitions=2) as h:
        session = h.session()
        names = [f"q{number}" for number in range(8)]
        for number, name in enumerate(names):
            target = names[(number + 1) % len(names)]
            given = args(x_message_ttl=5, x_dead_letter_exchange="", x_dead_letter_routing_key=target)
            h.declare(session, name, given)
            h.publish(session, "", name, b"m")
        assert len({h.broker.queues.partition_for("/", name).name for name in names}) == 2
        h.settle()
        h.now_ms += 5
    for partition in (0, 1):
        events = events_of(tmp_path, partition)
        last = events[-1]
        assert isinstance(last, Checkpointed)
        assert last.final
        machine = Machine(f"queues-{partition}")
        fold(machine, EmbeddedLogReader(tmp_path).queues[partition], last.offset + 1)
        assert machine.digest() == last.digest
    with Harness(tmp_path, partitions=2):
        pass
    for partition in (0, 1):
        started = [event for event in events_of(tmp_path, partition) if isinstance(event, BrokerStarted)]
        assert [event.after_crash for event in started] == [False, False]


def deliveries(h: Harness) -> list[tuple[bytes, bool]]:
    """Body and redelivered flag of all that a new consumer of `q` is given."""
    client = Client()
    h.consume(h.session(), "q", client, prefetch=10)
    h.settle()
    return [(body, redelivered) for _, _, body, redelivered, _ in client.deliveries]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_after_a_crash_what_may_have_been_delivered_is_marked(h: Harness, tmp_path: Path, kind: str) -> None:
    """The consumer's ConsumerAttached is not durable when the broker is killed, so history knows of no delivery."""
    session = h.session()
    h.declare(session, "q", args(x_queue_type=kind))
    h.publish(session, "", "q", b"old")
    h.settle()
    with h.killed_copy(tmp_path / "copy") as copy:
        session = copy.session()
        copy.publish(session, "", "q", b"new")
        assert deliveries(copy) == [(b"old", True), (b"new", False)]
        copy.restart()
        assert deliveries(copy) == [(b"old", True), (b"new", True)], "held when the broker stopped"
        copy.restart()
        copy.publish(copy.session(), "", "q", b"newer")
        copy.restart()
        assert deliveries(copy) == [(b"old", True), (b"new", True), (b"newer", False)]
        partition = copy.broker.queues.partition_for("/", "q").index
    events = events_of(tmp_path / "copy", partition)
    started = [event for event in events if isinstance(event, BrokerStarted)]
    assert [event.after_crash for event in started] == [False, True, False, False, False]


def test_snapshots_and_claims_come_at_intervals(tmp_path: Path) -> None:
    with Harness(tmp_path, snapshot_events=50, partitions=1) as h:
        session = h.session()
        h.declare(session, "q")
        for number in range(200):
            h.publish(session, "", "q", b"%d" % number)
            if number % 10 == 0:
                h.settle()
        snapshots = Snapshots(h.config.data / "snapshots").offsets("queues-0")
        assert len(snapshots) >= 3
        claims = [event for event in events_of(tmp_path, 0) if isinstance(event, Checkpointed)]
        assert len(claims) == len(snapshots)


def test_without_its_state_the_broker_folds_the_log(h: Harness, tmp_path: Path) -> None:
    populate(h)
    before = h.digests()
    with h.killed_copy(tmp_path / "copy") as copy:
        bodies = copy.ready("q5")
        copied = copy.digests()
    shutil.rmtree(tmp_path / "copy" / "state")
    shutil.rmtree(tmp_path / "copy" / "snapshots")
    with Harness(tmp_path / "copy") as rebuilt:
        assert rebuilt.ready("q5") == bodies
        assert rebuilt.digests() == copied
    assert h.digests() == before


def test_sessions_and_consumers_get_ids_never_used_before(h: Harness) -> None:
    seen = set()
    for _ in range(3):
        session = h.session()
        h.declare(session, "q")
        consumer = h.consume(session, "q", Client())
        other = h.session()
        h.broker.consumers.fetch(other, 1, Client(), "q", False)
        seen |= {
            session.session_id,
            consumer[2],
            other.session_id,
            *(each for of in other.holders.values() for each in of.values()),
        }
        h.restart()
    assert len(seen) == 3 * 4
    assert 0 not in seen


def test_ids_go_on_in_another_epoch_when_one_is_used_up(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.broker.open_sessions.EPOCH_IDS", 8)
    ids = h.in_loop(lambda: [h.session().session_id for _ in range(30)])
    assert len(set(ids)) == 30
    h.restart()
    assert h.session().session_id not in ids


def test_bindings_of_a_queue_that_is_gone_are_reconciled(h: Harness, tmp_path: Path) -> None:
    """Killed between the queue's end in its partition and the `Unbound` in the metadata log."""
    session = h.session()
    h.declare(session, "q")
    h.bind(session, "amq.fanout", "q")
    h.settle()
    appended = h.broker.metadata.append
    h.broker.metadata.append = lambda actor, event: 0 if isinstance(event, Unbound) else appended(actor, event)
    h.broker.queues.delete(session, "q", False, False)
    h.settle()
    assert [bound.destination for bound in h.broker.topology.queue_bindings()] == ["q"]
    with h.killed_copy(tmp_path / "copy") as copy:
        assert list(copy.broker.topology.queue_bindings()) == []


def test_a_policy_that_reached_the_metadata_log_only_is_applied_at_start(h: Harness, tmp_path: Path) -> None:
    session = h.session()
    h.declare(session, "q")
    for number in range(5):
        h.publish(session, "", "q", b"%d" % number)
    h.settle()

    async def crash_before_it_is_applied(*_: object) -> None:
        """Nothing comes to the queues."""

    h.broker._broker.effective_policies.apply = crash_before_it_is_applied
    h.broker.policies.set(Actor("guest", 0), "/", "lim", ".*", {"max-length": 2}, 0, "queues")
    h.settle()
    with h.killed_copy(tmp_path / "copy") as copy:
        copy.settle()
        assert copy.ready("q") == [b"3", b"4"]


def test_guest_is_made_once(h: Harness) -> None:
    h.broker.access.users.delete(Actor("guest", 0), "guest")
    h.restart()
    assert h.broker.topology.users == {}


def test_two_brokers_do_not_share_a_directory(h: Harness) -> None:
    with pytest.raises(LogError, match="in use by another broker"):
        Harness(h.config.data)


def test_a_failed_start_lets_the_directory_go(tmp_path: Path) -> None:
    with Harness(tmp_path) as h:
        populate(h)
    segment = sorted((tmp_path / "log" / "queues-0").glob("*.avro"))[0]
    good = segment.read_bytes()
    damaged = bytearray(good)
    damaged[len(good) // 2] ^= 0xFF
    segment.write_bytes(damaged)
    for sidecar in segment.parent.iterdir():
        if sidecar != segment:
            sidecar.unlink()
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(CorruptLog, match=r"block at byte \d+ \(offset \d+\)"):
        Harness(tmp_path)
    segment.write_bytes(good)
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
    with Harness(tmp_path) as h:
        assert h.queue("q5").messages_ready == 10


# -- kill -9 ----------------------------------------------------------------------------------------------------------


def test_a_whole_block_that_nobody_wrote_behind_a_clean_stop_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is sound in every byte, and no seal is about it yet: the last word of the broker before it tells."""
    data = tmp_path / "data"
    with Harness(data) as h:
        session = h.session()
        h.declare(session, "orders")
        for _ in range(3):
            h.restart()
    assert "last word" not in caplog.text
    logs = EmbeddedLogReader(data).queues
    directory = next(each for each in logs if b"orders" in segment_files(each.directory)[0].read_bytes())
    end = directory.next_offset
    writer = PartitionWriter(directory.directory, 1 << 30, begin=False)
    encoder = Encoder()
    forged = [encoder.encode(encoder.prefix(START_MS + 1, BROKER), Purged("/", "orders")) for _ in range(2)]
    writer.write(forged, START_MS + 1)
    writer.close()
    says = f"offsets {end} to {end + 1} stand behind the last word of a broker that stopped (its final checkpoint at "
    odd = f"no broker that stops writes an event like the one at offset {end}"
    says = f"{directory.name}: {says}offset {end - 1}), before the next start: another wrote them, for {odd}"
    assert run(["verify", "--data", str(data)]) == 0
    assert says in capsys.readouterr().err
    with Harness(data):
        assert says in caplog.text
    assert run(["verify", "--data", str(data)]) == 0
    assert says in capsys.readouterr().err  # for ever, with the start behind it
    started = [event for event in events_of(data, int(directory.name[-1])) if isinstance(event, BrokerStarted)]
    assert [each.after_crash for each in started] == [False] * 4 + [True]
