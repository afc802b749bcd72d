"""The log that one process serves to workers: order, times, files, bounds, and the end of either side."""

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.log.embedded.segments import record_timestamp
from rewindmq.engine.log.served import server as server_module
from rewindmq.engine.log.served import worker_connection
from rewindmq.engine.log.served.client import ServedLog, encoded_batches
from rewindmq.engine.log.served.wire_frames import FOLLOW, HELLO, JOIN, OFFSET, frame
from rewindmq.engine.log.shared_contract import REMOVED, RecordTooLarge
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import NodeLost, Tick
from rewindmq.schemas.metadata_events import HistoryTrimmed, NodeJoined
from tests.support.kafka.following import Following
from tests.support.served_log import ServedInThread, record

NAMES = ("metadata-0", "nodes-0", "queues-0", "queues-1")


def begun(log: ServedLog) -> Following[ServedLog]:
    return Following(log, {"metadata-0": log.metadata.next_offset, "nodes-0": 0})


def in_files(data: Path, name: str) -> list[bytes]:
    log = EmbeddedLogReader(data)
    partition = next(each for each in log.partitions if each.name == name)
    return [found for block in partition.read() for found in block.records]


async def until_gone(served: ServedInThread, names: list[str]) -> None:
    """Wait until the server has said that these workers are gone."""
    async with asyncio.timeout(30):
        while sorted(served.gone) != names:
            await asyncio.sleep(0.01)


def without_time(value: bytes) -> bytes:
    return value[6:]


def test_workers_see_one_order_and_the_files_have_it_with_the_time_of_the_log(tmp_path: Path) -> None:
    count = 500

    async def run(served: ServedInThread) -> list[Following[ServedLog]]:
        workers = [begun(served.worker(f"one-{number}")) for number in (1, 2)]
        for number in range(count):
            for worker in workers:
                log = worker.log
                for partition in (log.metadata, log.nodes, *log.queues):
                    partition.append(b"key", record(Tick(), f"{log._name} {number}"))
            if number % 10 == 0:
                await asyncio.sleep(0.001)
        for worker in workers:
            await worker.until_read(dict.fromkeys(NAMES, 2 * count))
            await worker.log.read_to_end()
        for worker in workers:
            worker.log.close()
        return workers

    with ServedInThread(tmp_path, wall_ms=lambda: 1_900_000_000_000) as served:
        one, two = asyncio.run(run(served))
    assert (one.offsets, one.times) == (two.offsets, two.times)
    for name in NAMES:
        assert one.values[name] == two.values[name]
        for worker in (one, two):
            own = [record(Tick(), f"{worker.log._name} {number}") for number in range(count)]
            assert [value for value in worker.values[name] if value in own] == own, "own records as they were sent"
        if name == "nodes-0":
            continue
        found = in_files(tmp_path, name)[-2 * count :]
        assert [record_timestamp(each) for each in found] == one.times[name] == [1_900_000_000_000] * 2 * count
        assert list(map(without_time, found)) == list(map(without_time, one.values[name]))
    assert one.failures == two.failures == []


def test_time_does_not_go_back_behind_a_restart(tmp_path: Path) -> None:
    async def one_more(served: ServedInThread) -> None:
        worker = begun(served.worker("one-1"))
        worker.log.queues[0].append(b"", record(Tick()))
        await worker.until(lambda: bool(worker.values["queues-0"]))
        worker.log.close()

    for wall_ms in ([1_900_000_000_000], [1_700_000_000_000]):
        with ServedInThread(tmp_path, wall_ms=partial(wall_ms.__getitem__, 0)) as served:
            asyncio.run(one_more(served))
    assert list(map(record_timestamp, in_files(tmp_path, "queues-0"))) == [1_900_000_000_000] * 2


def test_a_paused_partition_is_reported_and_read_from_the_files_when_it_is_resumed(tmp_path: Path) -> None:
    async def run(served: ServedInThread) -> None:
        one, other = begun(served.worker("one-1")), begun(served.worker("one-2"))
        log, partition = one.log, one.log.queues[1]
        partition.append(b"", record(Tick(), "followed"))
        await one.until(lambda: partition.all_reported)
        assert one.delivered_at == {}
        await log.pause("queues-1")
        partition.report(True)
        for number in range(50):
            partition.append(b"", record(Tick(), f"own {number}"))
            other.log.queues[1].append(b"", record(Tick(), f"foreign {number}"))
            await asyncio.sleep(0)
        await one.until(lambda: len(one.delivered_at["queues-1"]) == 50)
        await other.until_read({"queues-1": 101})
        assert partition.all_reported
        assert one.values["queues-1"] == [record(Tick(), "followed")]
        log.resume("queues-1", 1)
        await log.catch_up("queues-1")
        assert one.offsets["queues-1"] == list(range(101))
        assert list(map(without_time, one.values["queues-1"])) == list(map(without_time, other.values["queues-1"]))
        own = [at for at in range(101) if b"own" in one.values["queues-1"][at]]
        assert one.delivered_at["queues-1"] == own, "each own record is reported at its offset"
        partition.report(False)
        partition.append(b"", record(Tick(), "again"))
        await one.until_read({"queues-1": 102})
        assert one.values["queues-1"][-1] == record(Tick(), "again")
        for each in (one, other):
            each.log.close()
        assert one.failures == other.failures == []

    with ServedInThread(tmp_path) as served:
        asyncio.run(run(served))


def test_a_worker_that_does_not_read_makes_nothing_grow_and_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "TAIL_BYTES", 0)
    monkeypatch.setattr(server_module, "LEAST_TAIL_BYTES", 100_000)
    monkeypatch.setattr(worker_connection, "HIGH_BYTES", 200_000)
    count, size = 400, 10_000
    values = [record(Tick(), f"{number} ".ljust(size, "x")) for number in range(count)]

    async def run(served: ServedInThread) -> None:
        slow, quick = served.worker("one-1"), begun(served.worker("one-2"))
        slow.queues[0].append(b"", record(Tick(), "its own, which is told later"))
        slept = begun(slow)
        slow._wire.stop()  # it reads nothing any more
        slow.flush()
        for value in values:
            quick.log.queues[0].append(b"", value)
            await asyncio.sleep(0)
        await quick.until_read({"queues-0": count + 1})
        waiting, kept = served.do(lambda: held_for(served, "one-1"))
        assert 0 < waiting < 1_000_000
        assert kept < 1_000_000
        slow._wire.start(slow._readable)
        await slept.until_read({"queues-0": count + 1})
        assert slept.offsets == quick.offsets
        assert list(map(without_time, slept.values["queues-0"])) == list(map(without_time, quick.values["queues-0"]))
        assert slept.values["queues-0"].count(record(Tick(), "its own, which is told later")) == 1
        for log in (slow, quick.log):
            log.close()

    with ServedInThread(tmp_path) as served:
        asyncio.run(run(served))


def held_for(served: ServedInThread, name: str) -> tuple[int, int]:
    """What waits in the server for a worker, and what is in its tails, in bytes."""
    connection = next(each for each in served.server.connections if each.name == name)
    tails = (each.tail for each in served.server.partitions.values())
    kept = sum(len(batch.payload) for tail in tails for batch in tail.by_number.values())
    return connection._transport.get_write_buffer_size(), kept


def test_the_epochs_of_a_worker_end_with_its_connection(tmp_path: Path) -> None:
    async def run(served: ServedInThread) -> None:
        watcher, dead, polite = (begun(served.worker(f"one-{number}")) for number in (1, 2, 3))
        for worker in (dead, polite):
            worker.log.metadata.append(b"", record(NodeJoined(worker.log._name, "0", 1, "")))
        await watcher.until_read({"metadata-0": 2})
        names = [Decoder().decode(value)[2] for value in watcher.values["metadata-0"]]
        epochs = dict(zip((each.node for each in names if isinstance(each, NodeJoined)), (1, 2), strict=True))
        polite.log.metadata.append(b"", record(NodeLost("one-3", epochs["one-3"], "stopped")))
        polite.log.close()
        dead.log.queues[0].append(b"", record(Tick(), "its last"))
        dead.log.flush()
        dead.log._wire.close()
        await watcher.until(lambda: len(watcher.values["queues-0"]) >= 2 and bool(watcher.values["queues-1"]))
        lost = NodeLost("one-2", epochs["one-2"], "lapsed")
        for name in ("queues-0", "queues-1", "metadata-0"):
            events = [Decoder().decode(value)[2] for value in watcher.values[name]]
            assert events[-1] == lost, "behind all that it sent"
            assert events.count(lost) == 1
        assert [type(Decoder().decode(each)[2]) for each in watcher.values["queues-1"]] == [NodeLost]
        watcher.log.close()
        await until_gone(served, ["one-1", "one-2", "one-3"])

    with ServedInThread(tmp_path) as served:
        asyncio.run(run(served))


def test_a_worker_fails_when_the_log_ends(tmp_path: Path) -> None:
    async def run(served: ServedInThread) -> None:
        worker = begun(served.worker("one-1"))
        await worker.log.read_to_end()
        asking = asyncio.ensure_future(worker.log.read_to_end())
        await asyncio.to_thread(served.end)
        await worker.until(lambda: bool(worker.failures))
        assert "the process of the log has ended" in str(worker.failures[0])
        await asyncio.wait([asking])
        with pytest.raises(LogError):
            await worker.log.read_to_end()
        worker.log.queues[0].append(b"", record(Tick()))
        with pytest.raises(LogError, match="has ended"):
            worker.log.close()

    with ServedInThread(tmp_path) as served:
        asyncio.run(run(served))


def test_a_worker_that_stops_waits_for_its_last_records(tmp_path: Path) -> None:
    count = 3_000

    async def run(served: ServedInThread) -> None:
        worker = begun(served.worker("one-1"))
        for number in range(count):
            worker.log.queues[0].append(b"", record(Tick(), f"{number}".ljust(500)))
        worker.log.close()
        assert len(in_files(tmp_path, "queues-0")) == count

    with ServedInThread(tmp_path) as served:
        asyncio.run(run(served))


def test_a_worker_that_says_nothing_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "LOOK_SECONDS", 0.02)

    async def run(served: ServedInThread) -> None:
        worker, other = begun(served.worker("one-1")), served.worker("one-2")
        worker.log._stop()
        await until_gone(served, ["one-1"])
        other.close()  # it has not joined, so it may be folding what it missed

    with ServedInThread(tmp_path, most_silent=0.5) as served:
        asyncio.run(run(served))


def test_duties_are_spread(tmp_path: Path) -> None:
    async def run(served: ServedInThread) -> None:
        one = begun(served.worker("one-1"))
        await one.until(lambda: one.owned == {"queues-0", "queues-1"})
        two = begun(served.worker("one-2"))
        await two.until(lambda: len(two.owned) == 1)
        await one.until(lambda: one.owned | two.owned == {"queues-0", "queues-1"} and not one.owned & two.owned)
        for each in (one, two):
            each.log.close()

    with ServedInThread(tmp_path) as served:
        asyncio.run(run(served))


def test_a_trim_is_logged_and_all_workers_hear_how_the_history_does(tmp_path: Path) -> None:
    event = HistoryTrimmed("queues-0", 7, 1_800_000_000_000, b"c" * 32, "d" * 64, (), "--keep-history 400d")
    durable: list[int] = []
    state = {"age": 0}

    async def heard(served: ServedInThread, name: str, ages: list[int]) -> Following[ServedLog]:
        log = served.worker(name)
        told: list[dict[str, int]] = []
        log.history_told = told.append
        worker = begun(log)
        for age in ages:
            state["age"] = age
            served.do(partial(served.server.tell_history, lambda: state))
            await log.read_to_end()
        await log.read_to_end()
        assert [each["age"] for each in told] == (ages or [3]), "who joins later hears how it is then"
        return worker

    async def run(served: ServedInThread) -> None:
        workers = [await heard(served, "one-1", [1, 2])]
        state["age"] = 3
        workers.append(await heard(served, "one-2", []))
        offset, _ = served.do(
            lambda: served.server.append_event(event, lambda: durable.append(served.log.metadata.durable_offset))
        )
        for worker in workers:
            await worker.until(lambda found: offset in found, worker.offsets["metadata-0"])
            worker.log.close()
        [end] = durable
        assert end > offset
        assert Decoder().decode(in_files(tmp_path, "metadata-0")[offset])[2] == event

    with ServedInThread(tmp_path) as served:
        asyncio.run(run(served))


def test_counters_come_with_the_last_record_of_each_key(tmp_path: Path) -> None:
    async def run(served: ServedInThread) -> None:
        one = begun(served.worker("one-1"))
        counters = one.log.counters[1]
        for number in range(3):
            counters.append(b"a", b"%d" % number)
        counters.append(b"b", b"")
        counters.append(b"c", b"here")
        counters.append(b"c", None)
        assert counters.under_way == 6
        await one.until_read({"counters-1": 6})
        assert one.values["counters-1"] == [b"0", b"1", b"2", b"", b"here", REMOVED + b"c"]
        assert counters.all_reported
        late = begun(served.worker("one-2"))
        assert late.log.counters[1].opened_at == 6
        await late.until_read({"counters-1": 3})
        assert late.values["counters-1"] == [b"2", b"", REMOVED + b"c"]
        assert late.offsets["counters-1"] == [2, 3, 5]
        late.log.counters[1].append(b"a", b"more")
        await one.until_read({"counters-1": 7})
        await late.until_read({"counters-1": 4})
        for each in (one, late):
            each.log.close()

    with ServedInThread(tmp_path) as served:
        asyncio.run(run(served))


def test_a_disk_that_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(served: ServedInThread) -> None:
        worker = begun(served.worker("one-1"))
        await worker.log.read_to_end()
        sync, broken = os.fdatasync, [True]

        def refuse(descriptor: int) -> None:
            if broken:
                raise OSError(5, "it is broken")
            sync(descriptor)

        monkeypatch.setattr(os, "fdatasync", refuse)
        worker.log.queues[0].append(b"", record(Tick()))
        await worker.until(lambda: bool(worker.troubles))
        assert "the log can't be written" in str(worker.troubles[0])
        broken.clear()
        await worker.until(lambda: worker.troubles[-1] is None)
        await worker.until_read({"queues-0": 1})
        worker.log.close()

    with ServedInThread(tmp_path) as served:
        asyncio.run(run(served))


def test_a_worker_that_sends_nonsense_is_disconnected(tmp_path: Path) -> None:
    with ServedInThread(tmp_path) as served:
        for nonsense in (b"\xff" * 100, frame(99, 0), frame(FOLLOW, 77, OFFSET.pack(0)), frame(FOLLOW, 2, b"")):
            end = served.socket()
            end.settimeout(30)
            end.sendall(frame(HELLO, 0, b"one-9") + frame(JOIN, 0) + nonsense)
            while end.recv(65_536):
                pass  # to the end
            end.close()


def test_a_record_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.log.served.worker_partition.MOST_RECORD_BYTES", 10)
    with ServedInThread(tmp_path) as served:
        log = served.worker("one-1")
        with pytest.raises(RecordTooLarge, match="larger than the 10"):
            log.queues[0].append(b"", record(Tick()))
        assert log.queues[0].all_reported
        log.close()


def test_records_whose_times_take_more_bytes_are_a_batch_of_their_own() -> None:
    values = [record(Tick(), time_ms=time_ms) for time_ms in (1_800_000_000_000, 1_800_000_000_001, 2_300_000_000_000)]
    assert len(encoded_batches(2, values)) == 2
