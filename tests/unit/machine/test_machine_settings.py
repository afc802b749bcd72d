"""Arguments, policy and operator policy merge as these tables say (S-003, S-029, S-060, S-160, S-167)."""

import json
from dataclasses import replace

import pytest

from rewindmq.projections.machine.rules.policy_keys import BY_ARGUMENT, BY_NAME, QueueType
from rewindmq.projections.machine.rules.profile import RABBITMQ_3_13, RABBITMQ_4_3
from rewindmq.projections.machine.rules.settings import QueueSettings, resolve, shown_definition
from rewindmq.schemas.values import Argument, Policy
from tests.support.events_for_tests import arguments, policy

TYPES: tuple[QueueType, ...] = ("classic", "quorum")


def merged(type: QueueType, argument: object, given: object, capped: object, key: str) -> QueueSettings:
    """`key` set by argument, policy `lim` and operator policy `cap`; None: silent."""
    return resolve(
        type,
        () if argument is None else arguments({key: argument}),
        None if given is None else policy("lim", **{key: given}),
        None if capped is None else policy("cap", **{key: capped}),
    )


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize(
    ("key", "attribute"),
    [
        ("max_length", "max_length"),
        ("max_length_bytes", "max_length_bytes"),
        ("message_ttl", "message_ttl_ms"),
        ("delivery_limit", "delivery_limit"),
    ],
)
@pytest.mark.parametrize(
    ("argument", "given", "capped", "expected", "rule"),
    [
        (None, None, None, None, ""),
        (5, None, None, 5, "argument x-{}"),
        (None, 5, None, 5, "policy lim.{}"),
        (None, None, 5, 5, "operator policy cap.{}"),
        (5, 4, None, 4, "policy lim.{}"),
        (4, 5, None, 4, "argument x-{}"),
        (5, 5, None, 5, "argument x-{}"),
        (None, 5, 4, 4, "operator policy cap.{}"),
        (None, 4, 5, 4, "policy lim.{}"),
        (3, 4, 5, 3, "argument x-{}"),
        (5, 4, 3, 3, "operator policy cap.{}"),
        (0, 4, 3, 0, "argument x-{}"),
        ("7", 4, None, 4, "policy lim.{}"),  # not a number: as if it were absent
        (-1, None, 4, 4, "operator policy cap.{}"),
        (True, None, None, None, ""),
    ],
)
def test_s003_s160_s167_the_smallest_number(
    type: QueueType,
    key: str,
    attribute: str,
    argument: object,
    given: object,
    capped: object,
    expected: int | None,
    rule: str,
) -> None:
    settings = merged(type, argument, given, capped, key)
    if key == "delivery_limit" and type == "classic":  # S-161
        assert settings.delivery_limit is None
        return
    assert getattr(settings, attribute) == expected
    assert getattr(settings, attribute.removesuffix("_ms") + "_rule") == rule.format(key.replace("_", "-"))


@pytest.mark.parametrize(
    ("type", "argument", "given", "capped", "expected"),
    [
        ("classic", 100, 500, None, 100),
        ("classic", 500, 100, None, 100),
        ("quorum", 100, 500, None, 500),  # the policy wins in 3.13
        ("quorum", 100, 500, 300, 300),
        ("quorum", 100, None, None, 100),
        ("classic", 0, None, None, None),  # S-057: not 0
    ],
)
def test_s060_expires(
    type: QueueType, argument: int, given: int | None, capped: int | None, expected: int | None
) -> None:
    assert merged(type, argument, given, capped, "expires").expires_ms == expected


@pytest.mark.parametrize(
    ("type", "argument", "given", "capped", "expected"),
    [
        ("classic", "reject-publish", "drop-head", None, "reject-publish"),
        ("quorum", "reject-publish", "drop-head", None, "drop-head"),
        ("classic", None, "drop-head", "reject-publish", "reject-publish"),  # the operator's own value
        ("classic", "drop-head", "reject-publish", "reject-publish", "drop-head"),
        ("quorum", None, None, None, "drop-head"),
        ("quorum", "reject-publish-dlx", None, None, "drop-head"),  # S-025
        ("quorum", "reject-publish", "reject-publish-dlx", None, "drop-head"),
        ("classic", "reject-publish-dlx", None, None, "reject-publish-dlx"),
        ("classic", "nonsense", None, None, "drop-head"),
    ],
)
def test_s029_overflow(type: QueueType, argument: object, given: object, capped: object, expected: str) -> None:
    assert merged(type, argument, given, capped, "overflow").overflow == expected


@pytest.mark.parametrize(
    ("type", "argument", "given", "capped", "expected"),
    [
        ("classic", True, None, None, True),
        ("quorum", False, True, None, True),  # the policy wins
        ("classic", True, False, None, False),
        ("classic", True, "no", None, True),  # not a boolean: as if it were absent
        ("classic", 1, None, None, False),
        ("classic", None, None, True, False),  # an operator policy does not speak of it
        ("stream", True, True, None, False),
        ("delayed", True, True, None, False),
    ],
)
def test_b62_deduplication(type: QueueType, argument: object, given: object, capped: object, expected: bool) -> None:
    settings = resolve(
        type,
        () if argument is None else arguments({"message_deduplication": argument}),
        None if given is None else Policy("p", json.dumps({"x-message-deduplication": given}), 1),
        None if capped is None else Policy("o", json.dumps({"x-message-deduplication": capped}), 1),
    )
    assert settings.deduplicates is expected


def test_b73_a_key_holds_for_queues_of_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """In arguments and in both policies, whatever version the history follows now."""
    later = replace(BY_NAME["max-length"], since=2)
    monkeypatch.setitem(BY_NAME, later.name, later)
    monkeypatch.setitem(BY_ARGUMENT, later.argument, later)
    given = arguments({"max_length": 5, "max_length_bytes": 9})
    below, above = policy("p", max_length=5), policy("o", max_length=5)
    for version, expected in ((1, None), (2, 5), (3, 5)):
        assert resolve("classic", given, None, None, RABBITMQ_3_13, version).max_length == expected
        assert resolve("classic", (), below, None, RABBITMQ_3_13, version).max_length == expected
        assert resolve("classic", (), None, above, RABBITMQ_3_13, version).max_length == expected
    assert resolve("classic", given, None, None, RABBITMQ_3_13, 1).max_length_bytes == 9


def test_a_routing_key_or_strategy_without_an_exchange_is_nothing() -> None:
    given = policy("p", dead_letter_routing_key="k", dead_letter_strategy="at-least-once")
    settings = resolve("quorum", (), given, None)
    assert settings.dead_letter_exchange is None
    assert settings.dead_letter_routing_key is None
    assert not settings.at_least_once


def test_the_default_exchange_is_an_exchange() -> None:
    assert resolve("classic", arguments({"dead_letter_exchange": ""}), None, None).dead_letter_exchange == ""


def test_s167_shown_definition() -> None:
    given = policy("p", max_length=5, overflow="reject-publish", dead_letter_exchange="x", ha_mode="all")
    capped = policy("o", max_length=7, overflow="drop-head", expires=1000)
    assert shown_definition(given, capped) == {
        "dead-letter-exchange": "x",
        "expires": 1000,
        "ha-mode": "all",
        "max-length": 5,
        "overflow": "drop-head",
    }
    assert list(shown_definition(given, capped)) == sorted(shown_definition(given, capped))
    assert shown_definition(None, None) == {}


@pytest.mark.parametrize(
    ("key", "attribute"),
    [
        ("max-length", "max_length"),
        ("max-length-bytes", "max_length_bytes"),
        ("message-ttl", "message_ttl_ms"),
        ("expires", "expires_ms"),
        ("consumer-timeout", "consumer_timeout_ms"),
        ("delivery-limit", "delivery_limit"),
        ("delayed-retry-min", "retry_min_ms"),
        ("delayed-retry-max", "retry_max_ms"),
    ],
)
@pytest.mark.parametrize(("given", "capped"), [(5, 9), (9, 5), (5, -1), (-1, 5), (5, 1 << 70), (1 << 70, 5)])
def test_s167_the_definition_that_is_shown_is_the_one_that_holds(
    key: str, attribute: str, given: int, capped: int
) -> None:
    """Also where the operator's smaller number does not: a limit of -1, and the least delay of a retry."""
    below = Policy("p", json.dumps({"delayed-retry-type": "all", "delayed-retry-min": 1, key: given}), 1)
    above = Policy("o", json.dumps({key: capped}), 1)
    shown = shown_definition(below, above)[key]
    assert getattr(resolve("quorum", (), below, above, RABBITMQ_4_3), attribute) == shown
    assert shown in (5, 9)


@pytest.mark.parametrize(("given", "capped"), [(0, 5), (5, 0)])
def test_s167_a_delivery_limit_of_0_is_a_limit(given: int, capped: int) -> None:
    """Unlike -1, which is none."""
    below, above = policy("p", delivery_limit=given), policy("o", delivery_limit=capped)
    assert shown_definition(below, above)["delivery-limit"] == 0
    assert resolve("quorum", (), below, above, RABBITMQ_4_3).delivery_limit == 0


@pytest.mark.parametrize("definition", ["", "[]", "5", "{", '{"a":' * 2000, "[" * 100_000])
def test_an_unreadable_definition_is_said_so(definition: str) -> None:
    with pytest.raises(ValueError, match=r"polic|Expecting"):
        resolve("classic", (), Policy("p", definition, 1), None)


def test_arguments_of_other_kinds_do_no_harm() -> None:
    odd = (
        Argument("x-max-length", "void", None),
        Argument("x-overflow", "binary", b"drop-head"),
        Argument("x-message-ttl", "double", 1.5),
        Argument("x-expires", "long", 1 << 70),
        Argument("x-dead-letter-exchange", "table", 7),
    )
    settings = resolve("classic", odd, None, None)
    plain = resolve("classic", (), None, None)
    for name in ("max_length", "overflow", "message_ttl_ms", "expires_ms", "dead_letter_exchange"):
        assert getattr(settings, name) == getattr(plain, name)
