"""Routing: topic patterns, headers, exchange-to-exchange bindings, alternate exchanges, and what is remembered."""

import itertools
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from rewindmq.engine.routing import router as routing
from rewindmq.engine.routing.content import Content
from rewindmq.engine.routing.exchange_types import HeaderPattern, KnownHeaders, topic_matches
from rewindmq.engine.routing.router import Router
from rewindmq.projections.machine.data.declaration import Declaration
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.partition_hash import murmur2, partition_of
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import MetadataEvent
from rewindmq.schemas.metadata_events import Bound, ExchangeDeclared
from rewindmq.schemas.values import BROKER, Argument
from tests.support.broker_harness import Client, Harness, args
from tests.support.partition_double import PartitionDouble

# -- topic ------------------------------------------------------------------------------------------------------------


def as_regex(pattern: str) -> re.Pattern[str]:
    """The same by another road: words as letters, `*` one word, `#` none or more, with the dots where they belong."""
    parts = []
    for word in pattern.split(".") if pattern else []:
        parts.append({"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}.get(word, r"\." + re.escape(word)))
    return re.compile("".join(parts))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_topic_patterns_match_as_the_regular_expression(length: int) -> None:
    words = ["a", "b", "*", "#", ""]
    keys = [".".join(key) for size in (1, 2, 3) for key in itertools.product(["a", "b", ""], repeat=size)]
    for pattern in itertools.product(words, repeat=length):
        expression = as_regex(".".join(pattern))
        for key in keys:
            expected = expression.fullmatch("." + key if key else "") is not None
            assert topic_matches(".".join(pattern), key) == expected, (pattern, key)


def test_topic_words_of_the_key_are_not_patterns() -> None:
    assert not topic_matches("a", "*")
    assert not topic_matches("a.b", "#")
    assert topic_matches("*", "#")
    assert topic_matches("#", "")
    assert not topic_matches("*", "")
    assert topic_matches("", "")


def test_a_pattern_of_many_hashes_costs_little() -> None:
    assert not topic_matches(".".join(["#", "a"] * 20 + ["b"]), ".".join(["a"] * 60))


# -- headers ----------------------------------------------------------------------------------------------------------

MOMENT = datetime(2013, 1, 1, tzinfo=UTC)
HEADERS_CASES: list[tuple[tuple[Argument, ...], dict[str, object], bool]] = [
    (args(), {}, True),
    (args(x_match="all"), {"a": 1}, True),
    (args(x_match="any"), {"a": 1}, False),
    (args(a=1, b="x"), {"a": 1, "b": "x", "c": 2}, True),
    (args(a=1, b="x"), {"a": 1}, False),
    (args(x_match="any", a=1, b="x"), {"b": "x"}, True),
    (args(x_match="any", a=1, b="x"), {"a": 2, "b": "y"}, False),
    (args(a=None), {"a": "anything"}, True),
    (args(a=None), {}, False),
    (args(a=True), {"a": 1}, False),
    (args(a=1), {"a": 1.0}, False),
    (args(x_key="v", a=1), {"a": 1}, True),
    (args(x_match="all-with-x", x_key="v", a=1), {"a": 1}, False),
    (args(x_match="all-with-x", x_key="v", a=1), {"a": 1, "x-key": "v"}, True),
    (args(x_match="any-with-x", x_key="v", a=1), {"x-key": "v"}, True),
    ((Argument("when", "timestamp", int(MOMENT.timestamp())),), {"when": MOMENT}, True),
    ((Argument("t", "table", '{"k":1}'),), {"t": {"k": 1}}, True),
]


def headers_match(arguments: tuple[Argument, ...], headers: dict[str, object]) -> bool:
    known = KnownHeaders()
    pattern = HeaderPattern(arguments, known)
    return pattern.matches(known.among(headers), headers)


@pytest.mark.parametrize(("arguments", "headers", "expected"), HEADERS_CASES)
def test_headers(arguments: tuple[Argument, ...], headers: dict[str, object], expected: bool) -> None:
    assert headers_match(arguments, headers) is expected


# -- the router over a topology ---------------------------------------------------------------------------------------


def content(headers: dict[str, Any] | None = None, **properties: Any) -> Content:
    return Content(commands.Basic.Properties(headers=headers, **properties).marshal())


class Scene:
    """A topology and a router over one partition in which every queue but `gone` exists."""

    def __init__(self) -> None:
        self.topology = Topology()
        self.partition = PartitionDouble()
        self.router = Router(
            self.topology,
            lambda vhost, queue: None if queue == "gone" else self.partition,
            lambda vhost, queue: self.partition,
        )

    def tell(self, *events: MetadataEvent) -> None:
        for event in events:
            if isinstance(event, Bound):
                self.partition.knows(Queue(Declaration("/", event.destination, 7, "classic")))
            self.topology.apply(self.topology.next_offset, 0, BROKER, event)
        self.router.exchanges_changed()

    def exchange(self, name: str, type: str, *arguments: Argument) -> None:
        self.tell(
            ExchangeDeclared("/", name, type=type, durable=True, auto_delete=False, internal=False, arguments=arguments)
        )

    def bind(self, source: str, destination: str, key: str = "", type: str = "queue") -> None:
        self.tell(Bound("/", source, type, destination, key, (), 7 if type == "queue" else -1))

    def queues(self, exchange: str, key: str, headers: dict[str, object] | None = None) -> tuple[str, ...]:
        destinations = self.router.route("/", exchange, key, None if headers is None else content(headers))
        return destinations[0].route.queues if destinations else ()


def test_queues_come_once_and_in_the_order_of_binding() -> None:
    scene = Scene()
    for queue, key in (("b", "k"), ("a", "#"), ("gone", "#"), ("b", "*"), ("c", "other")):
        scene.bind("amq.topic", queue, key)
    assert scene.queues("amq.topic", "k") == ("b", "a")


def test_exchange_cycles_end() -> None:
    scene = Scene()
    for name in ("x", "y", "z"):
        scene.exchange(name, "fanout")
    scene.bind("x", "q1")
    scene.bind("x", "y", type="exchange")
    scene.bind("y", "z", type="exchange")
    scene.bind("z", "x", type="exchange")
    scene.bind("z", "q2")
    assert scene.queues("x", "") == ("q1", "q2")
    assert scene.queues("y", "") == ("q2", "q1")


def test_alternate_exchange_only_when_nothing_matches() -> None:
    scene = Scene()
    scene.exchange("x", "direct", *args(alternate_exchange="spare"))
    scene.exchange("spare", "fanout")
    scene.bind("spare", "lost")
    scene.bind("x", "q", "k")
    assert scene.queues("x", "k") == ("q",)
    assert scene.queues("x", "other") == ("lost",)


def test_a_headers_exchange_behind_a_fanout_is_not_remembered() -> None:
    scene = Scene()
    scene.exchange("x", "fanout")
    scene.bind("x", "amq.headers", type="exchange")
    scene.tell(Bound("/", "amq.headers", "queue", "q", "", args(a=1), 7))
    assert scene.router.needs_content("/", "x")
    assert not scene.router.needs_content("/", "amq.topic")
    assert scene.queues("x", "", {"a": 1}) == ("q",)
    assert scene.queues("x", "", {"a": 2}) == ()
    one, other = (scene.router.route("/", "x", "", content({"a": 1})) for _ in range(2))
    assert one[0] is other[0]


def test_routes_are_the_same_objects_also_after_unrelated_changes() -> None:
    scene = Scene()
    scene.bind("amq.direct", "q", "k")
    before = scene.router.route("/", "amq.direct", "k", None)
    scene.bind("amq.direct", "other", "unrelated")
    assert scene.router.route("/", "amq.direct", "k", None)[0] is before[0]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "REMEMBERED_ROUTES", 10)
    scene = Scene()
    for number in range(100):
        assert scene.queues("", f"q{number}") == (f"q{number}",)
        assert len(scene.router._answers) <= 10
        assert len(scene.router._destinations) <= 10


def test_what_is_remembered_is_bounded_by_the_queues_of_the_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "REMEMBERED_QUEUES", 100)
    scene = Scene()
    for number in range(30):
        scene.bind("amq.fanout", f"q{number}")
    for number in range(50):
        assert len(scene.queues("amq.fanout", f"key {number}")) == 30
        assert len(scene.router._answers) <= 5
        assert len(scene.router._destinations) <= 10


# -- partitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, hashed: int) -> None:
    """Vectors of Kafka's own unit test (UtilsTest.testMurmur2)."""
    assert murmur2(key) == hashed % (1 << 32)


def test_queues_spread_over_partitions() -> None:
    count = [0] * 4
    for number in range(400):
        count[partition_of("/", f"queue-{number}", 4)] += 1
    assert min(count) > 60


# -- through the broker -----------------------------------------------------------------------------------------------


def test_s032_fanout_is_one_event_a_partition(tmp_path: Path) -> None:
    with Harness(tmp_path, partitions=3) as h:
        session = h.session()
        names = [f"q{number}" for number in range(12)]
        for name in names:
            h.declare(session, name)
            h.bind(session, "amq.fanout", name)
        homes = {h.broker.queues.partition_for("/", name).index for name in names}
        before = sum(partition.log.next_offset for partition in h.broker.partitions)
        assert h.publish(session, "amq.fanout", "", b"news") == len(homes) > 1
        assert sum(partition.log.next_offset for partition in h.broker.partitions) == before + len(homes)
        h.settle()
        assert all(h.ready(name) == [b"news"] for name in names)


def test_a_publish_after_a_deletion_in_one_turn_misses_the_queue(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    h.bind(session, "amq.direct", "q", "k")
    assert h.publish(session, "amq.direct", "k", b"1") == 1
    version = h.broker.router.version
    h.broker.queues.delete(session, "q", False, False)
    assert h.broker.router.version > version
    assert h.publish(session, "amq.direct", "k", b"2") == 0
    h.declare(session, "q")
    assert h.publish(session, "amq.direct", "k", b"3") == 0  # a new queue has no bindings
    assert h.publish(session, "", "q", b"4") == 1
    h.settle()
    assert h.ready("q") == [b"4"]


def test_unroutable_goes_nowhere(h: Harness) -> None:
    session = h.session()
    assert h.publish(session, "", "nobody", b"1") == 0
    assert h.publish(session, "amq.topic", "a.b", b"1") == 0
    client = Client()
    assert client.deliveries == []


# -- headers, by their definition --------------------------------------------------------------------------------------

VALUES = st.sampled_from([1, 1.0, True, 0, "1", None, '{"k":1}', "[1]"])
ARGUMENTS = st.lists(
    st.builds(
        Argument,
        st.sampled_from(["a", "b", "c", "x-d"]),
        st.sampled_from(["longstr", "void", "table", "array", "signedint"]),
        VALUES,
    ).filter(lambda argument: argument.type not in ("table", "array") or str(argument.value)[0] in "[{"),
    max_size=4,
)
MODES = st.sampled_from([(), *(args(x_match=mode) for mode in ("all", "any", "all-with-x", "any-with-x"))])
HEADERS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "x-d"]), VALUES | st.just({"k": 1}) | st.just([1]) | st.just(MOMENT), max_size=4
)


def is_match(arguments: tuple[Argument, ...], headers: dict[str, Any]) -> bool:
    """The definition (rabbit_exchange_type_headers.erl)."""
    mode = next((argument.value for argument in arguments if argument.name == "x-match"), "all")
    results = []
    for argument in arguments:
        if argument.name == "x-match" or (argument.name.startswith("x-") and mode in ("all", "any")):
            continue
        expected = json.loads(str(argument.value)) if argument.type in ("table", "array") else argument.value
        value = headers.get(argument.name)
        value = int(value.timestamp()) if isinstance(value, datetime) else value
        same = type(expected) is type(value) and expected == value
        results.append(argument.name in headers and (argument.type == "void" or same))
    return any(results) if mode in ("any", "any-with-x") else all(results)


@given(st.lists(st.tuples(MODES, ARGUMENTS), max_size=6), st.lists(HEADERS, max_size=4))
def test_headers_match_as_they_are_defined_after_any_changes(
    bindings: list[tuple[tuple[Argument, ...], list[Argument]]], messages: list[dict[str, Any]]
) -> None:
    known = KnownHeaders()
    asked = [(*mode, *arguments) for mode, arguments in bindings]
    patterns = [HeaderPattern(arguments, known) for arguments in asked]
    while patterns:
        for headers in messages:
            present = known.among(headers)
            found = [pattern.matches(present, headers) for pattern in patterns]
            assert found == [is_match(arguments, headers) for arguments in asked]
        asked.pop(len(asked) // 2)
        known.forget(patterns.pop(len(patterns) // 2).simple)
    assert not known.headers
