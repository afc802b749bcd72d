"""A queue that a test knows to be there."""

from typing import Protocol

from rewindmq.projections.machine.data.queue import Queue


class Queues(Protocol):
    """A broker or a machine."""

    def queue(self, vhost: str, name: str, /) -> Queue | None: ...


def queue_of(place: Queues, name: str, vhost: str = "/") -> Queue:
    found = place.queue(vhost, name)
    assert found is not None, f"no queue {name}"
    return found
