"""Lengths of queues over time, as recorded and under candidates; and the messages of a queue at the end."""

from collections.abc import Iterator
from typing import Any

from rewindmq.projections.history.outcomes import is_queue
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.what_if.alternative import Alternative
from rewindmq.projections.what_if.later_outcomes import length


def standing(alternative: Alternative, wanted: str) -> Iterator[dict[str, Any]]:
    """Yield the messages that are in the queue at the end, in order."""
    for queue in list(alternative.machine.queues()):
        if is_queue(wanted, queue.vhost, queue.name):
            for view in queue.messages():
                yield {
                    "standing": {
                        "candidate": alternative.candidate.name,
                        "vhost": queue.vhost,
                        "queue": queue.name,
                        "message_id": view.message_id,
                        "position": view.position,
                    }
                }


class Depths:
    """The lengths of the queues that a candidate concerns, in the recorded fold and in its alternative."""

    def __init__(self, alternatives: list[Alternative], machine: Machine, every_ms: int) -> None:
        self._alternatives = alternatives
        self._machine = machine
        self._every_ms = every_ms
        self._next_ms: int | None = None

    def before(self, timestamp_ms: int) -> Iterator[dict[str, Any]]:
        """Yield the lengths at the mark before this time. Call it before an event of this time is applied."""
        if self._next_ms is None or timestamp_ms >= self._next_ms:
            if self._next_ms is not None:
                yield from self._rows(self._next_ms)
            self._next_ms = timestamp_ms - timestamp_ms % self._every_ms + self._every_ms

    def at_end(self) -> Iterator[dict[str, Any]]:
        """Yield the lengths at the last mark."""
        if self._next_ms is not None:
            yield from self._rows(self._next_ms)

    def _rows(self, at_ms: int) -> Iterator[dict[str, Any]]:
        for alternative in self._alternatives:
            names = {(q.vhost, q.name): None for m in (self._machine, alternative.machine) for q in m.queues()}
            for vhost, name in names:
                if alternative.candidate.concerns(name):
                    before, after = (length(machine, vhost, name) for machine in (self._machine, alternative.machine))
                    yield {
                        "depth": {
                            "candidate": alternative.candidate.name,
                            "vhost": vhost,
                            "queue": name,
                            "at": at_ms * 1000,
                            "before": before,
                            "after": after,
                        }
                    }
