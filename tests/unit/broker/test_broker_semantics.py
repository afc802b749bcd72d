"""Which RabbitMQ a queue is like (docs/behaviours/profiles.md): the node's profile, the queue's own, and
what each takes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rewindmq.engine.amqp.consumer import with_counts
from rewindmq.engine.errors import PreconditionFailed
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Harness, args, refusal

Q = "queue 'q' in vhost '/'"
QUORUM = {"x_queue_type": "quorum"}
LATER = {**QUORUM, "x_semantics": "rabbitmq-4.3"}
RETRY = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 100}


@pytest.fixture
def later(tmp_path: Path) -> Iterator[Harness]:
    with Harness(tmp_path, semantics="rabbitmq-4.3") as harness:
        yield harness


def declared(h: Harness, name: str, **keys: object) -> Queue:
    return h.declare(h.session(), name, args(**keys))


def test_the_node_says_it_and_a_queue_may_say_other(h: Harness) -> None:
    assert declared(h, "q", **QUORUM).profile.name == "rabbitmq-3.13"
    assert declared(h, "r", **LATER).profile.name == "rabbitmq-4.3"


def test_a_node_of_the_later_profile(later: Harness) -> None:
    queue = declared(later, "q", **QUORUM)
    assert (queue.semantics, queue.settings.delivery_limit) == ("rabbitmq-4.3", 20)
    former = declared(later, "r", **QUORUM, x_semantics="rabbitmq-3.13")
    assert (former.semantics, former.settings.delivery_limit) == ("rabbitmq-3.13", None)
    later.restart()
    assert later.broker.queues.partition_for("/", "q").machine.queue("/", "q").profile.name == "rabbitmq-4.3"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"x_semantics": "rabbitmq-2.8"}, "\"unsupported semantics 'rabbitmq-2.8'\""),
        ({"x_semantics": 4}, "{unacceptable_type,signedint}"),
    ],
)
def test_what_is_no_profile(h: Harness, keys: dict[str, object], problem: str) -> None:
    with refusal(PreconditionFailed, f"invalid arg 'x-semantics' for {Q}: {problem}"):
        h.declare(h.session(), "q", args(**keys))


def test_a_queue_is_of_one_profile_for_ever(h: Harness) -> None:
    declared(h, "q", **LATER)
    with refusal(
        PreconditionFailed,
        f"inequivalent arg 'x-semantics' for {Q}: received none but current is the value 'rabbitmq-4.3' of type"
        " 'longstr'",
    ):
        h.declare(h.session(), "q", args(**QUORUM))


def test_a_negative_delivery_limit_is_for_the_later_profile_alone_s160(h: Harness) -> None:
    assert declared(h, "r", **LATER, x_delivery_limit=-1).settings.delivery_limit is None
    with refusal(PreconditionFailed, f"invalid arg 'x-delivery-limit' for {Q}: {{value_negative,-1}}"):
        h.declare(h.session(), "q", args(**QUORUM, x_delivery_limit=-1))


def test_delayed_retry_is_a_quorum_queues(later: Harness) -> None:
    assert declared(later, "r", **QUORUM, **RETRY).settings.retry == "all"
    text = f"invalid arg 'x-delayed-retry-type' for {Q} of queue type rabbit_classic_queue"
    with refusal(PreconditionFailed, text):
        later.declare(later.session(), "q", args(x_delayed_retry_type="all"))


def test_before_it_nobody_knows_delayed_retry(h: Harness) -> None:
    assert declared(h, "q", x_delayed_retry_type="all").profile.name == "rabbitmq-3.13"


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ({"delayed-retry-type": "all"}, "delayed-retry-min is required when delayed-retry-type is all"),
        (
            {"delayed-retry-min": 9, "delayed-retry-max": 5},
            "delayed-retry-max (5) must not be smaller than delayed-retry-min (9)",
        ),
        ({"delayed-retry-min": 0}, "0 is not a valid delayed retry minimum delay. Must be a positive integer"),
        (
            {"delayed-retry-type": "now"},
            '<<"now">> is not a valid delayed retry type. Must be one of: all, failed, returned, disabled',
        ),
        ({"delivery-limit": "x"}, '<<"x">> is not a valid delivery limit'),
    ],
)
def test_policies_of_the_later_profile(later: Harness, definition: dict[str, object], problem: str) -> None:
    with refusal(PreconditionFailed, f"Validation failed\n\n{problem}\n"):
        later.broker.policies.set(Actor("guest", 0), "/", "p", "^q", definition, 0, "queues")


def test_a_policy_of_the_later_profile_holds(later: Harness) -> None:
    definition = {"delayed-retry-type": "failed", "delayed-retry-min": 5, "delivery-limit": -1}
    later.broker.policies.set(Actor("guest", 0), "/", "p", "^q", definition, 0, "queues")
    queue = declared(later, "q", **QUORUM)
    assert (queue.settings.retry, queue.settings.delivery_limit) == ("failed", None)


def test_a_node_of_the_former_profile_knows_no_such_policy(h: Harness) -> None:
    for definition in ({"delayed-retry-type": "disabled"}, {"delivery-limit": -1}):
        with pytest.raises(PreconditionFailed):
            h.broker.policies.set(Actor("guest", 0), "/", "p", "^q", definition, 0, "queues")


def test_counts_travel_in_headers_without_those_that_are_0_s157() -> None:
    raw = b"\x10\x00\x02"
    acquired = b"\x10x-acquired-countl" + (3).to_bytes(8, "big")
    delivered = b"\x10x-delivery-countl" + (2).to_bytes(8, "big")
    assert with_counts(raw, 0, 0) == raw
    assert acquired in with_counts(raw, 0, 3)
    assert delivered not in with_counts(raw, 0, 3)
    both = with_counts(raw, 2, 3)
    assert acquired in both
    assert delivered in both
