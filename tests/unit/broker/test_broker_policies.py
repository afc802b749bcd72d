"""Policies and operator policies: validation texts and re-application (S-003, S-013, S-028, S-162, S-167)."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rewindmq.engine.errors import NotFound, PreconditionFailed
from rewindmq.projections.machine.rules.policy_keys import BY_NAME
from rewindmq.projections.machine.rules.versions import MACHINE_VERSION
from rewindmq.schemas.events import PolicyApplied
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Client, Harness, args, overheard, refusal


@pytest.fixture
def h(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path, partitions=3) as harness:
        yield harness


BAD = [
    ({"max-length": -1}, "-1 is not a valid maximum length"),
    ({"max-length": "7"}, '<<"7">> is not a valid maximum length'),
    ({"max-length": True}, "true is not a valid maximum length"),
    ({"max-length": 1.5}, "1.5 is not a valid maximum length"),
    ({"max-length-bytes": None}, "null is not a valid maximum length in bytes"),
    ({"message-ttl": -1}, "-1 is not a valid message TTL"),
    ({"expires": 0}, "0 is not a valid queue expiry"),
    ({"overflow": "drop-tail"}, '<<"drop-tail">> is not a valid overflow value'),
    ({"delivery-limit": -1}, "-1 is not a valid delivery limit"),
    ({"dead-letter-exchange": 1}, "1 is not a valid dead letter exchange name"),
    ({"dead-letter-routing-key": [1]}, "[1] is not a valid dead letter routing key"),
    ({"dead-letter-strategy": "maybe"}, '<<"maybe">> is not a valid dead letter strategy'),
    ({"queue-mode": "eager"}, '<<"eager">> is not a valid queue-mode value'),
    ({"alternate-exchange": 5}, "5 is not a valid alternate exchange name"),
    ({"nonsense": 1}, '[{<<"nonsense">>,1}] are not recognised policy settings'),
    ({"nonsense": 1, "max-length": -1}, "-1 is not a valid maximum length"),
    ({"b": "x", "a": True}, '[{<<"a">>,true},{<<"b">>,<<"x">>}] are not recognised policy settings'),
    ({}, "no policy provided"),
    ({"ha-mode": "most"}, '<<"most">> is not a valid ha-mode value'),
    ({"ha-params": 2}, "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"),
    ({"ha-mode": "all", "ha-params": 2}, 'ha-mode="all" does not take parameters'),
    ({"ha-mode": "exactly", "ha-params": "2"}, 'ha-mode="exactly" takes an integer, <<"2">> was given'),
    ({"ha-mode": "nodes", "ha-params": []}, 'ha-mode="nodes" list must be non-empty'),
    ({"ha-mode": "nodes", "ha-params": [1]}, 'ha-mode="nodes" takes a list of strings, [1] was given'),
]


def test_policies_of_mirrored_queues_are_taken_and_decide_nothing(h: Harness) -> None:
    """So that the definitions of a RabbitMQ 3 cluster can be imported. S-113."""
    session = h.session()
    h.declare(session, "q", durable=True)
    definition = {
        "ha-mode": "exactly",
        "ha-params": 2,
        "ha-sync-mode": "automatic",
        "queue-master-locator": "random",
        "ha-sync-batch-size": 100,
        "ha-promote-on-shutdown": "always",
        "max-length": 1,
    }
    h.broker.policies.set(Actor("guest", 0), "/", "ha", "q", definition, 0, "all")
    h.publish(session, "", "q", b"first")
    h.publish(session, "", "q", b"second")
    assert h.queue("q").messages_ready == 1, "what else the policy says holds"


@pytest.mark.parametrize(("definition", "text"), BAD)
def test_s013_a_bad_definition_is_refused(h: Harness, definition: dict[str, object], text: str) -> None:
    with refusal(PreconditionFailed, f"Validation failed\n\n{text}\n"):
        h.broker.policies.set(Actor("guest", 0), "/", "p", ".*", definition, 0, "all")
    assert not h.broker.topology.policies


def test_all_that_is_wrong_is_told_at_once(h: Harness) -> None:
    with refusal(
        PreconditionFailed,
        "Validation failed\n\n"
        "no policy provided\n"
        "apply-to 'everything' unrecognised; should be one of: 'queues', 'classic_queues', "
        " 'quorum_queues', 'streams', 'exchanges', or 'all'\n"
        'pattern should be regular expression but is invalid: {"missing closing parenthesis",1}\n'
        'priority should be a number, actually was <<"high">>\n',
    ):
        h.broker.policies.set(Actor("guest", 0), "/", "p", "(", {}, "high", "everything")


@pytest.mark.parametrize("key", ["expires", "message-ttl", "max-length", "max-length-bytes", "delivery-limit"])
def test_s167_operators_have_the_keys_of_limits(h: Harness, key: str) -> None:
    h.broker.operator_policies.set(Actor("guest", 0), "/", "o", ".*", {key: 5}, 0, "all")


@pytest.mark.parametrize("key", ["dead-letter-exchange", "queue-mode", "alternate-exchange", "dead-letter-strategy"])
def test_s167_operators_have_fewer_keys(h: Harness, key: str) -> None:
    value = {"queue-mode": "lazy", "dead-letter-strategy": "at-most-once"}.get(key, "x")
    with refusal(
        PreconditionFailed,
        f'Validation failed\n\n[{{<<"{key}">>,<<"{value}">>}}] are not recognised policy settings\n',
    ):
        h.broker.operator_policies.set(Actor("guest", 0), "/", "o", ".*", {key: value}, 0, "all")
    h.broker.policies.set(Actor("guest", 0), "/", "p", ".*", {key: value}, 0, "all")


def test_b73_a_key_of_a_later_version_is_refused(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("max-length", "alternate-exchange"):
        monkeypatch.setitem(BY_NAME, name, replace(BY_NAME[name], since=MACHINE_VERSION + 1))
        text = (
            f"{name} needs machine version {MACHINE_VERSION + 1}, and the history follows"
            f" {MACHINE_VERSION}: it can be used after `rewindmq finalize_upgrade`"
        )
        definition = {name: 3 if name == "max-length" else "x"}
        with refusal(PreconditionFailed, text):
            h.broker.policies.set(Actor("guest", 0), "/", "p", ".*", definition, 0, "all")
    h.broker.policies.set(Actor("guest", 0), "/", "p", ".*", {"message-ttl": 3}, 0, "all")
    assert list(h.broker.topology.policies) == [("/", "p")]


def test_unknown_names(h: Harness) -> None:
    with refusal(NotFound, "vhost 'nope' does not exist"):
        h.broker.policies.set(Actor("guest", 0), "nope", "p", ".*", {"max-length": 1}, 0, "all")
    with refusal(NotFound, "policy 'p' in vhost '/' does not exist"):
        h.broker.policies.clear(Actor("guest", 0), "/", "p")
    with refusal(NotFound, "operator policy 'p' in vhost '/' does not exist"):
        h.broker.operator_policies.clear(Actor("guest", 0), "/", "p")


def test_the_definition_is_kept_in_canonical_form(h: Harness) -> None:
    h.broker.policies.set(
        Actor("guest", 0), "/", "p", "^q", {"overflow": "reject-publish", "max-length": 2}, 0, "queues"
    )
    assert h.broker.topology.policies["/", "p"].definition == '{"max-length":2,"overflow":"reject-publish"}'


def test_s014_s016_s028_lowering_a_limit_drops_at_once_in_every_partition(h: Harness) -> None:
    session = h.session()
    names = [f"one-meg-{number}" for number in range(6)]
    for name in names:
        h.declare(session, name)
        for number in range(10):
            h.publish(session, "", name, b"%d" % number)
    h.settle()
    h.broker.policies.set(Actor("guest", 0), "/", "my-pol", "^one-meg", {"max-length-bytes": 3}, 0, "queues")
    h.settle()
    assert all(h.ready(name) == [b"7", b"8", b"9"] for name in names)
    assert all(h.queue(name).counters["maxlen"] == 7 for name in names)
    h.broker.policies.clear(Actor("guest", 0), "/", "my-pol")
    h.settle()
    assert all(h.queue(name).settings.max_length_bytes is None for name in names)


def test_s017_s018_reject_publish_by_policy_nacks(h: Harness) -> None:
    session = h.session()
    h.declare(session, "two-messages")
    definition: dict[str, object] = {"max-length": 2, "overflow": "reject-publish"}
    h.broker.policies.set(Actor("guest", 0), "/", "my-pol", "^two-messages$", definition, 0, "queues")
    client = Client()
    for _ in range(4):
        h.publish(session, "", "two-messages", b"m", client)
    h.settle()
    assert client.confirms == [(1, False), (2, False), (3, True), (4, True)]
    h.fetch(session, "two-messages")
    h.publish(session, "", "two-messages", b"m", client)
    h.settle()
    assert client.confirms[-1] == (5, False)


def test_s010_s011_refused_by_one_of_several_queues(h: Harness) -> None:
    session = h.session()
    for name, arguments in (("full", args(x_max_length=0, x_overflow="reject-publish")), ("open", ())):
        h.declare(session, name, arguments)
        h.bind(session, "amq.fanout", name)
    client = Client()
    partitions = h.publish(session, "amq.fanout", "", b"m", client)
    h.settle()
    assert h.ready("open") == [b"m"]
    assert len(client.confirms) == partitions
    assert any(refused for _, refused in client.confirms)


def test_only_queues_whose_effective_policy_changed_are_told(h: Harness) -> None:
    session = h.session()
    h.declare(session, "told")
    h.declare(session, "not-told")
    told = overheard(PolicyApplied, *h.broker.partitions)
    h.broker.policies.set(Actor("guest", 0), "/", "low", "^told", {"max-length": 5}, 0, "queues")
    h.broker.policies.set(Actor("guest", 0), "/", "high", "^told", {"max-length": 9}, 7, "queues")
    h.broker.policies.set(Actor("guest", 0), "/", "low", "^told", {"max-length": 6}, 0, "queues")  # does not apply
    h.broker.operator_policies.set(Actor("guest", 0), "/", "ops", "^told", {"max-length": 3}, 0, "queues")
    h.broker.policies.clear(Actor("guest", 0), "/", "high")
    h.settle()
    assert [
        (event.queue, event.policy and event.policy.name, event.operator_policy and event.operator_policy.name)
        for event in told()
    ] == [
        ("told", "low", None),
        ("told", "high", None),
        ("told", "high", "ops"),
        ("told", "low", "ops"),
    ]
    assert h.queue("told").settings.max_length == 3


def test_s003_the_smaller_of_argument_policy_and_operator_policy(h: Harness) -> None:
    session = h.session()
    queue = h.declare(session, "q", args(x_max_length=5))
    for set_policy, limit, expected in (
        (h.broker.policies.set, 7, 5),
        (h.broker.policies.set, 3, 3),
        (h.broker.operator_policies.set, 4, 3),
        (h.broker.operator_policies.set, 2, 2),
    ):
        set_policy(Actor("guest", 0), "/", "p", ".*", {"max-length": limit}, 0, "queues")
        assert queue.settings.max_length == expected


def test_an_alternate_exchange_by_policy(h: Harness) -> None:
    session = h.session()
    h.declare(session, "lost")
    h.bind(session, "amq.fanout", "lost")
    assert h.publish(session, "amq.direct", "k", b"1") == 0
    h.broker.policies.set(
        Actor("guest", 0), "/", "ae", "^amq.direct$", {"alternate-exchange": "amq.fanout"}, 0, "exchanges"
    )
    assert h.publish(session, "amq.direct", "k", b"2") == 1
    h.settle()
    assert h.ready("lost") == [b"2"]
