"""`verify` finds what differs between RocksDB and the log, and names queue and key (B-09)."""

import shutil
from pathlib import Path

import pytest
from rocksdict import Rdict

from rewindmq.projections.replay import recover
from rewindmq.projections.rewind import OutsideHistory
from rewindmq.projections.store import keys, rocks
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.projections.verify import NOT_CHECKED, NOTHING_STORED, Verification, verify
from rewindmq.schemas.events import DeadLettersForwarded, QueueDeleted
from rewindmq.schemas.values import Route
from tests.support.rocks import flipped
from tests.support.traffic import ANN, ListLog, Traffic, published, queue_declared

PREFIX = keys.partition_prefix("queues-0")


@pytest.fixture
def traffic() -> Traffic:
    traffic = Traffic(11)
    traffic.run(400)
    for _ in range(20):
        traffic.append(ANN, published(Route("/", "", "plain", ("plain",)), b"a body to damage"))
    traffic.end_turn()
    assert traffic.machine.queue("/", "plain") is not None
    return traffic


@pytest.fixture
def state(tmp_path: Path, traffic: Traffic) -> Path:
    """A state directory at the end of the traffic's log."""
    store = StateStore.open(tmp_path / "state")
    recovery = recover(traffic.log, store)
    recovery.projector.write(recovery.projector.prepare())
    store.close()
    return tmp_path / "state"


def check(traffic: Traffic, state: Path) -> Verification:
    (report,) = verify([traffic.log], state)
    return report


def alter(state: Path, key: bytes, value: bytes | None) -> None:
    db: Rdict = rocks.open_database(state)
    if value is None:
        db.delete(key, rocks.without_wal())
    else:
        db.put(key, value, rocks.without_wal())
    db.close()


def content(state: Path, kind: bytes) -> dict[bytes, bytes]:
    store = StateStore.open(state, read_only=True)
    found = dict(store.scan(PREFIX + kind))
    store.close()
    return found


def test_a_sound_store_is_equal(traffic: Traffic, state: Path) -> None:
    report = check(traffic, state)
    assert report.equal
    assert report.differences == []
    assert report.offset == traffic.log.next_offset
    assert report.queues == len(traffic.machine.by_id)
    assert report.messages >= 20


def test_a_store_behind_the_log_is_compared_at_its_own_offset(traffic: Traffic, state: Path) -> None:
    offset = traffic.log.next_offset
    traffic.run(100)
    report = check(traffic, state)
    assert report.equal
    assert report.offset == offset < traffic.log.next_offset


def test_an_empty_store_is_said_to_be_empty(traffic: Traffic, tmp_path: Path) -> None:
    """That of a broker which was killed before it first wrote: no difference, but not equal to anything either."""
    StateStore.open(tmp_path / "empty").close()
    report = check(traffic, tmp_path / "empty")
    assert report.equal
    assert (report.offset, report.result) == (0, NOT_CHECKED + NOTHING_STORED)


def test_a_log_that_lost_its_beginning_is_not_compared(traffic: Traffic, state: Path) -> None:
    """As Kafka's without its archive: a fold of the rest alone differs from every sound state."""
    traffic.listed.start_offset = 90
    with pytest.raises(OutsideHistory, match="what lies below offset 90 is no longer kept"):
        check(traffic, state)


def test_a_flipped_byte_of_a_body_is_reported_with_queue_and_key(traffic: Traffic, state: Path) -> None:
    plain = traffic.machine.queue("/", "plain")
    assert plain is not None
    message_id = max(plain.ready_ids())
    key = keys.message(PREFIX, plain.queue_id, message_id)
    value = content(state, b"M")[key]
    alter(state, key, flipped(value))
    report = check(traffic, state)
    (difference,) = report.differences
    assert difference.queue == "//plain"
    assert difference.key == f"queues-0 message queue_id={plain.queue_id} id={message_id}"
    size = len(value)
    assert difference.what == f"differs from byte {size - 1} on ({size} bytes stored, {size} by the log)"


def test_a_missing_and_a_leftover_body_are_reported(traffic: Traffic, state: Path) -> None:
    plain = traffic.machine.queue("/", "plain")
    assert plain is not None
    message_id = max(plain.ready_ids())
    alter(state, keys.message(PREFIX, plain.queue_id, message_id), None)
    alter(state, keys.message(PREFIX, plain.queue_id, message_id + 1_000), b"x")
    alter(state, keys.message(PREFIX, 77_777, 1), b"x")
    found = [(each.queue, each.key, each.what) for each in check(traffic, state).differences]
    assert found == [
        ("//plain", f"queues-0 message queue_id={plain.queue_id} id={message_id}", "is missing"),
        ("//plain", f"queues-0 message queue_id={plain.queue_id} id={message_id + 1_000}", "should not be there"),
        ("", "queues-0 message queue_id=77777 id=1", "should not be there"),
    ]


@pytest.mark.parametrize("kind", [b"Q", b"C"])
def test_a_flipped_byte_of_a_queues_state_is_reported_with_queue_and_key(
    traffic: Traffic, state: Path, kind: bytes
) -> None:
    plain = traffic.machine.queue("/", "plain")
    assert plain is not None
    key = next(key for key in content(state, kind) if keys.queue_id_of(key, PREFIX) == plain.queue_id)
    value = content(state, kind)[key]
    middle = len(value) // 2
    alter(state, key, value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :])
    report = check(traffic, state)
    assert {(each.queue, each.key) for each in report.differences} == {("//plain", keys.describe(key, PREFIX))}


def test_a_missing_or_foreign_piece_of_state_is_reported(traffic: Traffic, state: Path) -> None:
    plain = traffic.machine.queue("/", "plain")
    assert plain is not None
    alter(state, keys.queue(PREFIX, plain.queue_id), None)
    report = check(traffic, state)
    assert [(each.queue, each.what) for each in report.differences] == [("//plain", "is missing")]
    assert report.differences[0].key == f"queues-0 queue queue_id={plain.queue_id}"


def test_a_state_without_its_offset_is_no_empty_one(traffic: Traffic, state: Path) -> None:
    alter(state, keys.applied(PREFIX), None)
    report = check(traffic, state)
    assert (report.offset, report.equal) == (0, False)
    assert ("", "queues-0 head") in {(each.queue, each.key) for each in report.differences}


def test_a_file_of_rocksdb_that_is_gone_is_an_error(traffic: Traffic, state: Path) -> None:
    alter(state, keys.FORMAT, b"1")  # a second one
    files = sorted(state.glob("*.sst"))
    assert len(files) == 2
    for file in files:
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(StoreError, match=f"cannot be read .*{file.name}: No such file.*it is rebuilt from the log"):
            verify([traffic.log], state)
        file.write_bytes(content)
    assert check(traffic, state).equal


def test_a_state_that_is_not_of_its_offset_is_not_opened(traffic: Traffic, state: Path) -> None:
    alter(state, keys.applied(PREFIX), (7).to_bytes(8, "big"))
    store = StateStore.open(state)
    with pytest.raises(StoreError, match=rf"a state at {traffic.log.next_offset} under the offset 7"):
        store.open_partition("queues-0")
    store.close()
    report = check(traffic, state)
    assert not report.equal
    assert ("", "queues-0 head") in {(each.queue, each.key) for each in report.differences}


def damage(state: Path, what: bytes) -> None:
    """Flip a byte in the file that RocksDB wrote, where `what` first stands."""
    (file,) = state.glob("*.sst")
    damaged = bytearray(file.read_bytes())
    at = damaged.find(what)
    assert at > 0
    damaged[at] ^= 1
    file.write_bytes(damaged)


def test_damage_below_rocksdbs_checksums_is_reported_with_queue_and_key(tmp_path: Path, traffic: Traffic) -> None:
    """A byte flipped in the file itself: RocksDB refuses the block, verify says which keys cannot be read."""
    bodies = [traffic.random.randbytes(100) for _ in range(600)]  # several of RocksDB's blocks
    for body in bodies:
        traffic.append(ANN, published(Route("/", "", "plain", ("plain",)), body))
    store = StateStore.open(tmp_path)
    recovery = recover(traffic.log, store)
    recovery.projector.write(recovery.projector.prepare())
    store.close()
    damage(tmp_path, bodies[500][20:40])
    report = check(traffic, tmp_path)
    plain = traffic.machine.queue("/", "plain")
    assert plain is not None
    assert 1 < report.difference_count < 300
    assert {each.queue for each in report.differences} == {"//plain", ""}
    message_id = max(plain.ready_ids()) - 99
    key = f"queues-0 message queue_id={plain.queue_id} id={message_id}"
    (difference,) = [each for each in report.differences if each.key == key]
    assert "cannot be read (Corruption: block checksum mismatch" in difference.what

    store = StateStore.open(tmp_path)  # the state is sound, so that the broker starts; the message is not
    _, projector = store.open_partition("queues-0")
    with pytest.raises(StoreError, match=f"{key}.*cannot be read"):
        projector.message(plain.queue_id, message_id)
    damaged = [int(each.key.rpartition("=")[2]) for each in report.differences if " message " in each.key]
    last = min(damaged) - 1  # reading ahead from there meets the damage
    assert projector.message(plain.queue_id, last).body == bodies[500 - (message_id - last)]
    store.close()


def test_the_error_of_an_unreadable_store_says_what_to_do(traffic: Traffic, state: Path) -> None:
    damage(state, b"a body to damage")  # so small that all is in one block
    with pytest.raises(StoreError, match=r"cannot be read \(Corruption.*; delete the directory, it is rebuilt from"):
        verify([traffic.log], state)
    with pytest.raises(StoreError, match=r"cannot be read \(Corruption.*; delete the directory, it is rebuilt from"):
        StateStore.open(state)
    shutil.rmtree(state)
    store = StateStore.open(state)
    assert recover(traffic.log, store).machine.digest() == traffic.machine.digest()
    store.close()


def test_bodies_of_a_deleted_queues_waiting_dead_letters_are_no_leftovers(tmp_path: Path) -> None:
    traffic = Traffic(0)
    traffic.append(ANN, queue_declared("target"))
    short = traffic.machine.queue("/", "short")
    assert short is not None
    for _ in range(7):  # a limit of 5: two are dead-lettered
        traffic.append(ANN, published(Route("/", "", "short", ("short",)), b"x"))
    assert len(short.outbox) == 2
    traffic.append(ANN, QueueDeleted("/", "short", False, False))
    store = StateStore.open(tmp_path)
    recovery = recover(traffic.log, store)
    recovery.projector.write(recovery.projector.prepare())
    report = check(traffic, _closed(store))
    assert report.equal
    assert report.messages == 2

    store = StateStore.open(tmp_path)
    traffic.append(ANN, DeadLettersForwarded("/", "short", short.queue_id, 2))
    recovery = recover(traffic.log, store)
    recovery.projector.write(recovery.projector.prepare())
    report = check(traffic, _closed(store))
    assert report.equal
    assert report.messages == 0
    assert content(tmp_path, b"M") == {}


def _closed(store: StateStore) -> Path:
    store.close()
    return store.path


def test_verify_works_beside_the_process_that_writes(tmp_path: Path, traffic: Traffic) -> None:
    store = StateStore.open(tmp_path)
    recovery = recover(traffic.log, store)
    recovery.projector.write(recovery.projector.prepare())
    recovery.projector.persist()
    offset = traffic.log.next_offset
    traffic.run(50)
    report = check(traffic, tmp_path)
    assert report.equal
    assert report.offset == offset
    assert report.messages >= 20
    store.close()


def test_no_state_and_a_state_ahead_of_the_log_are_errors(traffic: Traffic, state: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no state store here"):
        verify([traffic.log], tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(StoreError, match=r"is at offset \d+, but its log ends at 10"):
        verify([ListLog(records=traffic.listed.records[:10])], state)


def test_verify_leaves_nothing_behind(traffic: Traffic, state: Path) -> None:
    before = {file.name: file.read_bytes() for file in state.iterdir()}
    check(traffic, state)
    assert {file.name: file.read_bytes() for file in state.iterdir()} == before
