"""The fold of the metadata log: vhosts, users, permissions, exchanges, bindings, policies."""

import pytest

from rewindmq.projections.topology.topology import HANDLERS, SYSTEM_EXCHANGES, Topology
from rewindmq.schemas.events import BrokerStarted, Event, MetadataEvent, NodeLost, Tick
from rewindmq.schemas.metadata_events import (
    Bound,
    ExchangeDeclared,
    ExchangeDeleted,
    GlobalParameterCleared,
    GlobalParameterSet,
    NodeJoined,
    OperatorPolicySet,
    ParameterCleared,
    ParameterSet,
    PermissionsSet,
    PolicyCleared,
    PolicySet,
    TopicPermissionsCleared,
    TopicPermissionsSet,
    Unbound,
    UserDeleted,
    UserLimitsSet,
    UserSet,
    VhostCreated,
    VhostDeleted,
)
from rewindmq.schemas.values import BROKER

STARTED = BrokerStarted("n", "0.1.0", 1)


def fold(*events: MetadataEvent) -> Topology:
    topology = Topology()
    for offset, event in enumerate(events):
        topology.apply(offset, 0, BROKER, event)
    return topology


def exchange(name: str, durable: bool = True, vhost: str = "/", auto_delete: bool = False) -> ExchangeDeclared:
    return ExchangeDeclared(vhost, name, "direct", durable, auto_delete, False)


def bound(source: str, destination: str, key: str = "") -> Bound:
    """To an exchange if its name begins with x, else to a queue."""
    return Bound("/", source, "exchange" if destination[0] == "x" else "queue", destination, key)


def unbound(source: str, destination: str, key: str = "") -> Unbound:
    return Unbound("/", source, bound(source, destination).destination_type, destination, key)


def exchanges(topology: Topology) -> list[str]:
    system = {name for name, _ in SYSTEM_EXCHANGES}
    return sorted(name for _, name in topology.exchanges if name not in system)


def joined(node: str) -> NodeJoined:
    return NodeJoined(node, "0.2.0", 1, f"{node}:5672")


def policy(
    name: str,
    priority: int = 0,
    pattern: str = ".*",
    definition: str = '{"max-length":1}',
    apply_to: str = "all",
    vhost: str = "/",
) -> PolicySet:
    return PolicySet(vhost, name, pattern, definition, priority, apply_to)


def test_what_is_there_by_rule() -> None:
    topology = fold()
    assert list(topology.vhosts) == ["/"]
    assert [name for _, name in topology.exchanges] == [name for name, _ in SYSTEM_EXCHANGES]
    topology = fold(VhostCreated("v"))
    assert ("v", "amq.topic") in topology.exchanges


def test_every_metadata_event_has_a_handler() -> None:
    assert set(HANDLERS) == set(MetadataEvent.__args__)


def operator_policy(pattern: str, definition: str) -> OperatorPolicySet:
    return OperatorPolicySet("/", "o", pattern, definition, 0, "queues")


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (
            ParameterSet("/", "c", "p", "nonsense"),
            "parameter 'p' is not JSON: Expecting value: line 1 column 1 (char 0)",
        ),
        (ParameterSet("gone", "c", "p", ""), "parameter 'p' is not JSON"),
        (ParameterSet("/", "c", "p", '"\\ud800"'), "surrogates not allowed"),
        (GlobalParameterSet("g", "{"), "global parameter 'g' is not JSON"),
        (GlobalParameterSet("g", "NaN"), "global parameter 'g' is not JSON"),
        (GlobalParameterSet("g", "[1e999]"), "global parameter 'g' is not JSON"),
        (GlobalParameterSet("g", "[" * 101 + "]" * 101), "global parameter 'g' is nested deeper than 100"),
        (GlobalParameterSet("g", "[" * 1_000_000), "global parameter 'g' is nested deeper than 100"),
        (policy("p", definition=""), "definition of policy 'p' is not JSON"),
        (policy("p", definition='["max-length"]'), "definition of policy 'p' is not an object"),
        (policy("p", definition="[" * 1_000_000), "definition of policy 'p' is nested deeper than 100"),
        (policy("p", pattern="("), "pattern of policy 'p': missing closing parenthesis"),
        (policy("p", pattern="a{99999999999}"), "pattern of policy 'p': number too big in {} quantifier"),
        (policy("p", pattern="(" * 100_000), "pattern of policy 'p': "),
        (operator_policy("", "7"), "definition of policy 'o' is not an object"),
        (operator_policy("[", "{}"), "pattern of policy 'o': "),
        (VhostCreated("v", "", (), "lazy"), "vhost 'v': there is no queue type 'lazy'"),
        (VhostCreated("w", "", (), "delayed"), "vhost 'w': there is no queue type 'delayed'"),
        (Tick(), "not an event of the metadata log"),
    ],
)
def test_nonsense_is_told_and_changes_nothing(event: Event, reason: str) -> None:
    topology = fold(
        VhostCreated("v", "", (), "quorum"),
        ParameterSet("/", "c", "p", "1"),
        GlobalParameterSet("g", "2"),
        policy("p"),
        operator_policy("q", '{"max-length":1}'),
    )
    before = topology.digest()
    assert reason in topology.apply(7, 0, BROKER, event)
    assert (topology.digest(), topology.next_offset) == (before, 8)


@pytest.mark.parametrize(
    "event",
    [
        VhostCreated("v", "", (), "stream"),
        VhostCreated("v"),
        VhostDeleted("gone"),
        unbound("x", "q"),
        GlobalParameterSet("g", "[" * 100 + "]" * 100),
        GlobalParameterSet("g", "[" + "[]," * 1_000 + "{}]"),
        ParameterSet("/", "c", "p", '"' + r"\"[[" * 1_000 + '"'),
        ParameterSet("gone", "c", "p", "1"),
        policy("p", vhost="gone"),
    ],
)
def test_what_a_broker_may_write_is_no_nonsense(event: MetadataEvent) -> None:
    assert fold().apply(0, 0, BROKER, event) == ""


def test_bindings_keep_their_order_and_are_a_set() -> None:
    b1, b2 = Bound("/", "amq.direct", "queue", "b", "k"), Bound("/", "amq.direct", "queue", "a", "k")
    topology = fold(b1, b2, b1)
    assert topology.bindings_from("/", "amq.direct") == (b1, b2)
    assert topology.bindings_to("/", "queue", "a") == (b2,)
    assert list(topology.bindings("/")) == [b1, b2]
    topology = fold(b1, b2, Unbound("/", "amq.direct", "queue", "b", "k"), Unbound("/", "x", "queue", "b", "k"))
    assert list(topology.queue_bindings()) == [b2]


def test_a_deleted_exchange_takes_its_bindings_on_both_sides() -> None:
    topology = fold(
        exchange("x"),
        exchange("y"),
        Bound("/", "x", "exchange", "y", ""),
        Bound("/", "y", "queue", "q", ""),
        Bound("/", "y", "exchange", "x", ""),
        ExchangeDeleted("/", "y"),
    )
    assert list(topology.bindings("/")) == []
    assert list(topology.queue_bindings()) == []


def test_s074_s075_a_start_ends_what_is_not_durable() -> None:
    topology = fold(
        exchange("kept"),
        exchange("lost", durable=False),
        Bound("/", "lost", "queue", "q", ""),
        Bound("/", "kept", "queue", "q", ""),
        STARTED,
    )
    assert ("/", "kept") in topology.exchanges
    assert ("/", "lost") not in topology.exchanges
    assert [bound.source for bound in topology.bindings("/")] == ["kept"]


CHAIN = (
    exchange("x1", auto_delete=True),
    exchange("x2", auto_delete=True),
    exchange("x3", auto_delete=True),
    exchange("x4"),
    bound("x1", "x2"),
    bound("x2", "x3"),
    bound("x4", "x1"),
    bound("x3", "q"),
    bound("x3", "q", "k"),
)


def test_an_auto_delete_exchange_goes_with_the_last_binding_from_it() -> None:
    assert exchanges(fold(*CHAIN, unbound("x3", "q"))) == ["x1", "x2", "x3", "x4"]
    topology = fold(*CHAIN, unbound("x3", "q"), unbound("x3", "q", "k"))
    assert exchanges(topology) == ["x4"], "and with it the only binding from x2, and so on"
    assert list(topology.bindings("/")) == []


def test_an_auto_delete_exchange_goes_when_the_exchange_that_it_is_bound_to_goes() -> None:
    topology = fold(*CHAIN, bound("x1", "q"), ExchangeDeleted("/", "x3"))
    assert exchanges(topology) == ["x1", "x4"]
    assert list(topology.bindings("/")) == [bound("x1", "q"), bound("x4", "x1")]


@pytest.mark.parametrize(
    "again",
    [
        (unbound("x", "q"),),
        (unbound("x", "q"), exchange("x", auto_delete=True)),
        (ExchangeDeleted("/", "y"),),
    ],
)
def test_an_auto_delete_exchange_that_never_had_a_binding_stays(again: tuple[MetadataEvent, ...]) -> None:
    """Not even an unbinding of nothing, or the end of a binding to it, moves it."""
    assert exchanges(fold(exchange("x", auto_delete=True), *again)) == ["x"]
    assert exchanges(fold(exchange("x", auto_delete=True), exchange("y"), bound("y", "x"), unbound("y", "x"))) == [
        "x",
        "y",
    ]


def test_an_auto_delete_exchange_bound_to_itself_goes() -> None:
    topology = fold(exchange("x", auto_delete=True), bound("x", "x"), unbound("x", "x"))
    assert exchanges(topology) == []


def test_older_logs_say_what_follows_once_more() -> None:
    """Brokers used to append an ExchangeDeleted for each exchange that went by itself."""
    told = [ExchangeDeleted("/", name) for name in ("x3", "x2", "x1")]
    last = (*CHAIN, unbound("x3", "q"), unbound("x3", "q", "k"))
    assert fold(*last, *told).digest() == fold(*last).digest()
    again = exchange("x3", auto_delete=True)
    assert fold(*last, *told, again).digest() == fold(*last, again).digest()


def test_s074_s075_a_start_deletes_no_exchange_for_want_of_bindings() -> None:
    """A durable one whose only binding was to one that was not durable comes back without it."""
    kept = (exchange("x1", auto_delete=True), exchange("x2", durable=False), bound("x1", "x2"))
    for start in (STARTED, joined("n")):
        topology = fold(*kept, start)
        assert exchanges(topology) == ["x1"]
        assert list(topology.bindings("/")) == []


def test_nodes_join_and_are_lost() -> None:
    topology = fold(joined("a"), joined("b"))
    assert topology.nodes == {0: joined("a"), 1: joined("b")}
    topology = fold(joined("a"), joined("b"), joined("a"), NodeLost("a", 0, "restarted"), NodeLost("b", 1, "lapsed"))
    assert topology.nodes == {2: joined("a")}, "a node that joins again is lost before"
    assert fold(joined("a"), NodeLost("a", 0, "stopped"), NodeLost("a", 0, "stopped")).nodes == {}


def test_exchanges_that_are_not_durable_live_as_long_as_any_node() -> None:
    made = (joined("a"), exchange("kept"), exchange("x", durable=False), bound("kept", "x"))
    assert exchanges(fold(*made, joined("b"), NodeLost("a", 0, "lapsed"))) == ["kept", "x"]
    assert exchanges(fold(*made, joined("b"), joined("a"), NodeLost("b", 4, "lapsed"), joined("b"))) == ["kept", "x"]
    assert exchanges(fold(*made, NodeLost("a", 0, "stopped"))) == ["kept", "x"], "who joins next ends them"
    for end in ((NodeLost("a", 0, "stopped"), joined("b")), (joined("a"),)):
        topology = fold(*made, *end)
        assert exchanges(topology) == ["kept"]
        assert list(topology.bindings("/")) == []


def test_nodes_are_part_of_the_digest() -> None:
    assert fold(joined("a")).digest() != fold(joined("b")).digest() != fold().digest()
    assert fold(joined("a"), NodeLost("a", 0, "stopped")).digest() == fold().digest()


def test_a_deleted_vhost_leaves_nothing() -> None:
    empty = fold().digest()
    topology = fold(
        VhostCreated("v"),
        UserSet("u", "", ()),
        exchange("x", vhost="v"),
        Bound("v", "x", "queue", "q", ""),
        policy("p", vhost="v"),
        OperatorPolicySet("v", "o", ".*", "{}", 0, "all"),
        PermissionsSet("v", "u", "", "", ""),
        TopicPermissionsSet("v", "u", "x", "", ""),
        ParameterSet("v", "vhost-limits", "limits", '{"max-queues":1}'),
        VhostDeleted("v"),
        UserDeleted("u"),
    )
    assert topology.digest() == empty


def test_what_makes_no_sense_changes_nothing() -> None:
    empty = fold().digest()
    topology = fold(
        exchange("x", vhost="nowhere"),
        Bound("/", "nowhere", "queue", "q", ""),
        policy("p", vhost="nowhere"),
        policy("p", pattern="("),
        policy("p", definition="no json"),
        PermissionsSet("/", "nobody", "", "", ""),
        PolicyCleared("/", "p"),
        ExchangeDeleted("/", "x"),
        UserDeleted("nobody"),
        VhostDeleted("nowhere"),
        TopicPermissionsSet("/", "nobody", "x", "", ""),
        TopicPermissionsCleared("/", "nobody", "x"),
        ParameterSet("nowhere", "c", "n", "1"),
        ParameterCleared("/", "c", "n"),
        GlobalParameterCleared("n"),
        UserLimitsSet("nobody", '{"max-channels":1}'),
    )
    assert topology.digest() == empty
    assert topology.next_offset == 16


USER = UserSet("u", "", ())


def test_topic_permissions_are_kept_by_exchange_and_go_with_the_user() -> None:
    first, second = TopicPermissionsSet("/", "u", "x", "^a", "^b"), TopicPermissionsSet("/", "u", "y", "", ".*")
    topology = fold(USER, first, second, TopicPermissionsCleared("/", "u", "y"))
    assert topology.topic_permissions == {("/", "u", "x"): first}
    assert topology.digest() != fold(USER).digest()
    assert fold(USER, first, second, UserDeleted("u")).digest() == fold().digest()


def test_parameters_are_set_and_cleared() -> None:
    set_, other = ParameterSet("/", "c", "n", "1"), GlobalParameterSet("g", "{}")
    topology = fold(set_, ParameterSet("/", "c", "n", "2"), other)
    assert topology.parameters == {("/", "c", "n"): ParameterSet("/", "c", "n", "2")}
    assert topology.global_parameters == {"g": other}
    assert fold(set_).digest() != fold(other).digest() != fold().digest()
    assert fold(set_, other, ParameterCleared("/", "c", "n"), GlobalParameterCleared("g")).digest() == fold().digest()


def test_limits_of_a_vhost_are_a_parameter_and_those_of_a_user_go_with_him() -> None:
    topology = fold(USER, ParameterSet("/", "vhost-limits", "limits", '{"max-queues":3,"max-connections":-1}'))
    assert topology.vhost_limits("/") == {"max-connections": -1, "max-queues": 3}
    assert topology.vhost_limits("v") == {}
    topology = fold(USER, UserLimitsSet("u", '{"max-channels":2}'))
    assert topology.user_limits == {"u": {"max-channels": 2}}
    for end in (UserLimitsSet("u", "{}"), UserLimitsSet("u", "no json"), UserLimitsSet("u", "[1]")):
        assert fold(USER, UserLimitsSet("u", '{"max-channels":2}'), end).digest() == fold(USER).digest()
    assert fold(USER, UserLimitsSet("u", '{"max-channels":2}'), UserDeleted("u")).digest() == fold().digest()
    assert fold(USER, UserLimitsSet("u", '{"max-channels":2}'), UserSet("u", "h", ())).user_limits


def test_a_vhost_that_exists_is_changed_and_keeps_what_is_in_it() -> None:
    topology = fold(VhostCreated("v", "a"), exchange("x", vhost="v"), VhostCreated("v", "b", ("t",), "quorum"))
    assert topology.vhosts["v"] == VhostCreated("v", "b", ("t",), "quorum")
    assert ("v", "x") in topology.exchanges
    assert fold(VhostCreated("v", "", ("t",))).digest() != fold(VhostCreated("v")).digest()


@pytest.mark.parametrize(
    ("policies", "queue", "kind", "expected"),
    [
        ([policy("a"), policy("b", priority=1)], "q", "classic", "b"),
        ([policy("b"), policy("a")], "q", "classic", "a"),
        ([policy("a", pattern="^orders")], "q", "classic", None),
        ([policy("a", pattern="der")], "orders", "classic", "a"),
        ([policy("a", apply_to="exchanges")], "q", "classic", None),
        ([policy("a", apply_to="quorum_queues"), policy("b", apply_to="classic_queues")], "q", "quorum", "a"),
        ([policy("a", apply_to="quorum_queues"), policy("b", apply_to="classic_queues")], "q", "classic", "b"),
        ([policy("a", apply_to="queues")], "q", "quorum", "a"),
        # a key that the type does not support keeps the whole policy away (rabbit_queue_type.erl)
        ([policy("a", 5, definition='{"delivery-limit":3,"max-length":9}'), policy("b")], "q", "classic", "b"),
        ([policy("a", 5, definition='{"delivery-limit":3,"max-length":9}'), policy("b")], "q", "quorum", "a"),
        ([policy("a", vhost="elsewhere")], "q", "classic", None),
    ],
)
def test_s167_one_policy_applies(policies: list[PolicySet], queue: str, kind: str, expected: str | None) -> None:
    found = fold(*policies).effective_policy("/", queue, kind)
    assert (None if found is None else found.name) == expected


def test_a_policys_version_is_the_offset_of_its_event() -> None:
    topology = fold(STARTED, policy("p"), STARTED, policy("p", definition='{"max-length":2}'))
    found = topology.effective_policy("/", "q", "classic")
    assert found is not None
    assert (found.version, found.definition) == (3, '{"max-length":2}')
    assert topology.effective_operator_policy("/", "q", "classic") is None
