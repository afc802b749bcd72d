"""The records of queues' counters, and which of them a node keeps (engine/partition/queue_counters.py)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewindmq.engine.log.shared_contract import REMOVED
from rewindmq.engine.partition import queue_counters
from rewindmq.engine.partition.consumer_counters import LIST_BYTES, MOST_CONSUMERS, PublishedConsumer, published_of
from rewindmq.engine.partition.counters import Served
from rewindmq.engine.partition.queue_counters import (
    MOST,
    MOST_BYTES,
    MOST_LATE,
    NUMBERS,
    CounterTable,
    Name,
    QueueCounters,
    counters_in,
    decoded,
    encoded,
    gone_record,
    key_of,
    name_in,
    round_record,
)
from rewindmq.projections.machine.data.declaration import Declaration
from rewindmq.projections.machine.data.queue import ConsumerView, Queue
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.values import Argument

HISTORY = "0123456789abcdef"
names = st.text(max_size=60)
numbers = st.integers(0, MOST)
some = st.builds(
    QueueCounters,
    names,
    names,
    numbers,
    type=st.sampled_from(("classic", "quorum", "stream")),
    paused=st.booleans(),
    exclusive_tag=st.none() | st.text(min_size=1, max_size=60),
    argument_table=st.dictionaries(names, st.integers() | st.text() | st.lists(st.integers())),
    outcomes=st.dictionaries(st.sampled_from(("published", "acked", "moved")), st.integers(1, MOST)),
    messages_ready=numbers,
    attached=numbers,
    attached_consumers=st.lists(
        st.builds(
            PublishedConsumer,
            numbers,
            names,
            numbers,
            st.integers(0, 65_535),
            names,
            st.booleans(),
            priority=st.integers(-MOST, MOST),
            argument_table=st.dictionaries(names, st.integers() | st.text()),
            activity_status=st.sampled_from(("up", "waiting", "single_active")),
        ),
        max_size=3,
    ).map(tuple),
    at=numbers,
    covers_ms=numbers,
)


class Topic:
    """The records of one partition of one, and a node that reads them."""

    def __init__(self, ends_at: int = 0, index: int = 0, partitions: int = 1) -> None:
        self.table = CounterTable(
            lambda vhost, queue: partition_of(vhost, queue, partitions) == index, HISTORY, ends_at
        )
        self.next = 0

    def put(self, *values: bytes, time_ms: int = 1_000) -> "Topic":
        for value in values:
            self.table.take([self.next], [time_ms], [value])
            self.next += 1
        return self

    def ready(self, name: str = "q") -> int | None:
        found = self.table.queues.get(("/", name))
        return None if found is None else found.messages_ready


def counters(at: int, ready: int, name: str = "q", queue_id: int = 1, covers_ms: int = 5_000) -> QueueCounters:
    return QueueCounters("/", name, queue_id, messages_ready=ready, at=at, covers_ms=covers_ms)


def record(at: int, ready: int, name: str = "q", queue_id: int = 1, covers_ms: int = 5_000) -> bytes:
    return encoded(HISTORY, counters(at, ready, name, queue_id, covers_ms))


def gone(at: int, name: str = "q") -> bytes:
    return gone_record(HISTORY, ("/", name), at)


def no_value(name: str = "q") -> bytes:
    return REMOVED + key_of("/", name)


# -- the codec --------------------------------------------------------------------------------------------------------


@given(some)
def test_b50_counters_come_back_as_they_were(given: QueueCounters) -> None:
    found = counters_in(decoded(encoded(HISTORY, given)))
    assert found == given
    assert (found.at, found.covers_ms) == (given.at, given.covers_ms)


@given(names, names, names, names)
def test_b50_each_queue_has_a_key_of_its_own(vhost: str, queue: str, other_vhost: str, other: str) -> None:
    assert name_in(key_of(vhost, queue)) == (vhost, queue)
    assert (key_of(vhost, queue) == key_of(other_vhost, other)) == ((vhost, queue) == (other_vhost, other))


def test_b50_counters_of_a_queue() -> None:
    arguments = (Argument("x-max-length", "long", 7),)
    queue = Queue(Declaration("/", "q", 4, "classic", arguments=arguments))
    queue.published, queue.acked, queue.messages_ready, queue.message_bytes_ready = 9, 4, 5, 50
    served = Served()
    served.deliver = 4
    found = QueueCounters.of(queue, served, 77)
    assert (found.published, found.acked, found.refused, found.deliver) == (9, 4, 0, 4)
    assert found.counters == queue.counters
    assert (found.argument_table, found.argument_types) == ({"x-max-length": 7}, {"x-max-length": "long"})
    assert found.at == 77
    assert counters_in(decoded(encoded(HISTORY, found))) == found


@given(st.binary(max_size=200))
def test_b50_any_bytes_are_taken_or_refused(value: bytes) -> None:
    topic = Topic().put(record(3, 8), value)
    assert topic.ready() == 8
    assert topic.table.skipped == 1


def change(**fields: object) -> bytes:
    return json.dumps({**json.loads(record(3, 8)), **fields}).encode()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b" " * (MOST_BYTES + 1),
        b'"text"',
        change(history="another"),
        change(history=5),
        change(kind="other"),
        change(at=-1),
        change(at="3"),
        change(at=MOST + 1),
        change(at=True),
        change(queue_id=1.5),
        change(messages_ready=-1),
        change(attached=None),
        change(name="n" * 256),
        change(vhost=None),
        change(paused="no"),
        change(argument_table=[]),
        change(outcomes={"published": "many"}),
        change(attached_consumers={}),
        change(attached_consumers=["one"]),
        change(attached_consumers=[{}] * (MOST_CONSUMERS + 1)),
        change(attached_consumers=[{"tag": 5}]),
        change(attached_consumers=[{"tag": "t" * 2_000}]),
        change(attached_consumers=[{"session": True}]),
        change(attached_consumers=[{"priority": 2 * MOST}]),
        change(attached_consumers=[{"argument_table": []}]),
        REMOVED,
        REMOVED + b'["/"]',
        REMOVED + b"\xff",
    ],
)
def test_b50_a_record_that_makes_no_sense_changes_nothing(value: bytes) -> None:
    topic = Topic().put(record(2, 7), value)
    assert topic.ready() == 7
    assert (topic.table.skipped, bool(topic.table.why_skipped)) == (1, True)


def test_b50_a_newer_node_may_write_more_and_an_older_one_less() -> None:
    assert Topic().put(change(messages_floating=5)).ready() == 8
    less = {key: value for key, value in json.loads(record(3, 8)).items() if key not in NUMBERS}
    assert Topic().put(json.dumps(less | {"at": 3}).encode()).ready() == 0


def test_b57_a_node_knows_which_consumers_are_missing() -> None:
    consumers = [{"consumer": 5, "tag": "t"}]
    topic = Topic().put(change(attached=2, attached_consumers=consumers))
    assert topic.table.crowded == {("/", "q")}
    assert topic.put(change(attached=1, attached_consumers=consumers, at=4)).table.crowded == set()
    [consumer] = topic.table.queues["/", "q"].consumers()
    assert (consumer.consumer, consumer.tag, consumer.active, consumer.prefetch) == (5, "t", True, 0)
    assert topic.put(change(attached=3, at=5)).table.crowded == {("/", "q")}, "an older owner publishes none"
    assert topic.put(gone(6)).table.crowded == set()


def test_b57_a_record_has_room_for_so_many_consumers() -> None:
    views = [ConsumerView(n, "t" * 100, 1, 1, "guest", False, False, 10, 0, 0) for n in range(1_000)]
    assert 100 < len(published_of(views)) < 1_000
    queue = QueueCounters("/", "q", 1, attached=1_000, attached_consumers=published_of(views))
    assert len(encoded(HISTORY, queue)) < 2 * LIST_BYTES


def test_b58_the_node_of_the_last_round_is_the_owner() -> None:
    topic = Topic().put(round_record(HISTORY, 5, "a", 0))
    assert topic.table.owner == "a"
    assert topic.put(round_record(HISTORY, 3, "b", 0)).table.owner == "a", "it is late"
    assert topic.put(round_record(HISTORY, 6, "b", 0)).table.owner == "b"
    broken = json.dumps({"format": 1, "kind": "round", "history": HISTORY, "at": 8, "node": 5}).encode()
    assert topic.put(broken).table.skipped == 1


def test_b50_a_queue_of_another_partition_is_not_taken() -> None:
    name = next(f"q{n}" for n in range(100) if partition_of("/", f"q{n}", 2) == 1)
    assert Topic(index=0, partitions=2).put(record(1, 1, name)).table.skipped == 1
    assert Topic(index=1, partitions=2).put(record(1, 1, name)).ready(name) == 1


# -- which record is the newest ---------------------------------------------------------------------------------------


def test_b50_the_record_of_the_furthest_fold_counts() -> None:
    topic = Topic().put(record(10, 1), record(9, 2))
    assert topic.ready() == 1
    assert list(topic.table.late) == [("/", "q")]  # the owner writes again what compaction would keep
    assert topic.put(record(10, 3), record(11, 4)).ready() == 4


def test_b50_an_owner_of_before_brings_no_queue_back() -> None:
    topic = Topic().put(record(10, 1), gone(20), no_value(), round_record(HISTORY, 20, "a", 0), record(15, 1))
    assert topic.ready() is None
    assert list(topic.table.late) == [("/", "q")]


def test_b50_an_owner_of_before_takes_no_queue_away() -> None:
    """The queue was deleted at 20, and declared anew at 21."""
    topic = Topic().put(record(10, 1), record(22, 5, queue_id=21), gone(20), no_value())
    assert topic.ready() == 5
    assert topic.table.queues["/", "q"].queue_id == 21
    assert topic.put(gone(30), no_value()).ready() is None


def test_b50_a_removal_alone_is_what_compaction_leaves() -> None:
    topic = Topic().put(record(10, 1), no_value())
    assert topic.ready() is None
    assert list(topic.table.late) == [("/", "q")]  # if it is there, its owner writes it again


def test_b50_a_round_of_an_owner_of_before_does_not_make_counters_young() -> None:
    topic = (
        Topic()
        .put(round_record(HISTORY, 20, "a", 0), time_ms=5_000)
        .put(round_record(HISTORY, 10, "a", 0), time_ms=9_000)
    )
    assert (topic.table.round_ms, topic.table.rounds) == (5_000, 1)


def test_b50_the_table_is_ready_at_the_end_and_after_a_round() -> None:
    topic = Topic(ends_at=2).put(round_record(HISTORY, 1, "a", 0))
    assert not topic.table.ready
    assert topic.put(record(1, 1)).table.ready
    assert not Topic().put(record(1, 1)).table.ready  # no owner says that this is all


def test_b50_rates_are_those_between_two_rounds() -> None:
    topic = Topic()

    def before() -> int | None:
        found = topic.table.queues["/", "q"].before
        return None if found is None else found.messages_ready

    topic.put(record(10, 1), round_record(HISTORY, 10, "a", 0))
    assert before() is None
    topic.put(record(20, 6))
    assert before() == 1
    topic.put(round_record(HISTORY, 20, "a", 0))
    assert before() == 1
    topic.put(round_record(HISTORY, 20, "a", 0))  # a whole round without a change
    assert before() is None
    topic.put(record(30, 7, queue_id=25))  # another queue of this name
    assert before() is None
    topic.put(record(40, 9, queue_id=25, covers_ms=0))  # a new owner
    assert before() is None


def test_b50_only_the_figures_of_one_round_before_are_kept() -> None:
    topic = Topic().put(*(record(at, at) for at in range(5)))
    before = topic.table.queues["/", "q"].before
    assert before is not None
    assert before.before is None


def test_b50_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_counters, "MOST_QUEUES", 3)
    topic = Topic().put(*(record(1, 1, f"q{number}") for number in range(5)))
    assert (len(topic.table.queues), topic.table.skipped) == (3, 2)
    topic.put(round_record(HISTORY, 9, "a", 0))
    for number in range(MOST_LATE + 10):
        topic.put(gone(1, f"g{number}"))
    assert len(topic.table.late) <= MOST_LATE


# -- owners that move -------------------------------------------------------------------------------------------------


@st.composite
def told(draw: st.DrawFn) -> tuple[list[list[bytes]], dict[Name, int]]:
    """Draw the records of two owners about one history, each in its order, and the final counts of ready messages.

    The second owner may die early."""
    state: dict[Name, tuple[int, int]] = {}  # id and ready
    states = [dict(state)]
    for at in range(1, draw(st.integers(2, 12))):
        name = ("/", draw(st.sampled_from(("q", "r"))))
        if name in state and draw(st.booleans()):
            del state[name]
        else:
            queue_id, ready = state.get(name, (at, 0))
            state[name] = queue_id, ready + 1
        states.append(dict(state))
    owners = []
    for _ in range(2):
        records: list[bytes] = []
        known: dict[Name, tuple[int, int]] = {}
        for at, now in enumerate(states):
            if at < len(states) - 1 and draw(st.booleans()):
                continue  # it does not publish each state
            for there, (queue_id, ready) in now.items():
                if known.get(there) != (queue_id, ready):
                    records.append(encoded(HISTORY, QueueCounters(*there, queue_id, messages_ready=ready, at=at)))
            for gone_name in sorted(known.keys() - now.keys()):
                records += [gone_record(HISTORY, gone_name, at), REMOVED + key_of(*gone_name)]
            records.append(round_record(HISTORY, at, "a", 0))
            known = dict(now)
        owners.append(records)
    return [owners[0], owners[1][: draw(st.integers(0, len(owners[1])))]], {
        name: ready for name, (_, ready) in states[-1].items()
    }


@given(told(), st.data())
def test_b50_owners_of_one_history_agree_in_any_order(
    given: tuple[list[list[bytes]], dict[Name, int]], data: st.DataObject
) -> None:
    """However their records are mixed: the owner that lives writes late ones again, and removes what is no queue."""
    owners, expected = given
    left = [list(records) for records in owners]
    topic = Topic()
    while any(left):
        topic.put(data.draw(st.sampled_from([each for each in left if each])).pop(0))
    for name in topic.table.late.keys() & expected.keys():
        topic.put(encoded(HISTORY, QueueCounters(*name, 1, messages_ready=expected[name], at=99)))
    for name in topic.table.queues.keys() - expected.keys():
        topic.put(gone_record(HISTORY, name, 99), REMOVED + key_of(*name))
    assert {name: each.messages_ready for name, each in topic.table.queues.items()} == expected
