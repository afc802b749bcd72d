"""Counts how often a message of a quorum queue came back, in the highest bits of its info.

    profile rabbitmq-3.13    delivery count (28 bits)
    profile rabbitmq-4.3     priority (5 bits) | delivery count (12 bits) | acquired count (11 bits)

In 4.3 the delivery count counts failures; every return raises the acquired count. A count that has reached its largest
number stays there. So a delivery limit of more than 4,094 works as one of 4,094: a message that goes on failing dies,
whatever the limit.
"""

from rewindmq.projections.machine.data.message_order import COUNT_MAX, COUNT_ONE, COUNT_SHIFT

LEVEL_BITS = 5
DELIVERY_BITS = 12
DELIVERIES_MAX = (1 << DELIVERY_BITS) - 1
DELIVERY_SHIFT = COUNT_SHIFT + LEVEL_BITS
ACQUIRED_SHIFT = DELIVERY_SHIFT + DELIVERY_BITS
ACQUIRED_MAX = (1 << 63 - ACQUIRED_SHIFT) - 1


def counts_of(info: int) -> tuple[int, int]:
    """Delivery count and acquired count, in profile 4.3."""
    return info >> DELIVERY_SHIFT & DELIVERIES_MAX, info >> ACQUIRED_SHIFT


def returned(info: int) -> int:
    """The info of a message that came back once more, in profile 3.13."""
    return info + COUNT_ONE if info >> COUNT_SHIFT < COUNT_MAX else info


def delivered_before(info: int, count: int, failures: bool) -> int:
    """The info of a new message as if it had been delivered `count` times without success.

    `failures`: profile 4.3."""
    if failures:
        return info | min(count, DELIVERIES_MAX) << DELIVERY_SHIFT
    return info | min(count, COUNT_MAX) << COUNT_SHIFT


def returned_or_failed(info: int, failed: bool) -> int:
    """The info of a message that came back once more, in profile 4.3."""
    deliveries, acquired = counts_of(info)
    if acquired < ACQUIRED_MAX:
        info += 1 << ACQUIRED_SHIFT
    if failed and deliveries < DELIVERIES_MAX:
        info += 1 << DELIVERY_SHIFT
    return info
