"""The index of ids: a search with it finds what a search without it finds, however far it is (B-46)."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.keeping.trim_rules import TrimRequest
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.rewind import id_index_passes, search
from rewindmq.engine.rewind.id_index import IndexedStretch, entry, key_of
from rewindmq.engine.rewind.id_index_passes import Indexing
from rewindmq.projections.history.search import CORRELATION_ID, MESSAGE_ID, Criteria
from rewindmq.schemas.amqp.properties import join_by_name
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Event, Published, Tick
from rewindmq.schemas.values import Actor, Route
from tests.support.broker_harness import Harness
from tests.support.records import SCHEMA_BYTES

DAY_MS = 86_400_000
KEEP_MS = 7 * DAY_MS
LIMITS = search.SearchLimits(1_000, 100, 1_000_000, 60.0)
Ids = tuple[int, str | None, str | None]  # partition, message id, correlation id


def short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def event_of(message_id: str | None, correlation_id: str | None) -> Event:
    if message_id == correlation_id == "tick":
        return Tick()
    given = {"message_id": message_id, "correlation_id": correlation_id}
    properties = join_by_name({name: short(value) for name, value in given.items() if value is not None})
    return Published(Route("/", "", "orders", ("orders",)), properties, persistent=True, body=b"4711", body_size=4)


def append(data: Path, groups: list[list[Ids]], begin_ms: int, step_ms: int = 1) -> None:
    """Append groups of messages, each a block; times go on from `begin_ms`."""
    log = EmbeddedLog.open(data, 2, 2_000)
    encoder, at_ms = Encoder(), begin_ms
    for group in groups:
        at_ms += step_ms
        for partition, message_id, correlation_id in group:
            event = event_of(message_id, correlation_id)
            log.queues[partition].append(at_ms, encoder.encode(encoder.prefix(at_ms, Actor("guest", 1)), event))
        log.commit_and_wait()
    log.close()


def found(data: Path, criteria: Criteria, index: Indexing | None, limits: search.SearchLimits = LIMITS) -> list[str]:
    """The names of what a whole search finds, asked portion by portion as over HTTP."""
    reader = InDirectory(data).open()
    names: list[str] = []
    subjects = Subjects("", KeyStore(data / "keys"), {})
    ranges = search.whole(reader, criteria, 0, None, None)
    begun = False
    while ranges:
        known = {}
        wanted = criteria.id()
        if index is not None and wanted is not None:
            ends = {name: end for name, (_, end) in ranges.items()} if begun else None
            known = index.lookup(*wanted, ends)
        page = search.search(reader, criteria, ranges, limits, subjects, None, known)
        assert page.searched > 0
        assert len(page.found) <= page.read <= page.searched
        names += [f"{each.partition}:{each.offset}" for each in page.found]
        ranges, begun = page.ranges, True
    return names


IDS = st.one_of(st.none(), st.sampled_from(["a", "b", "tick"]))
GROUPS = st.lists(st.lists(st.tuples(st.integers(0, 1), IDS, IDS), min_size=1, max_size=6), max_size=12)
CRITERIA = [
    Criteria("/", None, "a"),
    Criteria("/", "orders", None, "b"),
    Criteria("/", None, "b", "a"),
    Criteria("/", None, "none"),
    Criteria("/", None, "a", body=b"47"),
]


@pytest.mark.long
@given(GROUPS, GROUPS, GROUPS, st.integers(0, 12), st.integers(1, 4), st.integers(1, 10 * DAY_MS // 12))
def test_b46_a_search_with_the_index_finds_what_one_without_finds(
    older: list[list[Ids]], newer: list[list[Ids]], newest: list[list[Ids]], windows: int, size: int, step_ms: int
) -> None:
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_index_passes, "WINDOW_RECORDS", size)
        patch.setattr(search, "MOST_INDEXED", size)
        data, directory = Path(place) / "data", Path(place) / "index"
        now_ms = int(time.time() * 1_000)
        append(data, older, now_ms - 10 * DAY_MS, step_ms)
        index = Indexing(InDirectory(data), directory, KEEP_MS)
        for _ in range(windows):
            index.window()
        append(data, newer, now_ms)
        if windows % 2:  # a process after it
            index.index.close()
            index = Indexing(InDirectory(data), directory, KEEP_MS)
        while index.window():
            pass
        append(data, newest, now_ms + 1)
        for criteria in CRITERIA:
            for limits in (LIMITS, search.SearchLimits(1, 0, 1_000_000, 0.0)):
                without = found(data, criteria, None, limits)
                assert sorted(found(data, criteria, index, limits)) == sorted(without)
        index.index.close()


def many(count: int, id_of: Callable[[int], str]) -> list[list[Ids]]:
    return [[(0, id_of(number), None)] for number in range(count)]


def opened(data: Path) -> Indexing:
    index = Indexing(InDirectory(data), data / "find-index", KEEP_MS)
    while index.window():
        pass
    return index


def now_ms() -> int:
    return int(time.time() * 1_000)


def read_for(data: Path, index: Indexing, message_id: str) -> int:
    reader, criteria = InDirectory(data).open(), Criteria("/", None, message_id)
    ranges = search.whole(reader, criteria, 0, None, None)
    known = index.lookup(MESSAGE_ID, message_id.encode(), None)
    page = search.search(reader, criteria, ranges, LIMITS, Subjects("", KeyStore(data / "keys"), {}), None, known)
    assert not page.ranges
    assert page.searched == sum(log.next_offset for log in reader.queues)
    return page.read


def test_b46_only_what_the_index_names_is_read(tmp_path: Path) -> None:
    append(tmp_path, many(500, str), now_ms() - DAY_MS)
    index = opened(tmp_path)
    assert (read_for(tmp_path, index, "71"), read_for(tmp_path, index, "none")) == (1, 0)
    append(tmp_path, many(30, str), now_ms())
    assert read_for(tmp_path, index, "71") == 31
    index.index.close()


def test_b46_a_range_that_ends_behind_every_offset_is_no_other_question(tmp_path: Path) -> None:
    append(tmp_path, many(100, str), now_ms() - DAY_MS)
    index = opened(tmp_path)
    key = key_of(MESSAGE_ID, b"71")
    ends: list[int | None] = [None, 1 << 48, 10**30]
    one, *others = [index.index.lookup(key, {"queues-0": end, "queues-1": end}) for end in ends]
    assert sum(len(each.offsets) for each in one.values()) == 1
    assert others == [one, one]
    index.index.close()


def test_b46_what_is_too_old_for_the_index_is_found_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path, many(10, str), now_ms() - 5 * DAY_MS)
    index = opened(tmp_path)
    assert len(index.index.buckets) == 1
    later = time.time() + KEEP_MS / 1_000
    monkeypatch.setattr(time, "time", lambda: later)
    index.window()
    assert index.index.buckets == []
    assert len(found(tmp_path, Criteria("/", None, "7"), index)) == 1
    index.index.close()


def test_b46_a_history_that_was_restored_from_a_backup_is_indexed_anew(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    append(data, many(5, str), now_ms() - DAY_MS)
    shutil.copytree(data, backup)
    append(data, many(20, lambda number: f"lost {number}"), now_ms() - 1_000)
    opened(data).index.close()
    shutil.rmtree(data / "log")
    shutil.copytree(backup / "log", data / "log")
    append(data, many(30, lambda number: f"new {number}"), now_ms())
    index = opened(data)
    assert found(data, Criteria("/", None, "lost 3"), index) == []
    assert found(data, Criteria("/", None, "new 3"), index) == ["queues-0:8"]
    index.index.close()


def test_b46_an_index_that_is_kept_for_longer_or_shorter_is_made_anew(tmp_path: Path) -> None:
    append(tmp_path, many(10, str), now_ms())
    for keep_ms in (KEEP_MS, DAY_MS, KEEP_MS, 3 * KEEP_MS):
        index = Indexing(InDirectory(tmp_path), tmp_path / "find-index", keep_ms)
        while index.window():
            pass
        assert index.index.buckets == [now_ms() // (keep_ms // 7)]
        assert len(found(tmp_path, Criteria("/", None, "7"), index)) == 1
        index.index.close()


def test_b46_an_id_of_very_many_messages_is_answered_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewindmq.engine.rewind.id_index.MOST_OFFSETS", 10)
    monkeypatch.setattr("rewindmq.engine.rewind.id_index.FEWEST_OFFSETS", 10)
    append(tmp_path, many(100, lambda number: "same"), now_ms())
    index = opened(tmp_path)
    known = index.lookup(MESSAGE_ID, b"same", None)["queues-0"]
    assert (known.stretches, len(known.offsets)) == (((89, 100),), 11)
    names = found(tmp_path, Criteria("/", None, "same"), index, search.SearchLimits(7, 0, 1_000_000, 60.0))
    assert names == [f"queues-0:{offset}" for offset in range(99, -1, -1)]
    index.index.close()


def test_b46_an_id_whose_hash_is_shared_is_no_match(tmp_path: Path) -> None:
    append(tmp_path, many(10, str), now_ms())
    index = opened(tmp_path)
    last = index.index.last("queues-0")
    assert last is not None
    bucket, stretch = last
    wrong = entry(key_of(MESSAGE_ID, b"7"), 0, 3)
    index.index.add(bucket, IndexedStretch("queues-0", stretch.end, stretch.end, stretch.proof), [wrong])
    assert index.lookup(MESSAGE_ID, b"7", None)["queues-0"].offsets == (3, 7)
    assert found(tmp_path, Criteria("/", None, "7"), index) == ["queues-0:7"]
    assert index.lookup(CORRELATION_ID, b"7", None)["queues-0"].offsets == ()
    index.index.close()


def publish(h: Harness, session: Session, first: int, end: int) -> None:
    for number in range(first, end):
        event = event_of(str(number), None)
        assert isinstance(event, Published)
        for destination in h.broker.exchanges.route(session, "", "orders", None):
            destination.partition.publish(session.actor, event)
        h.settle()


@pytest.mark.long
def test_b46_a_trimmed_log_is_searched_from_its_begin_and_its_base_too(tmp_path: Path) -> None:
    with Harness(tmp_path, partitions=1, segment_bytes=SCHEMA_BYTES + 4_000) as h:
        for day in range(3):
            session = h.session()
            h.declare(session, "orders")
            publish(h, session, 200 * day, 200 * day + 150)
            begun_ms = h.now_ms
            h.pass_time(DAY_MS)
            h.restart()
        h.now_ms += DAY_MS
        end_ms = h.now_ms
    keep_ms = 100 * 365 * DAY_MS
    index = Indexing(InDirectory(tmp_path), tmp_path / "find-index", keep_ms)
    while index.window():
        pass
    wanted = [Criteria("/", None, str(number)) for number in (0, 149, 150, 201, 349, 401, 549)]
    before = [found(tmp_path, each, None) for each in wanted]
    assert [len(names) for names in before] == [1, 1, 0, 1, 1, 1, 1]
    [report] = trim_directory(tmp_path, TrimRequest(before_ms=begun_ms, reason=""), wall_ms=end_ms)
    start = InDirectory(tmp_path).open().queues[0].start_offset
    assert start > 200, report
    assert [found(tmp_path, each, index) for each in wanted] == before, "all are queued, so the base has the older ones"
    index.index.close()
    with Harness(tmp_path, partitions=1, segment_bytes=SCHEMA_BYTES + 4_000) as h:
        session = h.session()
        publish(h, session, 600, 650)
    again = Indexing(InDirectory(tmp_path), tmp_path / "find-index", keep_ms)
    while again.window():
        pass
    for each in (*wanted, Criteria("/", None, "620")):
        assert found(tmp_path, each, again) == found(tmp_path, each, None)
    assert len(found(tmp_path, Criteria("/", None, "620"), again)) == 1
    again.index.close()
