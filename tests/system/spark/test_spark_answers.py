"""A broker's answers about its history are Spark's, row by row (B-29, B-34)."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from rewindmq.engine.erasure.encryption import Subjects
from rewindmq.engine.erasure.key_store import NO_KEYS, KeyStore
from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.rewind import outcomes
from rewindmq.engine.rewind.outcomes import Deadline, biography, change_of, changes, last_outcomes
from rewindmq.engine.rewind.search import SearchLimits, search, whole
from rewindmq.engine.rewind.what_if import WhatIf, candidate_for, what_if
from rewindmq.projections.history.outcome_rows import OutcomeRow
from rewindmq.projections.history.properties import properties_object
from rewindmq.projections.history.search import Criteria
from rewindmq.projections.rewind import At
from rewindmq.projections.what_if.alternative import Candidate
from rewindmq.projections.what_if.later_outcomes import FateDifference
from rewindmq.schemas.amqp.properties import join_by_name
from rewindmq.schemas.amqp.tables import encode, with_length
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor, Route
from rewindmq.spark_replay.history.diff import diff
from rewindmq.spark_replay.history.history import biography as spark_biography
from rewindmq.spark_replay.history.history import history
from rewindmq.spark_replay.what_if.what_if import what_if as spark_what_if
from tests.support.spark.golden import write_golden_log
from tests.support.spark.histories import Recorder

pytestmark = pytest.mark.long

LONG = Deadline(1_000.0)
SUBJECTS = Subjects("", KeyStore(NO_KEYS), {})
Found = set[tuple[str, int, int]]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("golden")
    write_golden_log(data)
    return data


def found(data: Path, criteria: Criteria, limit: int) -> Found:
    """Return the messages that a broker finds, portion by portion."""
    reader = InDirectory(data).open()
    ranges = whole(reader, criteria, 0, None, None)
    messages: Found = set()
    while ranges:
        page = search(reader, criteria, ranges, SearchLimits(limit, 64, 1 << 20, seconds=0.0), SUBJECTS)
        new = {(each.partition, each.offset, each.time_ms) for each in page.found}
        assert len(new) == len(page.found) <= limit
        assert page.ranges != ranges
        assert not new & messages
        messages |= new
        ranges = page.ranges
    return messages


def told(spark: SparkSession, data: Path, wanted: Callable[[Any], bool]) -> Found:
    frame = spark.read.format("rewindmq").option("includeHeaders", "true")
    rows = frame.load(str(data)).where("event = 'Published' and vhost = '/'").collect()
    return {(row.partition, row.offset, round(row.timestamp.timestamp() * 1000)) for row in rows if wanted(row)}


@pytest.mark.rare(limit=[3])
@pytest.mark.parametrize("limit", [3, 1_000])
def test_b29_a_search_finds_what_spark_finds(spark: SparkSession, golden: Path, busy: Path, limit: int) -> None:
    for data in (golden, busy):
        whole_table = told(spark, data, lambda row: True)
        assert found(data, Criteria("/", body=b""), limit) == whole_table
        some = told(spark, data, lambda row: b"1" in row.body)
        assert found(data, Criteria("/", body=b"1"), limit) == some
        assert 0 < len(some) < len(whole_table)


def test_b29_properties_and_headers_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.declare("q")
    for n in range(60):
        headers = {"customer": f"c{n % 3}", "n": n % 5, "paid": n % 2 == 0, "BCC": ["someone"]}
        given = {
            "message_id": short(f"id-{n % 7}"),
            "correlation_id": short(f"co-{n % 4}"),
            "headers": with_length(encode(headers)),
        }
        event = Published(Route("/", "", "q", ("q",)), join_by_name(given), persistent=True, body=b"x", body_size=1)
        recorder.append(recorder.partition("q"), Actor("guest", 7), event)
    recorder.close()

    def has(name: str, value: bytes) -> Callable[[Any], bool]:
        return lambda row: any(each.key == name and bytes(each.value) == value for each in row.headers or ())

    def is_named(name: str, value: str) -> Callable[[Any], bool]:
        return lambda row: properties_object(bytes(row.properties)).get(name) == value

    for criteria, wanted in (
        (Criteria("/", message_id="id-3"), is_named("message_id", "id-3")),
        (Criteria("/", "q", correlation_id="co-1"), is_named("correlation_id", "co-1")),
        (Criteria("/", "q", header=("customer", "c2")), has("customer", b"c2")),
        (Criteria("/", header=("n", "4")), has("n", b"4")),
        (Criteria("/", header=("paid", "true")), has("paid", b"true")),
    ):
        messages = found(tmp_path, criteria, 4)
        assert messages == told(spark, tmp_path, wanted)
        assert messages


def short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def rows_of_spark(frame: DataFrame) -> list[dict[str, Any]]:
    """Rows in the form of `OutcomeRow.fields`, with the time in milliseconds."""
    found = []
    for row in frame.collect():
        fields = row.asDict(recursive=True)
        time = fields.pop("timestamp")
        found.append({"time_ms": None if time is None else round(time.timestamp() * 1000), **fields})
    return found


def rows_of_broker(rows: list[OutcomeRow]) -> list[dict[str, Any]]:
    return [{"time_ms": row.time_ms, **row.fields()} for row in rows]


def by_place(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["partition"], row["offset"], row["ordinal"]))


@pytest.mark.rare
def test_b29_the_life_of_a_message_is_that_of_spark(spark: SparkSession, golden: Path, busy: Path) -> None:
    for data in (golden, busy):
        source = InDirectory(data)
        reader = source.open()
        every = history(spark, str(data)).where("vhost = '/'").collect()
        letters = [row for row in every if row.origin is not None]
        sources = {(row.origin.queue, row.origin.message_id) for row in letters}
        deep = [row for row in letters if (row.queue, row.message_id) in sources]
        died = [row for row in every if row.outcome == "dead_lettered"]
        picked = [*deep[:1], *died[:2], *letters[:1], *[row for row in every if row.outcome == "acked"][:1]]
        assert len(picked) >= 3
        for row in picked:
            for queue in (None, row.queue):
                name = f"{row.partition}:{row.message_id}"
                found = biography(reader, source.snapshots, "/", row.partition, row.message_id, queue, None, LONG)
                assert found.complete
                expected = rows_of_spark(spark_biography(spark, str(data), name, queue))
                assert rows_of_broker(found.rows) == expected, name


def test_b29_the_last_outcomes_are_sparks_last_rows(spark: SparkSession, golden: Path, busy: Path) -> None:
    for data, queues in ((golden, ("plain", "graveyard")), (busy, ("rest", "quiet"))):
        source = InDirectory(data)
        for queue in queues:
            expected = by_place(rows_of_spark(history(spark, str(data), queue=queue)))
            assert expected
            for count in (1, 7, 10_000):
                tail = last_outcomes(source.open(), source.snapshots, "/", queue, None, count, None, LONG)
                assert tail.complete
                assert rows_of_broker(tail.rows) == expected[-count:], queue


def test_b29_a_look_back_grows_until_there_are_enough(busy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = InDirectory(busy)
    whole_tail = last_outcomes(source.open(), source.snapshots, "/", "rest", None, 5, None, LONG)
    monkeypatch.setattr(outcomes, "FIRST_LOOK_BACK", 3)
    assert last_outcomes(source.open(), source.snapshots, "/", "rest", None, 5, None, LONG) == whole_tail


def test_b29_the_changes_between_two_moments_are_sparks(spark: SparkSession, busy: Path) -> None:
    source = InDirectory(busy)
    reader = source.open()
    queue = "rest"
    rows = rows_of_spark(history(spark, str(busy)))
    times = sorted({row["time_ms"] for row in rows})
    for start, end in ((times[len(times) // 4], times[-1] + 5_000), (times[10], times[len(times) // 2])):
        expected = by_place(rows_of_spark(diff(spark, str(busy), str(start), str(end), queue)))
        found = changes(reader, source.snapshots, "/", queue, None, At(time_ms=start), At(time_ms=end), 10_000, LONG)
        assert found.complete
        made = rows_of_broker(found.rows)
        assert [{"change": change_of(row), **fields} for row, fields in zip(found.rows, made, strict=True)] == expected
        assert sum(found.sums.values()) == sum(row["change"] for row in expected)
        few = changes(reader, source.snapshots, "/", queue, None, At(time_ms=start), At(time_ms=end), 1, LONG)
        assert (few.rows, few.more, few.sums) == (found.rows[:1], max(0, len(found.rows) - 1), found.sums)


def test_b29_an_answer_whose_time_is_over_says_so(busy: Path) -> None:
    source = InDirectory(busy)
    reader = source.open()
    over = Deadline(-1.0)
    assert not last_outcomes(reader, source.snapshots, "/", "rest", None, 5, None, over).complete
    found = changes(reader, source.snapshots, "/", "rest", None, At(offset=0), At(offset=100), 10, over)
    assert (found.complete, found.rows) == (False, [])


# -- what if ----------------------------------------------------------------------------------------------------------


def tried_by_broker(data: Path, candidate: Candidate, queue: str, start_ms: int | None = None) -> WhatIf:
    source = InDirectory(data)
    reader = source.open()
    start = At(offset=0) if start_ms is None else At(time_ms=start_ms)
    end = At(time_ms=4_000_000_000_000)
    return what_if(reader, source.snapshots, "/", queue, None, candidate, start, end, 10_000, LONG)


DEFINITIONS: list[tuple[dict[str, object] | None, dict[str, object] | None]] = [
    ({"max-length": 2}, None),
    ({}, None),
    ({"message-ttl": 40, "overflow": "reject-publish", "max-length": 3}, None),
    (None, {"max-length": 1}),
    ({"max-length": 5}, {"max-length-bytes": 60}),
]


@pytest.mark.rare(from_the_middle=[True])
@pytest.mark.parametrize("from_the_middle", [False, True])
def test_b34_a_policy_would_have_done_what_spark_says(
    spark: SparkSession, busy: Path, golden: Path, from_the_middle: bool
) -> None:
    """Each difference with its times and rules, what had to be assumed, and the depths."""
    outcomes: Counter[str] = Counter()
    for data in (busy, golden):
        rows = history(spark, str(data)).where("vhost = '/' and queue is not null").select("queue", "timestamp")
        times = sorted(round(row.timestamp.timestamp() * 1000) for row in rows.collect() if row.timestamp is not None)
        start_ms = times[len(times) // 3] if from_the_middle else None
        candidates = {
            f"{queue} {number}": replace(candidate_for(queue, *definitions), name=f"{queue} {number}")
            for queue in sorted({row.queue for row in rows.collect()})
            for number, definitions in enumerate(DEFINITIONS)
        }
        start = None if start_ms is None else str(start_ms)
        tried = spark_what_if(spark, str(data), list(candidates.values()), start, every_ms=1)
        tried.rows.persist()
        fates, depths = tried.fates.collect(), tried.depth.collect()
        assumed = {row.candidate: row for row in tried.assumptions.collect()}
        tried.rows.unpersist()
        for name, candidate in candidates.items():
            queue = name.partition(" ")[0]
            lengths = [row for row in depths if (row.candidate, row.vhost, row.queue) == (name, "/", queue)]
            if not lengths:
                continue  # it was gone before the middle
            found = tried_by_broker(data, candidate, queue, start_ms)
            assert (found.stopped, found.reached) == (None, found.end)
            expected = [row for row in fates if (row.candidate, row.vhost, row.queue) == (name, "/", queue)]
            assert {difference(each) for each in found.first} == {fate(row) for row in expected}
            assert found.changed.total() == len(expected) == len(found.first)
            assert found.assumed == {each: getattr(assumed[name], each) for each in found.assumed}
            last = max(lengths, key=lambda row: row.at)
            assert (found.before.depth, found.after.depth) == (last.before, last.after)
            assert found.before.greatest_depth >= max(row.before for row in lengths)
            assert found.after.greatest_depth >= max(row.after for row in lengths)
            assert moved(found.before.outcomes, expected) == by_outcome(found.after.outcomes)
            outcomes.update(row.after for row in expected)
    assert {"maxlen", "refused", "expired", "ready"} <= set(outcomes)


def by_outcome(counts: Counter[tuple[str, str]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for (outcome, _), count in counts.items():
        found[outcome] += count
    return +found


def moved(counts: Counter[tuple[str, str]], fates: list[Any]) -> Counter[str]:
    """Return the recorded outcomes of messages, with the differences applied."""
    found = by_outcome(counts)
    found.subtract(row.before for row in fates if row.before not in ALIVE)
    found.update(row.after for row in fates if row.after not in ALIVE)
    return +found


ALIVE = ("ready", "unacked")


def difference(each: FateDifference) -> tuple[Any, ...]:
    (before, before_ms, before_rule), (after, after_ms, after_rule) = each.before, each.after
    return each.message_id, before, before_ms, before_rule or None, after, after_ms, after_rule or None


def fate(row: Any) -> tuple[Any, ...]:
    before_ms, after_ms = (round(at.timestamp() * 1000) for at in (row.before_at, row.after_at))
    return row.message_id, row.before, before_ms, row.before_rule, row.after, after_ms, row.after_rule


def test_b34_outcomes_as_they_were_are_those_of_the_history(spark: SparkSession, busy: Path) -> None:
    found = tried_by_broker(busy, candidate_for("rest", {}, None), "rest")
    ended = history(spark, str(busy), queue="rest").where("final or outcome = 'refused'").collect()
    assert found.before.outcomes == Counter((row.outcome, row.rule or "") for row in ended)
