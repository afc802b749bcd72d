"""Repartitions of a broker without sockets: filled queues, the request, and where the queues are afterwards."""

from rewindmq.engine.host.loop_share import Work
from rewindmq.engine.placement.request import DONE, RepartitionProgress, ask_for, progress_of
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.values import BROKER
from tests.support.broker_harness import Harness

NAMES = [f"queue-{number}" for number in range(12)]


def ask(h: Harness, partitions: int) -> None:
    """Ask for this number of partitions."""
    h.loop.run_until_complete(ask_for(h.broker.repartition, BROKER, partitions))
    h.settle()


def until_done(h: Harness) -> None:
    h.until(lambda: progress_of_now(h) == DONE, "the repartition does not get done")
    h.settle()


def progress_of_now(h: Harness) -> str:
    """The phase, from within the loop."""
    work = progress_of(h.broker.repartition, Work(h.broker.host.loop_share))
    try:
        work.send(None)
    except StopIteration as done:
        found: RepartitionProgress = done.value
        return found.phase
    work.close()
    return ""


def home(h: Harness, name: str) -> int:
    """The number of the partition where the placement has the queue."""
    number: int = h.broker.topology.placement.home("/", name, len(h.broker.partitions))
    return number


def moved(h: Harness, name: str) -> Queue:
    """The queue where it is now."""
    found = h.broker.partitions[home(h, name)].machine.queue("/", name)
    assert found is not None, name
    queue: Queue = found
    return queue


def bodies(h: Harness, name: str) -> list[bytes]:
    """Return the bodies of a queue's ready messages, where the queue is now."""
    queue = moved(h, name)
    projector = h.broker.partitions[home(h, name)].projector
    return [projector.message(queue.queue_id, message_id).body for message_id in queue.ready_ids()]


def filled(h: Harness, names: list[str], count: int = 3) -> None:
    """Declare queues and publish into each."""
    session = h.session()
    for name in names:
        h.declare(session, name)
        for number in range(count):
            h.publish(session, "", name, f"{name} {number}".encode())
    h.settle()


def expected(name: str, count: int = 3) -> list[bytes]:
    """Return the bodies that `filled` publishes."""
    return [f"{name} {number}".encode() for number in range(count)]
