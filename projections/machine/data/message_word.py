"""The packed word of a message: its size, flags and counts in one number of 64 bits. The highest bit is 0.

    bits     meaning                         in which queues
    0-31     size of the body in bytes       all
    32       PERSISTENT                      all (a message of a quorum queue or stream always is)
    33       REDELIVERED                     all but streams
    34       BY_PROPERTY                     all but streams
    33-62    second of the publish           stream: whole seconds since the stream was made (34 years)
    35-62    0                               classic
    35-42    level                           classic with x-max-priority (as many bits as its highest level needs)
    35-62    delivery count                  quorum, profile rabbitmq-3.13
    35-39    level                           quorum, profile rabbitmq-4.3
    40-51    delivery count                  quorum, profile rabbitmq-4.3
    52-62    acquired count                  quorum, profile rabbitmq-4.3

A word has a meaning only together with its queue: `Queue.counts` and `Prioritized` know which layout applies. The fold
reads size and flags with the masks below, without a call; everything else goes through the functions.

In profile 4.3 the delivery count counts failures; every return raises the acquired count. A count stays at its largest
number, so a delivery limit of more than 4,094 works like 4,094: a message that keeps failing dies even under a higher
limit.

Words are stored in chunks and covered by digests: their layout cannot change.
"""

from typing import Final

UPPER: Final = 32  # the upper half of a word, without the size, begins at this bit
SIZE_MASK: Final = (1 << UPPER) - 1
PERSISTENT: Final = 1 << 32
REDELIVERED: Final = 1 << 33
BY_PROPERTY: Final = 1 << 34  # the expiry comes from the message's own `expiration`, not from the queue's message TTL

SECONDS_SHIFT: Final = 33
SECONDS_MAX: Final = (1 << 30) - 1

LEVEL_SHIFT: Final = 35

COUNT_SHIFT: Final = 35
COUNT_MAX: Final = (1 << 28) - 1

LEVEL_BITS_4_3: Final = 5
DELIVERIES_SHIFT_4_3: Final = LEVEL_SHIFT + LEVEL_BITS_4_3
DELIVERIES_BITS_4_3: Final = 12
DELIVERIES_MAX_4_3: Final = (1 << DELIVERIES_BITS_4_3) - 1
ACQUIRED_SHIFT_4_3: Final = DELIVERIES_SHIFT_4_3 + DELIVERIES_BITS_4_3
ACQUIRED_MAX_4_3: Final = (1 << 63 - ACQUIRED_SHIFT_4_3) - 1


def size_of(word: int) -> int:
    """Return the size of the message's body in bytes."""
    return word & SIZE_MASK


def is_redelivered(word: int) -> bool:
    """Return True if the message was delivered before. Not for messages of streams."""
    return word & REDELIVERED != 0


def stream_word(size: int, seconds: int) -> int:
    """Return the word of a message of a stream, published `seconds` after the stream was made."""
    return size | PERSISTENT | min(seconds, SECONDS_MAX) << SECONDS_SHIFT


def seconds_of(word: int) -> int:
    """Return the second in which a message of a stream was published, counted from the stream's declaration."""
    return word >> SECONDS_SHIFT


def count_of(word: int) -> int:
    """Return the delivery count, in profile 3.13."""
    return word >> COUNT_SHIFT


def counts_of(word: int) -> tuple[int, int]:
    """Return the delivery count and the acquired count, in profile 4.3."""
    return word >> DELIVERIES_SHIFT_4_3 & DELIVERIES_MAX_4_3, word >> ACQUIRED_SHIFT_4_3


def delivered_before(word: int, count: int, failures: bool) -> int:
    """Return the word of a new message as if it had been delivered `count` times without success.

    `failures`: profile 4.3."""
    if failures:
        return word | min(count, DELIVERIES_MAX_4_3) << DELIVERIES_SHIFT_4_3
    return word | min(count, COUNT_MAX) << COUNT_SHIFT


def returned(word: int) -> int:
    """Return the word of a message after one more return, in profile 3.13."""
    return word + (1 << COUNT_SHIFT) if count_of(word) < COUNT_MAX else word


def returned_or_failed(word: int, failed: bool) -> int:
    """Return the word of a message after one more return, in profile 4.3."""
    deliveries, acquired = counts_of(word)
    if acquired < ACQUIRED_MAX_4_3:
        word += 1 << ACQUIRED_SHIFT_4_3
    if failed and deliveries < DELIVERIES_MAX_4_3:
        word += 1 << DELIVERIES_SHIFT_4_3
    return word
