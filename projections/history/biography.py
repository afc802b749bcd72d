"""The life of a message: its rows of HISTORY, and those of its descendants, dead letters and restored messages.

A message is named by the partition and the offset of its publish, such as queues-0:123. A key also has the queue,
because a publish to several queues is a message in each of them. A letter names its source (`origin` in HISTORY).
"""

from collections.abc import Iterable

from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.projections.topology.placement import Placement

Key = tuple[str, str, str, int]  # partition, vhost, queue, message id
Source = tuple[str, str, int, int]  # vhost, queue, message id, and the partition as `Origin` names it


def parse_message(text: str) -> tuple[str | None, int]:
    """Return the partition (None: not named) and the message id in a text such as `queues-0:123`.

    Raises ValueError, with a text for people."""
    partition, _, offset = text.rpartition(":")
    digits = offset.removeprefix("-")  # a negative one is a message that does not exist
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise ValueError(f"{text!r} is not a message: write partition:offset, such as queues-0:123")
    return partition or None, int(offset)


def as_source(placement: Placement, key: Key) -> Source:
    """Return the message as its letters name it. A queue that moved has the same ids in several partitions. A message
    that no queue took is of the queue "", which does not move."""
    partition, vhost, queue, message_id = key
    if not queue:
        return vhost, "", message_id, number_of(partition)
    return vhost, queue, message_id, placement.as_origin(vhost, queue, number_of(partition))


def with_letters(found: Iterable[Key], letters: Iterable[tuple[Key, Source]], placement: Placement) -> set[Key]:
    """Return these messages and all their descendants, hop by hop. `letters`: messages and sources, in any order."""
    reached, known = set(found), list(letters)
    while True:
        sources = {as_source(placement, key) for key in reached}
        came = {key for key, source in known if source in sources}
        if came <= reached:
            return reached
        reached |= came
