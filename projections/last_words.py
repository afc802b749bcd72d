"""What stands in a partition behind the last word of a broker that stopped.

A broker on an embedded log that stops cleanly ends each queue partition with a `Checkpointed` that is `final`. The next
event is the `BrokerStarted` of the next broker. Events between them were written by a broker that was killed while it
stopped, or by no broker at all: a seal does not cover them yet, and a hash chain can be made anew, so they are told by
name. They are no proof of a forgery.

    words = LastWords()
    for offset, _, _, event, _ in replay(...): words.see(offset, event)
    words.end(log.next_offset)
    for behind in words.found: ...
"""

from dataclasses import dataclass

from rewindmq.schemas.events import BrokerStarted, Checkpointed, Event


@dataclass(frozen=True, slots=True)
class Behind:
    """The events from offset `first` to `end` (exclusive) stand behind the final checkpoint at offset `final`."""

    final: int
    first: int
    end: int

    def __str__(self) -> str:
        return (
            f"offsets {self.first} to {self.end - 1} stand behind the last word of a broker that stopped (its final "
            f"checkpoint at offset {self.final}), before the next start: it was killed while it stopped, or they were "
            "written by another"
        )


class LastWords:
    """Fed with a partition's events in order, from any offset on. Records that cannot be decoded may be left out."""

    def __init__(self) -> None:
        self.found: list[Behind] = []
        self._final = -1  # offset of a final checkpoint that no start has followed yet

    def see(self, offset: int, event: Event) -> None:
        kind = type(event)
        if kind is BrokerStarted:
            self.end(offset)
        elif kind is Checkpointed and event.final:  # type: ignore[union-attr]
            self._final = offset  # what came between two of them was due at the stop

    def end(self, offset: int) -> None:
        """The next start is at this offset, or the log ends there."""
        if -1 < self._final < offset - 1:
            self.found.append(Behind(self._final, self._final + 1, offset))
        self._final = -1
