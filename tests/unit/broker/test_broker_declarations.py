"""Declarations and their refusals: codes and texts word for word (docs/behaviours/limits.md, ttl.md, queues.md)."""

from typing import Any

import pytest

from rewindmq.engine.errors import AccessRefused, NotFound, NotImplementedByBroker, PreconditionFailed, ResourceLocked
from rewindmq.schemas.values import Actor, Argument
from tests.support.broker_harness import Client, Harness, args, refusal

Q = "queue 'q' in vhost '/'"


BAD_ARGUMENTS = [
    ("S-020", args(x_max_length=-1), f"invalid arg 'x-max-length' for {Q}: {{value_negative,-1}}"),
    ("S-021", args(x_max_length_bytes=-7), f"invalid arg 'x-max-length-bytes' for {Q}: {{value_negative,-7}}"),
    (
        "S-021",
        args(x_max_length_bytes="7"),
        f"invalid arg 'x-max-length-bytes' for {Q}: \"expected integer, got longstr\"",
    ),
    ("S-023", args(x_overflow="drop-tail"), f"invalid arg 'x-overflow' for {Q}: invalid_overflow"),
    ("S-023", args(x_overflow=1), f"invalid arg 'x-overflow' for {Q}: {{unacceptable_type,signedint}}"),
    ("S-036", args(x_message_ttl=-1), f"invalid arg 'x-message-ttl' for {Q}: {{value_negative,-1}}"),
    (
        "S-036",
        args(x_message_ttl=315_360_000_001),
        f"invalid arg 'x-message-ttl' for {Q}: {{value_too_large,315360000001}}",
    ),
    ("S-038", args(x_message_ttl="60000"), f"invalid arg 'x-message-ttl' for {Q}: \"expected integer, got longstr\""),
    ("S-038", args(x_message_ttl=1.5), f"invalid arg 'x-message-ttl' for {Q}: \"expected integer, got double\""),
    ("S-057", args(x_expires=0), f"invalid arg 'x-expires' for {Q}: {{value_zero,0}}"),
    ("S-057", args(x_expires=-1), f"invalid arg 'x-expires' for {Q}: {{value_negative,-1}}"),
    (
        "S-072",
        args(x_dead_letter_routing_key="k"),
        f"invalid arg 'x-dead-letter-routing-key' for {Q}: routing_key_but_no_dlx_defined",
    ),
    (
        "S-072",
        args(x_queue_type="mirrored"),
        f"invalid arg 'x-queue-type' for {Q}: \"unsupported queue type 'mirrored'\"",
    ),
    ("S-072", args(x_queue_type=1), f"invalid arg 'x-queue-type' for {Q}: {{unacceptable_type,signedint}}"),
    ("S-072", args(x_queue_version=3), f"invalid arg 'x-queue-version' for {Q}: \"unsupported queue version '3'\""),
    ("S-072", args(x_queue_mode="eager"), f"invalid arg 'x-queue-mode' for {Q}: \"unsupported queue mode 'eager'\""),
    ("S-072", args(x_delivery_limit=3), f"invalid arg 'x-delivery-limit' for {Q} of queue type rabbit_classic_queue"),
    (
        "S-072",
        args(x_queue_type="quorum", x_queue_mode="lazy"),
        f"invalid arg 'x-queue-mode' for {Q} of queue type rabbit_quorum_queue",
    ),
    (
        "S-072",
        args(x_queue_type="quorum", x_dead_letter_strategy="maybe"),
        f"invalid arg 'x-dead-letter-strategy' for {Q}: invalid_dlx_strategy",
    ),
    ("S-103", args(x_max_priority=256), f"invalid arg 'x-max-priority' for {Q}: {{max_value_exceeded,256}}"),
    (
        "S-109",
        args(x_single_active_consumer="yes"),
        f"invalid arg 'x-single-active-consumer' for {Q}: {{unacceptable_type,longstr}}",
    ),
    (
        "S-116",
        args(x_queue_type="quorum", x_quorum_initial_group_size=0),
        f"invalid arg 'x-quorum-initial-group-size' for {Q}: {{value_zero,0}}",
    ),
]


@pytest.mark.parametrize(("number", "arguments", "text"), BAD_ARGUMENTS)
def test_bad_argument_is_refused_with_rabbitmqs_text(
    h: Harness, number: str, arguments: tuple[Argument, ...], text: str
) -> None:
    with refusal(PreconditionFailed, text):
        h.declare(h.session(), "q", arguments)
    assert h.broker.queues.get("/", "q") is None


GOOD_ARGUMENTS = [
    ("S-022", args(x_max_length=0, x_max_length_bytes=0)),
    ("S-023", args(x_overflow="reject-publish-dlx")),
    ("S-025", args(x_queue_type="quorum", x_overflow="reject-publish-dlx")),
    ("S-036", args(x_message_ttl=315_360_000_000)),
    ("S-039", args(x_message_ttl=0)),
    ("S-072", args(x_unknown_key="kept", x_queue_version=2, x_queue_mode="lazy")),
    ("S-110", args(x_single_active_consumer=False)),
    ("S-114", args(x_queue_type="quorum", x_delivery_limit=3, x_quorum_initial_group_size=3)),
    ("S-114", args(x_queue_type="quorum", x_quorum_initial_group_size=1)),
]


@pytest.mark.parametrize(("number", "arguments"), GOOD_ARGUMENTS)
def test_good_arguments_are_kept(h: Harness, number: str, arguments: tuple[Argument, ...]) -> None:
    assert h.declare(h.session(), "q", arguments).arguments == arguments


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"durable": False}, f"invalid property 'non-durable' for {Q}"),
        ({"auto_delete": True}, f"invalid property 'auto-delete' for {Q}"),
        ({"exclusive": True}, f"invalid property 'exclusive-owner' for {Q}"),
    ],
)
def test_s079_s087_what_a_quorum_queue_cannot_be(h: Harness, flags: dict[str, bool], text: str) -> None:
    """S-112."""
    with refusal(PreconditionFailed, text):
        h.declare(h.session(), "q", args(x_queue_type="quorum"), **flags)


def test_s063_reserved_names(h: Harness) -> None:
    session = h.session()
    with refusal(AccessRefused, "queue name 'amq.x' contains reserved prefix 'amq.*'"):
        h.declare(session, "amq.x")
    with refusal(NotFound, "no queue 'amq.x' in vhost '/'"):
        h.declare(session, "amq.x", passive=True)
    with refusal(AccessRefused, "exchange name 'amq.x' contains reserved prefix 'amq.*'"):
        h.exchange(session, "amq.x", "direct")
    assert h.declare(session, "a\r\nb").name == "ab"


def test_s064_an_empty_name_is_given_one(h: Harness) -> None:
    session = h.session()
    first, second = h.declare(session, "", exclusive=True), h.declare(session, "", exclusive=True)
    assert first.name.startswith("amq.gen-")
    assert first.name != second.name
    assert h.declare(session, first.name, passive=True) is first
    with refusal(PreconditionFailed, "Cannot declare a server-named queue for type rabbit_quorum_queue"):
        h.declare(session, "", args(x_queue_type="quorum"))


def test_s066_redeclaring_the_same_appends_nothing(h: Harness) -> None:
    session = h.session()
    queue = h.declare(session, "q", args(x_max_length=5))
    partition = h.broker.queues.partition_for("/", "q")
    before = partition.log.next_offset
    assert h.declare(session, "q", args(x_max_length=5)) is queue
    assert partition.log.next_offset == before


@pytest.mark.parametrize("passive", [False, True])
def test_s053_redeclaring_a_queue_with_a_lease_renews_it(h: Harness, passive: bool) -> None:
    """Passively as well: rabbit_amqqueue_process.erl renews the lease on `stat`."""
    session = h.session()
    h.declare(session, "q", args(x_expires=1_000))
    h.pass_time(900)
    h.declare(session, "q", args(x_expires=1_000), passive=passive)
    h.pass_time(900)
    assert h.broker.queues.get("/", "q") is not None
    h.pass_time(200)
    assert h.broker.queues.get("/", "q") is None


def test_what_is_due_happens_before_a_decision(h: Harness) -> None:
    """The lease has ended though the timer has not rung yet."""
    session = h.session()
    first = h.declare(session, "q", args(x_expires=1_000))
    h.now_ms += 1_001
    with refusal(NotFound, "no queue 'q' in vhost '/'"):
        h.consume(session, "q", Client())
    with refusal(NotFound, "no queue 'q' in vhost '/'"):
        h.declare(session, "q", passive=True)
    assert h.declare(session, "q") is not first


INEQUIVALENT = [
    ({"durable": False}, (), f"inequivalent arg 'durable' for {Q}: received 'false' but current is 'true'"),
    ({"auto_delete": True}, (), f"inequivalent arg 'auto_delete' for {Q}: received 'true' but current is 'false'"),
    ({}, args(x_max_length=6), f"inequivalent arg 'x-max-length' for {Q}: received '6' but current is '5'"),
    (
        {},
        (),
        f"inequivalent arg 'x-max-length' for {Q}: received none but current is the value '5' of type 'signedint'",
    ),
    (
        {},
        args(x_max_length=5, x_overflow="drop-head"),
        f"inequivalent arg 'x-overflow' for {Q}: received the value 'drop-head' of type 'longstr' but current is none",
    ),
    (
        {},
        args(x_max_length=5, x_queue_type="quorum"),
        f"inequivalent arg 'x-queue-type' for {Q}: received the value 'quorum' of type 'longstr' but current is none",
    ),
]


@pytest.mark.parametrize(("flags", "arguments", "text"), INEQUIVALENT)
def test_s067_other_attributes_are_refused(
    h: Harness, flags: dict[str, bool], arguments: tuple[Argument, ...], text: str
) -> None:
    session = h.session()
    h.declare(session, "q", args(x_max_length=5))
    with refusal(PreconditionFailed, text):
        h.declare(session, "q", arguments, **flags)


def test_s067_integer_types_and_an_explicit_classic_type_are_equal(h: Harness) -> None:
    session = h.session()
    queue = h.declare(session, "q", args(x_max_length=5))
    same = (Argument("x-max-length", "long", 5), *args(x_queue_type="classic", x_other="ignored"))
    assert h.declare(session, "q", same) is queue


def test_s068_s069_passive(h: Harness) -> None:
    session = h.session()
    with refusal(NotFound, "no queue 'q' in vhost '/'"):
        h.declare(session, "q", passive=True)
    queue = h.declare(session, "q", args(x_max_length=5))
    assert h.declare(session, "q", passive=True, durable=False) is queue


def test_s081_s082_s083_s084_exclusive(h: Harness) -> None:
    owner, other = h.session(), h.session()
    queue = h.declare(owner, "q", exclusive=True)
    assert not queue.durable
    locked = (
        f"cannot obtain exclusive access to locked {Q}. It could be originally declared on another connection or the"
        " exclusive property value does not match that of the original declaration."
    )
    client = Client()
    for forbidden in (
        lambda: h.declare(other, "q", exclusive=True),
        lambda: h.declare(other, "q", passive=True),
        lambda: h.declare(owner, "q", durable=False),
        lambda: h.consume(other, "q", client),
        lambda: h.broker.consumers.fetch(other, 1, client, "q", True),
        lambda: h.broker.queues.purge(other, "q"),
        lambda: h.broker.queues.delete(other, "q", False, False),
        lambda: h.bind(other, "amq.direct", "q"),
    ):
        with refusal(ResourceLocked, locked):
            forbidden()
    h.bind(owner, "amq.direct", "q", "k")
    h.broker.sessions.close_channel(owner, 1)
    assert h.broker.queues.get("/", "q") is queue
    h.broker.sessions.close(owner)
    h.settle()
    assert h.broker.queues.get("/", "q") is None
    assert not h.broker.topology.bindings_from("/", "amq.direct")


def test_s132_delete_flags(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    h.declare(session, "k", args(x_queue_type="quorum"))
    h.publish(session, "", "q", b"1")
    h.consume(session, "k", Client())
    with refusal(PreconditionFailed, f"{Q} not empty"):
        h.broker.queues.delete(session, "q", False, True)
    with refusal(
        NotImplementedByBroker,
        "cannot delete queue 'k' in vhost '/'. queue.delete operations with if-unused flag set are not supported by"
        " quorum queues",
    ):
        h.broker.queues.delete(session, "k", True, False)
    assert h.broker.queues.delete(session, "q", True, False) == 1
    assert h.broker.queues.delete(session, "q", False, False) == 0
    h.declare(session, "q")
    h.consume(session, "q", Client())
    with refusal(PreconditionFailed, f"{Q} in use"):
        h.broker.queues.delete(session, "q", True, False)


def test_purge_counts_and_is_logged(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    for number in range(3):
        h.publish(session, "", "q", b"%d" % number)
    assert h.broker.queues.purge(session, "q") == 3
    assert h.broker.queues.purge(session, "q") == 0
    with refusal(NotFound, "no queue 'nope' in vhost '/'"):
        h.broker.queues.purge(session, "nope")


def test_the_declaration_carries_the_effective_policies(h: Harness) -> None:
    """A partition can be folded with nothing but itself (docs/design.md#the-log)."""
    h.broker.policies.set(Actor("guest", 0), "/", "lim", "^q", {"max-length": 3}, 0, "queues")
    h.broker.operator_policies.set(Actor("guest", 0), "/", "ops", ".*", {"max-length": 2}, 0, "queues")
    queue = h.declare(h.session(), "q")
    assert queue.policy is not None
    assert queue.operator_policy is not None
    assert (queue.policy.name, queue.operator_policy.name, queue.settings.max_length) == ("lim", "ops", 2)


EXCHANGES = [
    (
        ("x", "fanout"),
        {},
        "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'fanout' but current is 'direct'",
    ),
    (
        ("x", "direct"),
        {"durable": False},
        "inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'false' but current is 'true'",
    ),
    (
        ("x", "direct"),
        {"internal": True},
        "inequivalent arg 'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'",
    ),
    (
        ("x", "direct"),
        {"arguments": args(alternate_exchange="y")},
        "inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': received the value 'y' of type 'longstr'"
        " but current is none",
    ),
    (("y", "x-recent"), {}, "unknown exchange type 'x-recent'"),
    (("y", ""), {}, "invalid exchange type ''"),
    (
        ("y", "direct"),
        {"arguments": args(alternate_exchange=1)},
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'y' in vhost '/'",
    ),
]


@pytest.mark.parametrize(("what", "flags", "text"), EXCHANGES)
def test_exchange_declarations_refused(h: Harness, what: tuple[str, str], flags: dict[str, Any], text: str) -> None:
    session = h.session()
    h.exchange(session, "x", "direct")
    with refusal(PreconditionFailed, text):
        h.exchange(session, *what, **flags)


def test_exchange_rules(h: Harness) -> None:
    session = h.session()
    h.exchange(session, "amq.topic", "topic")  # it is there, and the same
    for wrong in (
        lambda: h.exchange(session, "", "direct"),
        lambda: h.exchange(session, "", "direct", passive=True),
        lambda: h.broker.exchanges.delete(session, "", False),
        lambda: h.bind(session, "", "q"),
    ):
        with refusal(AccessRefused, "operation not permitted on the default exchange"):
            wrong()
    with refusal(AccessRefused, "deletion of system exchange 'amq.topic' in vhost '/' not allowed"):
        h.broker.exchanges.delete(session, "amq.topic", False)
    with refusal(NotFound, "no exchange 'nope' in vhost '/'"):
        h.exchange(session, "nope", "direct", passive=True)
    h.broker.exchanges.delete(session, "nope", False)
    with refusal(NotFound, "no exchange 'nope' in vhost '/'"):
        h.broker.exchanges.route(session, "nope", "k", None)
    h.exchange(session, "inner", "fanout", internal=True)
    with refusal(AccessRefused, "cannot publish to internal exchange 'inner' in vhost '/'"):
        h.broker.exchanges.route(session, "inner", "k", None)


def test_bindings_refused(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    with refusal(NotFound, "no exchange 'nope' in vhost '/'"):
        h.bind(session, "nope", "q")
    with refusal(NotFound, "no queue 'nope' in vhost '/'"):
        h.bind(session, "amq.direct", "nope")
    with refusal(NotFound, "no exchange 'nope' in vhost '/'"):
        h.broker.exchanges.bind(session, "amq.direct", "exchange", "nope", "", ())
    with refusal(
        PreconditionFailed,
        'Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x',
    ):
        h.bind(session, "amq.headers", "q", x_match="some")
    h.broker.exchanges.unbind(session, "nope", "queue", "nope", "", ())


def test_exchange_in_use_and_auto_delete(h: Harness) -> None:
    session = h.session()
    h.declare(session, "q")
    h.exchange(session, "a", "direct", auto_delete=True)
    h.exchange(session, "b", "direct", auto_delete=True)
    h.broker.exchanges.bind(session, "a", "exchange", "b", "k", ())
    h.bind(session, "b", "q", "k")
    with refusal(PreconditionFailed, "exchange 'b' in vhost '/' in use"):
        h.broker.exchanges.delete(session, "b", True)
    h.broker.queues.delete(session, "q", False, False)  # unbinds b when it is durable, whose end unbinds a
    h.settle()
    assert not {("/", "a"), ("/", "b")} & set(h.broker.topology.exchanges)


def test_a_refused_declaration_leaves_no_event(h: Harness) -> None:
    """Decide before appending (docs/style.md#habits)."""
    session = h.session()
    partition = h.broker.queues.partition_for("/", "q")
    before = partition.log.next_offset
    for arguments in (args(x_max_length=-1), args(x_max_age="1"), args(x_max_priority=256)):
        with pytest.raises(PreconditionFailed):
            h.declare(session, "q", arguments)
    assert partition.log.next_offset == before
    h.declare(session, "q")
    assert partition.log.next_offset == before + 1


def test_s076_s077_s078_a_transient_queue_saves_nothing(h: Harness) -> None:
    """Durable or not, a message is one event and confirmed with the same commit; only a restart tells them apart."""
    session, confirms = h.session(), Client()
    events = []
    for durable in (True, False):
        queue = h.declare(session, "q", durable=durable)
        log = h.broker.queues.partition_for("/", "q").log
        before = log.next_offset
        for number in range(10):
            h.publish(session, "", "q", b"%d" % number, confirms)
        events.append(log.next_offset - before)
        assert queue.messages_ready == 10
        h.settle()
        h.broker.queues.delete(session, "q", False, False)
    assert events == [10, 10]
    assert [refused for _, refused in confirms.confirms] == [False] * 20
