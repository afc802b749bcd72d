"""Finds moves of queues that are archived in part: the partitions are archived one by one, each up to an end of its own.

    torn = torn_at(metadata, queues)       None: each queue that moved is whole
    torn.whole_ms                          up to this time the archive is whole in all partitions
    torn.text                              what is missing, in one line

    archived in one partition                            needs, in another one
    source       DeadLettersForwarded.relocated          the messages that it names, in the target
    metadata     QueueMoveEnded                          the incarnation that it names, in the target
    source       QueueDrained                            QueueMoveBegan, in the metadata log
    a partition  a queue that is declared there          an event of the metadata log that places its name there

- A recovery up to the archived ends would lose messages, or have a queue where no name leads. All of it is in the
  archive as of an earlier time.
- A partition whose end came too early is whole up to the time of its last archived record. `whole_ms` is the smallest
  of these times. So nothing that lies before it needs what is missing.
- Only a history that was repartitioned is read for it, and only from the first move on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rewindmq.engine.log.archive.reader import ArchivedPartition


@dataclass(frozen=True, slots=True)
class Torn:
    """What a recovery up to the archived ends would lack. See the module."""

    whole_ms: int
    text: str


def torn_at(metadata: ArchivedPartition, queues: Sequence[ArchivedPartition]) -> Torn | None:
    """The moves that are archived in part; None: there are none.

    Raises CorruptObject, ArchiveError, NoAnswer."""
    raise NotImplementedError
