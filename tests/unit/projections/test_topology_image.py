"""The stored form of the metadata fold: a fold that goes on from it is the fold from the beginning."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.topology.fold_image import CHUNK_ITEMS, digest_of, image_of, restored
from rewindmq.projections.topology.metadata_fold import MetadataFold
from rewindmq.projections.topology.topology import TOPOLOGY_VERSION
from rewindmq.schemas.access_events import AccessRefused, LoginRefused, SessionCounted, SessionOpened, UnroutedCounted
from rewindmq.schemas.clock_events import ClockSet, ClockStepped
from rewindmq.schemas.events import (
    BrokerStarted,
    Event,
    MachineUpgraded,
    MetadataEvent,
    NodeLost,
    PastRead,
    SessionClosed,
    Tick,
)
from rewindmq.schemas.metadata_events import (
    BodiesExpired,
    Bound,
    ExchangeDeclared,
    ExchangeDeleted,
    GlobalParameterCleared,
    GlobalParameterSet,
    HistoryForked,
    HistoryTrimmed,
    MarkDeleted,
    MarkSet,
    NodeJoined,
    OperatorPolicyCleared,
    OperatorPolicySet,
    ParameterCleared,
    ParameterSet,
    PermissionsCleared,
    PermissionsSet,
    PolicyCleared,
    PolicySet,
    SubjectErased,
    TopicPermissionsCleared,
    TopicPermissionsSet,
    Unbound,
    UserDeleted,
    UserLimitsSet,
    UserSet,
    VhostCreated,
    VhostDeleted,
)
from rewindmq.schemas.placement_events import (
    NamesHeld,
    PartitionsAdded,
    PlacementChanged,
    QueueMoveBegan,
    QueueMoveEnded,
    QueueName,
    QueuesStay,
)
from rewindmq.schemas.values import BROKER, Actor, Argument
from tests.support.strategies import EVENTS, timestamps


@pytest.fixture(scope="module", autouse=True)
def versions_to_come() -> Iterator[None]:
    """The topology knows every machine version."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rewindmq.projections.topology.topology.MACHINE_VERSION", 2**63)
        yield


# Few names, so that the events of a history meet: they change, replace and end one another.
VHOSTS = st.sampled_from(["/", "v", "ẃ"])
NAMES = st.sampled_from(["a", "b", "x ✈"])
SOURCES = st.sampled_from(["a", "b", "amq.topic"])
ARGUMENTS = st.sampled_from(
    [
        (),
        (Argument("n", "long", 7), Argument("b", "binary", b"\x00\xff"), Argument("d", "double", 0.1)),
        (Argument("t", "bool", True), Argument("v", "void", None), Argument("s", "longstr", "✈")),
    ]
)
BOUND = (VHOSTS, SOURCES, st.sampled_from(["queue", "exchange"]), NAMES, NAMES, ARGUMENTS, st.integers(-1, 2))
JSON = st.sampled_from(['{"max-length":1}', '{"max-queues":2}', "{}", "7", "nonsense"])
POLICY = (VHOSTS, NAMES, st.sampled_from(["", "^a", "("]), JSON, st.integers(0, 2), st.sampled_from(["all", "queues"]))
EPOCHS = st.integers(0, 40)
SENSIBLE: dict[type[Any], tuple[st.SearchStrategy[Any], ...]] = {
    BrokerStarted: (NAMES, st.just("0.1.0"), st.integers(1, 4), st.booleans()),
    MachineUpgraded: (st.integers(1, 4),),
    NodeJoined: (NAMES, st.just("0.2.0"), st.integers(1, 4), NAMES, st.integers(0, 6)),
    NodeLost: (NAMES, EPOCHS, st.just("lapsed")),
    VhostCreated: (VHOSTS, NAMES, st.just(("t", "u")), st.sampled_from(["", "quorum", "odd"])),
    VhostDeleted: (VHOSTS,),
    UserSet: (NAMES, st.just("$argon2id$"), st.just(("administrator",))),
    UserDeleted: (NAMES,),
    UserLimitsSet: (NAMES, st.sampled_from(['{"max-channels":2,"max-connections":1}', "{}"])),
    PermissionsSet: (VHOSTS, NAMES, NAMES, NAMES, NAMES),
    PermissionsCleared: (VHOSTS, NAMES),
    TopicPermissionsSet: (VHOSTS, NAMES, SOURCES, NAMES, NAMES),
    TopicPermissionsCleared: (VHOSTS, NAMES, SOURCES),
    ParameterSet: (VHOSTS, st.just("vhost-limits"), st.sampled_from(["limits", "p"]), JSON),
    ParameterCleared: (VHOSTS, st.just("vhost-limits"), st.sampled_from(["limits", "p"])),
    GlobalParameterSet: (NAMES, JSON),
    GlobalParameterCleared: (NAMES,),
    ExchangeDeclared: (VHOSTS, NAMES, st.just("topic"), st.booleans(), st.booleans(), st.booleans(), ARGUMENTS),
    ExchangeDeleted: (VHOSTS, NAMES),
    Bound: BOUND,
    Unbound: BOUND,
    PolicySet: POLICY,
    PolicyCleared: (VHOSTS, NAMES),
    OperatorPolicySet: POLICY,
    OperatorPolicyCleared: (VHOSTS, NAMES),
    SubjectErased: (NAMES, st.sampled_from([("k1",), ("k1", "k2")]), NAMES),
    MarkSet: (NAMES, st.just((("queues-0", 7), ("queues-1", 9))), NAMES),
    MarkDeleted: (NAMES,),
    HistoryTrimmed: (
        st.sampled_from(["queues-0", "queues-1"]),
        st.integers(0, 9),
        timestamps,
        st.binary(max_size=32),
        st.just("d1"),
        st.sampled_from([(), ("f1", "f2")]),
        NAMES,
    ),
    HistoryForked: (NAMES, st.just("ab"), NAMES, st.just((("queues-0", 7), ("queues-1", 9))), NAMES),
    BodiesExpired: (st.sampled_from(["2026-11-23", "2026-11-24"]), st.sampled_from([("k1",), ("k1", "k3")])),
    SessionOpened: (st.integers(1, 9), *[NAMES] * 8, st.just(())),
    LoginRefused: (*[NAMES] * 6, st.integers(1, 9), timestamps),
    AccessRefused: (*[NAMES] * 5, st.integers(1, 9), timestamps),
    UnroutedCounted: (*[NAMES] * 3, st.just(()), st.integers(1, 9), timestamps),
    SessionCounted: (*[st.integers(1, 9)] * 8, st.just(())),
    SessionClosed: (st.integers(1, 9), st.just(0)),
    PastRead: (NAMES, NAMES, st.just(0), st.just(0), st.just(""), st.just(()), NAMES, NAMES),
    ClockStepped: (NAMES, st.just("start"), timestamps, timestamps),
    ClockSet: (st.integers(-9, 9), timestamps),
    PartitionsAdded: (st.just(2), st.just(6)),
    NamesHeld: (st.just(6),),
    QueuesStay: (st.integers(-1, 6), st.lists(st.builds(QueueName, VHOSTS, NAMES), max_size=3).map(tuple)),
    PlacementChanged: (st.just(6),),
    QueueMoveBegan: (VHOSTS, NAMES, st.integers(-1, 2), st.integers(0, 5)),
    QueueMoveEnded: (VHOSTS, NAMES, st.integers(-1, 2)),
    Tick: (),
}
often = st.one_of(
    st.builds(Bound, *BOUND), st.builds(Unbound, *BOUND), st.builds(ExchangeDeclared, *SENSIBLE[ExchangeDeclared])
)
sensible = st.one_of(often, *(st.builds(cls, *values) for cls, values in SENSIBLE.items()))
anything = st.one_of([EVENTS[cls] for cls in MetadataEvent.__args__])
histories = st.lists(
    st.tuples(st.integers(0, 2), timestamps, st.one_of(sensible, sensible, sensible, anything) | st.none()), max_size=60
)


def go_on(fold: MetadataFold, history: list[tuple[int, int, Event | None]]) -> MetadataFold:
    """Fold events (gap before it, time, event); None: a record that cannot be decoded."""
    for gap, time_ms, event in history:
        offset = fold.next_offset + gap
        if event is None:
            fold.skip(offset, "\ud800 is no record")
        else:
            fold.apply(offset, time_ms, Actor("u", 7), event)
    return fold


def again(fold: MetadataFold) -> MetadataFold:
    return restored(list(image_of(fold).pieces()))


def answers(fold: MetadataFold) -> Any:
    """Everything that a fold can be asked, with the orders."""
    topology = fold.topology
    kinds = {name: value for name, value in vars(topology).items() if name[0] != "_"}
    kinds |= {f"placement.{name}": value for name, value in vars(kinds.pop("placement")).items()}
    ordered = {name: list(value.items()) if isinstance(value, dict) else value for name, value in kinds.items()}
    vhosts, names = list(topology.vhosts), ["a", "b", "x ✈"]
    return (
        ordered,
        [fold.next_offset, fold.clock_ms, fold.latest_ms, fold.quarantine.count, fold.quarantine.newest()],
        [list(topology.bindings()), topology.bindings_in_order(), list(topology.queue_bindings())],
        sorted(topology.bound_queues()),
        [
            (topology.bindings_from(vhost, name), topology.bindings_to(vhost, kind, name))
            for vhost in vhosts
            for name in names
            for kind in ("queue", "exchange")
        ],
        [
            (answer(vhost, name, kind))
            for vhost in vhosts
            for name in names
            for kind in ("classic", "quorum", "stream")
            for answer in (topology.effective_policy, topology.effective_operator_policy)
        ],
        [topology.vhost_limits(vhost) for vhost in vhosts],
        [(rule.event, rule.policy) for rule in topology.rules()],
        topology.digest(),
    )


def test_every_event_of_the_metadata_log_has_a_sensible_form_here() -> None:
    assert set(SENSIBLE) == {*MetadataEvent.__args__, Tick}


@given(histories, histories)
def test_a_stored_fold_and_the_rest_are_the_fold_from_the_beginning(first: Any, rest: Any) -> None:
    whole = go_on(MetadataFold(), first)
    image = image_of(whole)
    begun = restored(list(image.pieces()))
    assert answers(begun) == answers(whole)
    pieces = list(image.pieces())
    go_on(whole, rest)
    go_on(begun, rest)
    assert answers(begun) == answers(whole)
    assert digest_of(image_of(begun).pieces()) == digest_of(image_of(whole).pieces())
    assert list(image.pieces()) == pieces, "an image does not change when the fold goes on"


def test_bindings_keep_their_order_to_a_queue_across_exchanges() -> None:
    bindings = [Bound("/", f"amq.{source}", "queue", "q", "") for source in ("topic", "fanout", "direct", "headers")]
    fold = go_on(MetadataFold(), [(0, 0, bound) for bound in bindings])
    go_on(fold, [(0, 0, Unbound("/", "amq.topic", "queue", "q", "")), (0, 0, bindings[0])])
    wanted = (*bindings[1:], bindings[0])
    assert fold.topology.bindings_to("/", "queue", "q") == again(fold).topology.bindings_to("/", "queue", "q") == wanted


def test_many_items_are_stored_in_bounded_pieces() -> None:
    fold = go_on(MetadataFold(), [(0, 0, Bound("/", "amq.topic", "queue", f"q{n}", "")) for n in range(3_000)])
    pieces = list(image_of(fold).pieces())
    assert len(pieces) > 3_000 // CHUNK_ITEMS
    assert max(map(len, pieces)) < 200 * CHUNK_ITEMS
    assert len(again(fold).topology.bindings_in_order()) == 3_000


def test_the_rules_of_this_version_are_these() -> None:
    """If this digest changes, a stored topology of before is not the fold of its log: raise TOPOLOGY_VERSION, and put
    the new digest here."""
    fold = golden()
    assert TOPOLOGY_VERSION == 1
    assert fold.topology.digest() == "6fa3abd0ad8073464a6da24506db9bcb727686af67341f615f8533a7770868d9"
    assert digest_of(image_of(fold).pieces()) == "90ba27d69a239bcdfcbc3a06ca25aff424cfec6f9204b20c0b93594cba53a70f"


def golden() -> MetadataFold:
    """The fold of a history with every kind of event, in which each one changes something."""
    name = next(f"q{n}" for n in range(9) if (partition_of("v", f"q{n}", 2), partition_of("v", f"q{n}", 6)) == (1, 5))
    stay = QueuesStay(1, (QueueName("v", name), QueueName("v", "other")))
    placement: list[Event] = [
        NodeJoined("n3", "0.3.0", 7, "n3:5672", 6),
        PartitionsAdded(2, 6),
        NamesHeld(6),
        stay,
        PlacementChanged(6),
        QueueMoveBegan("v", name, 3, 5),
        QueueMoveEnded("v", name, 1),
        PartitionsAdded(6, 8),
        NamesHeld(8),
        stay,
    ]
    x = ExchangeDeclared("v", "x", "topic", durable=True, auto_delete=True, internal=False)
    binary = (Argument("b", "binary", b"\xff"),)
    bound = Bound("v", "x", "queue", "q", "k", binary, 4)
    limits = '{"max-connections":3}'
    events: list[Event] = [
        BrokerStarted("n", "0.1.0", 3, after_crash=True),
        MachineUpgraded(3),
        VhostCreated("v", "of tests", ("t",), "quorum"),
        VhostCreated("gone"),
        VhostDeleted("gone"),
        *(UserSet(name, f"$argon2id${name}", ("administrator",)) for name in ("u", "w")),
        UserDeleted("w"),
        UserLimitsSet("u", limits),
        PermissionsSet("/", "u", ".*", ".*", ".*"),
        PermissionsSet("v", "u", "", "^a", ".*"),
        PermissionsCleared("/", "u"),
        TopicPermissionsSet("v", "u", "amq.topic", "a", "b"),
        TopicPermissionsSet("/", "u", "amq.topic", "a", "b"),
        TopicPermissionsCleared("/", "u", "amq.topic"),
        ParameterSet("v", "vhost-limits", "limits", '{"max-queues":2}'),
        ParameterSet("v", "c", "p", "1"),
        ParameterCleared("v", "c", "p"),
        GlobalParameterSet("g", "[]"),
        GlobalParameterSet("h", "[]"),
        GlobalParameterCleared("h"),
        x,
        replace(x, exchange="y", arguments=binary),
        replace(x, exchange="z"),
        ExchangeDeleted("v", "z"),
        bound,
        replace(bound, source="y"),
        Unbound("v", "y", "queue", "q", "k", binary, 4),
        PolicySet("v", "p", "^q", '{"max-length":1}', 1, "queues"),
        PolicySet("v", "p2", "^q", '{"max-length":1}', 1, "queues"),
        PolicyCleared("v", "p2"),
        OperatorPolicySet("v", "o", "q$", '{"expires":1000}', 1, "queues"),
        OperatorPolicySet("v", "o2", "q$", '{"expires":1000}', 1, "queues"),
        OperatorPolicyCleared("v", "o2"),
        MarkSet("m", (("queues-0", 7),), "note"),
        MarkSet("m2", (("queues-0", 7),)),
        MarkDeleted("m2"),
        SubjectErased("s", ("k1", "k2"), "asked"),
        HistoryTrimmed(
            "queues-0",
            7,
            until_ms=1_700_000_000_000,
            chain=b"\x01\xff",
            digest="d1",
            findings=("one finding",),
            reason="older than 400d",
        ),
        HistoryForked("aa", "bb", "mark:before", (("queues-0", 7),), "s3://bucket/prefix"),
        BodiesExpired("2026-11-23", ("k3",)),
        NodeJoined("n1", "0.2.0", 4, "n1:5672"),
        NodeJoined("n2", "0.2.0", 5, "n2:5672"),
        NodeLost("n1", 38, "stopped"),
        ClockSet(5, 1_700_000_000_000),
        ClockStepped("n", "start", 1, 2),
        PolicySet("v", "bad", "(", "{}", 0, "all"),
        Tick(),
        SessionOpened(
            7,
            vhost="v",
            protocol="amqp",
            address="h:1",
            listener="l:2",
            proxy="",
            mechanism="PLAIN",
            tls="",
            certificate="",
            client_properties=(),
        ),
        LoginRefused(
            "u",
            host="h",
            listener="l:2",
            protocol="amqp",
            mechanism="PLAIN",
            reason="invalid credentials",
            count=3,
            first_ms=1_700_000_000_000,
        ),
        AccessRefused(
            "queue.declare", vhost="v", kind="queue", name="q", reason="refused", count=1, first_ms=1_700_000_000_000
        ),
        PastRead("v", queue="q", consumer=0, channel=0, tag="", arguments=(), way="GET /api/queues", request="at=-5m"),
        SessionClosed(7, 0),
    ]
    events += placement
    events += [
        UnroutedCounted("v", "x", "key", ("id",), count=2, first_ms=1_700_000_000_000),
        SessionCounted(
            7,
            received=1,
            refused=0,
            unknown_exchange=0,
            after_error=0,
            unfinished=0,
            grouped=1,
            copies=0,
            partitions=(),
        ),
    ]
    assert {type(event) for event in events} == {*MetadataEvent.__args__, Tick}
    fold = MetadataFold()
    for offset, event in enumerate(events):
        fold.apply(offset, 1_700_000_000_000 + offset, BROKER, event)
    fold.skip(len(events), "half a record")
    return fold


@pytest.mark.parametrize("size", [0, 100])
def test_equal_folds_are_stored_as_equal_bytes(size: int) -> None:
    events: list[Any] = [(0, 5, Bound("/", "amq.topic", "queue", f"q{n % 37}", str(n))) for n in range(size)]
    one, other = go_on(MetadataFold(), events), again(go_on(MetadataFold(), events))
    assert list(image_of(one).pieces()) == list(image_of(other).pieces())
