"""The life of a message: its own rows of HISTORY, and those of what came of it, dead letters and restored messages.

A message is named by the partition and the offset of its publish, such as queues-0:123. A publish to several queues is
a message in each of them, so a key has the queue, too. A letter names its source (`origin` in HISTORY).
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
    """The message as letters name it that came of it. A queue that moved has the same ids in several partitions."""
    partition, vhost, queue, message_id = key
    return vhost, queue, message_id, placement.as_origin(vhost, queue, number_of(partition))


def with_letters(found: Iterable[Key], letters: Iterable[tuple[Key, Source]], placement: Placement) -> set[Key]:
    """These messages and all that came of them, hop by hop. `letters`: messages with their sources, in any order."""
    reached, known = set(found), list(letters)
    while True:
        sources = {as_source(placement, key) for key in reached}
        came = {key for key, source in known if source in sources}
        if came <= reached:
            return reached
        reached |= came
