"""By how many partitions a node may go when Kafka was given more: where queues lie tells. With a real Kafka:
tests/system/kafka/test_kafka_grown.py."""

import logging
import re

import pytest

from rewindmq.engine.cluster.start import require_homes
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.rules.partition_hash import Home, astray, count_of, partition_of
from rewindmq.schemas.events import QueueDeleted, Tick
from rewindmq.schemas.values import BROKER
from tests.support.events_for_tests import declared

NAMES = [f"queue-{number}" for number in range(20)]
# Queue "both" is in partition 1, of 2 and of 4.
BOTH = next(name for name in NAMES if partition_of("/", name, 2) == partition_of("/", name, 4) == 1)


def homes(partitions: int, names: list[str] = NAMES) -> list[Home]:
    return [(partition_of("/", name, partitions), "/", name) for name in names]


def machines(found: int, queues: list[Home], joined: int) -> list[Machine]:
    """The topic's partitions after a node wrote to the first `joined`, and queues were declared."""
    made = [Machine(f"queues-{number}") for number in range(found)]
    for machine in made[:joined]:
        machine.apply(machine.next_offset, 0, BROKER, Tick(), [])
    for number, vhost, name in queues:
        event = declared(vhost, name, durable=True, semantics="rabbitmq-3.13")
        made[number].apply(made[number].next_offset, 0, BROKER, event, [])
        assert made[number].queue(vhost, name) is not None
    return made


@pytest.mark.parametrize("made", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("most", [7, 12])
def test_the_number_is_where_the_queues_say(made: int, most: int) -> None:
    assert count_of(homes(made), most) == made
    assert astray(homes(made), made) is None


def test_of_several_numbers_it_is_the_largest() -> None:
    assert count_of(homes(4, [BOTH]), 3) == 2
    assert count_of(homes(4, [BOTH]), 4) == 4
    assert count_of([], 3) == 3


def test_a_queue_that_lies_by_no_number_is_found() -> None:
    stray = ((partition_of("/", "stray", 2) + 1) % 2, "/", "stray")
    assert astray([*homes(2), stray], 2) == stray
    assert count_of([*homes(2), stray], 12) is None


@pytest.mark.parametrize("asked", [None, 4])
def test_partitions_that_were_added_are_refused(asked: int | None) -> None:
    line = (
        "Kafka: the topic mq.queues has 4 partitions, and its queues lie by the 2 that it was made with, not by 4:"
        " start every node with --partitions 2, which leaves the added ones alone"
    )
    for joined in (2, 4):  # 4: a node was once started with all of them
        with pytest.raises(LogError, match=f"^{re.escape(line)}$"):
            require_homes("mq.queues", asked, machines(4, homes(2), joined))
        require_homes("mq.queues", 2, machines(4, homes(2), joined))


def test_queues_that_lie_by_both_numbers_hide_no_node_that_had_fewer() -> None:
    grown = machines(4, homes(2, [BOTH]), joined=2)
    with pytest.raises(LogError, match=r"by the 2 .* not by 4: start every node with --partitions 2"):
        require_homes("mq.queues", None, grown)
    require_homes("mq.queues", 4, grown)  # who says so may have them
    require_homes("mq.queues", 2, machines(4, homes(2, [BOTH]), joined=4))


def test_a_wrong_number_is_refused_with_the_right_one() -> None:
    line = r"has 2 partitions, .* by the 2 .* not by 1: start every node with --partitions 2$"
    with pytest.raises(LogError, match=line):
        require_homes("mq.queues", 1, machines(2, homes(2), joined=2))
    with pytest.raises(LogError, match=r"by the 2 .* not by 3: start every node with --partitions 2, which leaves"):
        require_homes("mq.queues", 3, machines(4, homes(2), joined=2))


def test_all_is_well() -> None:
    for asked in (None, 2):
        require_homes("mq.queues", asked, machines(2, homes(2), joined=2))
        require_homes("mq.queues", asked, machines(2, [], joined=0))
    require_homes("mq.queues", None, machines(4, [], joined=2))


def test_a_deleted_queue_says_nothing() -> None:
    found = machines(2, [(partition_of("/", "q", 2) ^ 1, "/", "q")], joined=2)
    for machine in found:
        machine.apply(machine.next_offset, 0, BROKER, QueueDeleted("/", "q", False, False), [])
    require_homes("mq.queues", 1, found)


def test_a_stray_queue_is_warned_of_and_stands_in_nobodys_way(caplog: pytest.LogCaptureFixture) -> None:
    wrong = partition_of("/", "stray", 2) ^ 1
    strayed = machines(2, [*homes(2), (wrong, "/", "stray")], joined=2)
    with caplog.at_level(logging.WARNING):
        require_homes("mq.queues", None, strayed)
    (warning,) = caplog.messages
    assert f"mq.queues: queue 'stray' in vhost '/' lies in queues-{wrong}, where no node looks for it" in warning


def test_no_queue_is_left_out_because_of_a_stray_one() -> None:
    """No number fits, so it is not known whether the one that is asked for is right."""
    strayed = machines(4, [*homes(2), (3, "/", next(n for n in NAMES if partition_of("/", n, 4) != 3))], joined=4)
    with pytest.raises(LogError, match=r"2 are asked for, by which queue .* would not lie in queues-3"):
        require_homes("mq.queues", 2, strayed)
