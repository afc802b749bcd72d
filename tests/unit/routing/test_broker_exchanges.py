"""Exchanges through the broker: bound to each other, alternate, internal, by hash (S-168); who may use which topic."""

from collections import Counter
from typing import Any

import pytest
from pamqp import commands

from rewindmq.engine.amqp.basic_publish import BasicPublish, message, route_by_content
from rewindmq.engine.errors import AccessRefused, PreconditionFailed
from rewindmq.engine.routing.exchange_types import jump
from rewindmq.schemas.amqp.properties import parse
from rewindmq.schemas.metadata_events import ExchangeDeclared, TopicPermissionsSet
from rewindmq.schemas.values import BROKER, Actor
from tests.support.broker_harness import Harness, args, refusal


def send(h: Harness, exchange: str, key: str, body: bytes = b"m", **properties: Any) -> list[str]:
    """Publish as a channel does; the queues that it went to."""
    session = h.session()
    raw = commands.Basic.Properties(delivery_mode=2, **properties).marshal()
    parsed = parse(raw)
    publishing = BasicPublish(exchange, key, mandatory=False)
    publishing.needs_content = h.broker.router.needs_content("/", exchange)
    destinations = route_by_content(publishing, parsed, h.broker, session)
    for destination in destinations:
        destination.partition.publish(session.actor, message(destination, parsed, body))
    h.settle()
    return sorted(name for destination in destinations for name in destination.route.queues)


def bound(h: Harness, exchange: str, *bindings: tuple[str, str]) -> None:
    """Queues, declared here, each bound with a key."""
    session = h.session()
    for queue, key in bindings:
        if h.broker.queues.get("/", queue) is None:
            h.declare(session, queue)
        h.bind(session, exchange, queue, key)


def to_exchange(h: Harness, source: str, destination: str, key: str = "") -> None:
    h.broker.exchanges.bind(h.session(), source, "exchange", destination, key, ())


# -- exchange to exchange ---------------------------------------------------------------------------------------------


def test_a_message_that_comes_by_two_ways_is_once_in_the_queue(h: Harness) -> None:
    session = h.session()
    for name in ("in", "left", "right", "out"):
        h.exchange(session, name, "fanout", internal=name != "in")
    for source, destination in (("in", "left"), ("in", "right"), ("left", "out"), ("right", "out"), ("out", "in")):
        to_exchange(h, source, destination)
    bound(h, "out", ("q", ""), ("other", ""))
    bound(h, "in", ("q", ""))
    assert send(h, "in", "k") == ["other", "q"]
    assert h.ready("q") == h.ready("other") == [b"m"]


def test_auto_delete_exchanges_go_as_a_chain(h: Harness) -> None:
    """The last binding from an exchange was the last one from the exchange before it."""
    session = h.session()
    for name in ("first", "second", "third"):
        h.exchange(session, name, "fanout", auto_delete=True)
    to_exchange(h, "first", "second")
    to_exchange(h, "second", "third")
    bound(h, "third", ("q", ""))
    assert send(h, "first", "") == ["q"]
    h.broker.queues.delete(session, "q", False, False)
    h.settle()
    assert not [name for _, name in h.broker.topology.exchanges if not name.startswith("amq.") and name]


def test_if_unused_looks_at_bindings_from_the_exchange_only(h: Harness) -> None:
    session = h.session()
    h.exchange(session, "source", "direct")
    h.exchange(session, "sink", "direct")
    to_exchange(h, "source", "sink", "k")
    with refusal(PreconditionFailed, "exchange 'source' in vhost '/' in use"):
        h.broker.exchanges.delete(session, "source", True)
    h.broker.exchanges.delete(session, "sink", True)
    h.broker.exchanges.delete(session, "source", True)  # its binding went with the other


# -- alternate exchanges ----------------------------------------------------------------------------------------------


def alternate(h: Harness, name: str, spare: str) -> None:
    h.exchange(h.session(), name, "direct", arguments=args(alternate_exchange=spare))


def test_alternate_exchanges_are_a_chain_and_may_be_a_circle(h: Harness) -> None:
    alternate(h, "a", "b")
    alternate(h, "b", "c")
    alternate(h, "c", "a")
    assert send(h, "a", "k") == []
    bound(h, "c", ("q", "k"))
    assert send(h, "a", "k") == ["q"]
    assert send(h, "a", "other") == []


def test_an_alternate_exchange_that_is_not_there_drops(h: Harness) -> None:
    alternate(h, "a", "nowhere")
    bound(h, "a", ("q", "k"))
    assert send(h, "a", "other") == []
    assert send(h, "a", "k") == ["q"]


def test_the_default_exchange_is_no_alternate_exchange(h: Harness) -> None:
    """RabbitMQ takes the declaration, and drops the message."""
    alternate(h, "a", "")
    h.declare(h.session(), "q")
    assert send(h, "a", "q") == []


def test_an_alternate_exchange_may_be_internal(h: Harness) -> None:
    h.exchange(h.session(), "inner", "fanout", internal=True)
    alternate(h, "a", "inner")
    bound(h, "inner", ("q", ""))
    assert send(h, "a", "k") == ["q"]


def test_any_matching_key_keeps_a_message_from_the_alternate_exchange(h: Harness) -> None:
    """CC and BCC are keys of the same message."""
    alternate(h, "a", "amq.fanout")
    bound(h, "amq.fanout", ("spare", ""))
    bound(h, "a", ("q", "copy"))
    assert send(h, "a", "k", headers={"CC": ["copy"]}) == ["q"]
    assert send(h, "a", "k", headers={"BCC": ["copy"]}) == ["q"]
    assert send(h, "a", "k", headers={"CC": ["nobody"]}) == ["spare"]


def test_an_alternate_exchange_is_asked_again_when_the_queue_is_gone(h: Harness) -> None:
    alternate(h, "a", "amq.fanout")
    bound(h, "amq.fanout", ("spare", ""))
    bound(h, "a", ("q", "k"))
    assert send(h, "a", "k") == ["q"]
    h.broker.queues.delete(h.session(), "q", False, False)
    assert send(h, "a", "k") == ["spare"]


def test_the_argument_goes_before_the_policy(h: Harness) -> None:
    alternate(h, "a", "amq.fanout")
    h.exchange(h.session(), "b", "direct")
    bound(h, "amq.fanout", ("by-argument", ""))
    bound(h, "amq.topic", ("by-policy", "#"))
    h.broker.policies.set(Actor("guest", 0), "/", "ae", "^[ab]$", {"alternate-exchange": "amq.topic"}, 0, "exchanges")
    assert send(h, "a", "k") == ["by-argument"]
    assert send(h, "b", "k") == ["by-policy"]
    h.broker.policies.set(Actor("guest", 0), "/", "other", "^b$", {"alternate-exchange": "amq.fanout"}, 9, "all")
    assert send(h, "b", "k") == ["by-argument"]
    h.broker.policies.clear(Actor("guest", 0), "/", "other")
    h.broker.policies.clear(Actor("guest", 0), "/", "ae")
    assert send(h, "b", "k") == []


# -- headers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "headers", "matches"),
    [
        ("all", {"a": 1, "b": 2}, True),
        ("all", {"a": 1}, False),
        ("any", {"a": 1}, True),
        ("any", {"x-c": 3}, False),
        ("any-with-x", {"x-c": 3}, True),
        ("all-with-x", {"a": 1, "b": 2}, False),
        ("all-with-x", {"a": 1, "b": 2, "x-c": 3}, True),
    ],
)
def test_headers_modes(h: Harness, mode: str, headers: dict[str, int], matches: bool) -> None:
    session = h.session()
    h.declare(session, "q")
    h.bind(session, "amq.match", "q", x_match=mode, a=1, b=2, x_c=3)
    assert send(h, "amq.match", "ignored", headers=headers) == (["q"] if matches else [])


# -- by hash ----------------------------------------------------------------------------------------------------------


def hashing(h: Harness, name: str = "hash", **arguments: Any) -> None:
    h.exchange(h.session(), name, "x-consistent-hash", arguments=args(**arguments))


def test_s168_weights_share_the_keys_out(h: Harness) -> None:
    hashing(h)
    bound(h, "hash", ("one", "1"), ("three", "3"))
    found = Counter(each.queues for n in range(4_000) for each in routes(h, "hash", f"key-{n}"))
    assert sum(found.values()) == 4_000
    assert 850 < found["one",] < 1_150
    assert routes(h, "hash", "key-1") == routes(h, "hash", "key-1")


def routes(h: Harness, exchange: str, key: str) -> list[Any]:
    return [each.route for each in h.broker.router.route("/", exchange, key, None)]


def test_s168_a_new_binding_moves_keys_to_itself_only(h: Harness) -> None:
    hashing(h)
    bound(h, "hash", ("a", "10"), ("b", "10"), ("c", "10"))
    before = {f"{n}": routes(h, "hash", f"{n}")[0].queues for n in range(2_000)}
    bound(h, "hash", ("d", "10"))
    after = {key: routes(h, "hash", key)[0].queues for key in before}
    moved = {key for key in before if before[key] != after[key]}
    assert {after[key] for key in moved} == {("d",)}
    assert 400 < len(moved) < 600
    h.broker.queues.delete(h.session(), "d", False, False)
    assert {key: routes(h, "hash", key)[0].queues for key in before} == before


def test_the_jump_hash_is_lamping_and_veachs() -> None:
    """Vectors that other implementations of it are tested with."""
    assert [jump(1, 1), jump(42, 57), jump(0xDEAD10CC, 1), jump(0xDEAD10CC, 666)] == [0, 43, 0, 361]
    assert jump(256, 1024) == 520


@pytest.mark.parametrize(
    ("arguments", "same", "other"),
    [
        ({"hash_header": "who"}, [{"headers": {"who": "ann"}}], {"headers": {"who": "%d"}}),
        ({"hash_property": "message_id"}, [{"message_id": "7"}], {"message_id": "%d"}),
        ({"hash_property": "correlation_id"}, [{"correlation_id": "7"}], {"correlation_id": "%d"}),
    ],
)
def test_a_header_or_property_is_hashed(h: Harness, arguments: Any, same: Any, other: dict[str, Any]) -> None:
    hashing(h, **arguments)
    bound(h, "hash", *((f"q{n}", "1") for n in range(4)))
    assert len({send(h, "hash", f"{n}", **same[0])[0] for n in range(20)}) == 1
    assert len({send(h, "hash", f"{n}")[0] for n in range(20)}) == 1  # without it: always the same
    assert len({send(h, "hash", "k", **numbered(other, n))[0] for n in range(40)}) == 4


def numbered(properties: dict[str, Any], n: int) -> dict[str, Any]:
    return {key: numbered(value, n) if isinstance(value, dict) else value % n for key, value in properties.items()}


def test_a_hash_may_pick_an_exchange(h: Harness) -> None:
    hashing(h)
    h.broker.exchanges.bind(h.session(), "hash", "exchange", "amq.fanout", "1", ())
    bound(h, "amq.fanout", ("q", ""), ("r", ""))
    assert send(h, "hash", "anything") == ["q", "r"]


HASHES = [
    ({"hash_header": "a", "hash_property": "message_id"}, "hash-header and hash-property are mutually exclusive"),
    ({"hash_property": "app_id"}, "Unsupported property: app_id"),
    ({"hash_header": 1}, "invalid type 'signedint' for arg 'hash-header' in exchange 'hash' in vhost '/'"),
]


@pytest.mark.parametrize(("arguments", "text"), HASHES)
def test_consistent_hash_exchanges_refused(h: Harness, arguments: dict[str, Any], text: str) -> None:
    with refusal(PreconditionFailed, text):
        hashing(h, **arguments)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("many", 'The binding key must be an integer: <<"many">>'),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        ("", "The binding key must be an integer: <<>>"),
        ("0", "The binding key must be greater than 0"),
        ("-3", "The binding key must be greater than 0"),
    ],
)
def test_weights_refused(h: Harness, key: str, text: str) -> None:
    hashing(h)
    with refusal(PreconditionFailed, text):
        bound(h, "hash", ("q", key))


def test_a_destination_counts_once_with_the_weight_it_has_first(h: Harness) -> None:
    hashing(h)
    bound(h, "hash", ("a", "1"), ("b", "1"), ("b", "1000"))
    found = Counter(routes(h, "hash", f"{n}")[0].queues for n in range(1_000))
    assert 400 < found["a",] < 600


def test_chance_and_modulus_pick_one(h: Harness) -> None:
    for kind in ("x-random", "x-modulus-hash"):
        h.exchange(h.session(), kind, kind)
        assert send(h, kind, "k") == []
        bound(h, kind, ("q0", "a"), ("q1", "b"), ("q2", ""))
        picked = [send(h, kind, f"{n}") for n in range(60)]
        assert {len(each) for each in picked} == {1}
        assert len({each[0] for each in picked}) == 3
    assert len({send(h, "x-modulus-hash", "k")[0] for _ in range(20)}) == 1
    assert len({send(h, "x-random", "k")[0] for _ in range(60)}) == 3


# -- an exchange that RabbitMQ's federation declares ------------------------------------------------------------------


def upstream(h: Harness, max_hops: int = 2) -> None:
    """An exchange `shop`, which the RabbitMQ `east`, vhost `v`, federates; its link's queue is `link`."""
    federates: dict[str, Any] = {"x-max-hops": max_hops, "x-downstream-name": "east", "x-downstream-vhost": "v"}
    h.exchange(h.session(), "shop", "topic")
    h.exchange(h.session(), "link of shop", "x-federation-upstream", internal=True, arguments=args(**federates))
    to_exchange(h, "shop", "link of shop", "a.#")
    bound(h, "link of shop", ("link", "any"))


@pytest.mark.parametrize(
    ("been", "queues"),
    [
        (None, ["link"]),
        ("no list", ["link"]),
        ([], ["link"]),
        ([{"cluster-name": "west", "vhost": "v"}], ["link"]),
        ([{"cluster-name": "east", "vhost": "other"}], ["link"]),
        ([{"cluster-name": "east", "vhost": "v"}], []),
        ([{"cluster-name": "west", "vhost": "v"}, {"cluster-name": "north", "vhost": "v"}], []),
    ],
    ids=["nowhere", "no list", "empty", "another", "another vhost", "there", "too many hops"],
)
def test_b53_a_federated_message_does_not_go_where_it_has_been(h: Harness, been: Any, queues: list[str]) -> None:
    upstream(h)
    headers = {} if been is None else {"x-received-from": been}
    assert send(h, "shop", "a.b", headers=headers) == queues
    assert send(h, "shop", "b", headers=headers) == []


def test_b53_a_federation_says_how_many_hops(h: Harness) -> None:
    with refusal(PreconditionFailed, "Invalid argument, 'x-max-hops' must be a number"):
        h.exchange(h.session(), "x", "x-federation-upstream")


# -- topic permissions ------------------------------------------------------------------------------------------------


@pytest.fixture
def ann(h: Harness) -> Any:
    h.broker.access.users.set(Actor("guest", 0), "ann", "secret", ())
    h.broker.access.users.set_permissions(Actor("guest", 0), "/", "ann", ".*", ".*", ".*")
    return h.session("ann")


def allow(h: Harness, write: str, read: str) -> None:
    h.broker.metadata.append(BROKER, TopicPermissionsSet("/", "ann", "amq.topic", write, read))


def test_topic_permissions_hold_for_the_exchange_that_they_name(h: Harness, ann: Any) -> None:
    h.declare(ann, "q")
    h.exchange(ann, "other", "topic")
    allow(h, r"^{username}\.", r"^{vhost}-news\.")
    h.broker.exchanges.route(ann, "amq.topic", "ann.x", None)
    h.broker.exchanges.route(ann, "other", "bob.x", None)
    h.broker.exchanges.route(ann, "amq.direct", "bob.x", None)
    h.broker.exchanges.route(h.session(), "amq.topic", "bob.x", None)
    with refusal(
        AccessRefused, "write access to topic 'bob.x' in exchange 'amq.topic' in vhost '/' refused for user 'ann'"
    ):
        h.broker.exchanges.route(ann, "amq.topic", "bob.x", None)
    h.bind(ann, "amq.topic", "q", "/-news.#")
    text = "read access to topic '#' in exchange 'amq.topic' in vhost '/' refused for user 'ann'"
    with refusal(AccessRefused, text):
        h.bind(ann, "amq.topic", "q", "#")
    with refusal(AccessRefused, text):
        h.broker.exchanges.unbind(ann, "amq.topic", "queue", "q", "#", ())
    with refusal(AccessRefused, text):
        h.broker.exchanges.bind(ann, "amq.topic", "exchange", "other", "#", ())


def test_an_empty_topic_permission_allows_the_empty_key_only(h: Harness, ann: Any) -> None:
    allow(h, "", ".*")
    h.broker.exchanges.route(ann, "amq.topic", "", None)
    with pytest.raises(AccessRefused):
        h.broker.exchanges.route(ann, "amq.topic", "k", None)


def test_a_change_of_topic_permissions_is_seen_by_channels(h: Harness, ann: Any) -> None:
    publishing = BasicPublish("amq.topic", "k", mandatory=False)
    publishing.resolve(h.broker, ann, None)
    assert publishing.version == h.broker.router.version
    allow(h, "^other", ".*")
    assert publishing.version != h.broker.router.version
    with pytest.raises(AccessRefused):
        publishing.resolve(h.broker, ann, None)


def test_a_pattern_that_a_name_breaks_matches_nothing(h: Harness) -> None:
    h.broker.access.users.set(Actor("guest", 0), "(", "secret", ())
    h.broker.access.users.set_permissions(Actor("guest", 0), "/", "(", ".*", ".*", ".*")
    h.broker.metadata.append(BROKER, TopicPermissionsSet("/", "(", "amq.topic", "{username}", ".*"))
    with pytest.raises(AccessRefused):
        h.broker.exchanges.route(h.session("("), "amq.topic", "(", None)


def test_permissions_for_an_alternate_exchange_count_when_it_is_declared(h: Harness) -> None:
    h.broker.access.users.set(Actor("guest", 0), "ann", "secret", ())
    h.broker.access.users.set_permissions(Actor("guest", 0), "/", "ann", ".*", "^mine", "^mine")
    ann = h.session("ann")
    with refusal(AccessRefused, "write access to exchange 'amq.fanout' in vhost '/' refused for user 'ann'"):
        h.exchange(ann, "mine", "direct", arguments=args(alternate_exchange="amq.fanout"))
    with refusal(AccessRefused, "read access to exchange 'yours' in vhost '/' refused for user 'ann'"):
        h.exchange(ann, "yours", "direct", arguments=args(alternate_exchange="mine"))
    h.exchange(ann, "mine", "direct", arguments=args(alternate_exchange="mine-too"))


def test_exchanges_survive_a_restart_with_their_types(h: Harness) -> None:
    hashing(h, hash_header="who")
    bound(h, "hash", *((f"q{n}", "1") for n in range(4)))
    before = [send(h, "hash", "", headers={"who": f"{n}"}) for n in range(20)]
    h.restart()
    assert [send(h, "hash", "", headers={"who": f"{n}"}) for n in range(20)] == before
    assert isinstance(h.broker.topology.exchanges["/", "hash"], ExchangeDeclared)
