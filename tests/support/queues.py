"""Finds a queue that exists."""

from rewindmq.engine.broker.broker import Broker
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.machine import Machine


def queue_of(place: Broker | Machine, name: str, vhost: str = "/") -> Queue:
    found = place.queue(vhost, name) if isinstance(place, Machine) else place.queues.get(vhost, name)
    assert found is not None, f"no queue {name}"
    return found
