"""A mover that stood still, and does not know yet that another mover has continued, breaks no queue."""

from rewindmq.engine.broker.broker import Broker
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.schemas.placement_events import QueueMoveBegan
from tests.support.amqp_wire import publish
from tests.support.deadlines import eventually
from tests.support.moving_clients import Client, Q, declared, got, on_each_log
from tests.support.repartition import PARTITIONS, Steps, until_done


async def filled(broker: Broker, steps: Steps, *bodies: bytes) -> Client:
    """A client, and a queue with these messages whose move has begun."""
    client = await Client.opened(broker)
    await declared(client, Q)
    client.send(*(publish(1, "", Q, body) for body in bodies))
    await steps.change()
    _, queue = steps.queue(Q)
    await eventually(lambda: queue.messages_ready == len(bodies))
    await steps.begin(Q)
    return client


async def give_up(steps: Steps) -> None:
    source, queue = steps.queue(Q)
    await steps.log(QueueMoveBegan("/", Q, queue.queue_id, source.index))


@on_each_log
async def test_b77_a_move_that_is_given_up_half_way_goes_on(broker: Broker, steps: Steps) -> None:
    client = await filled(broker, steps, b"0", b"1", b"2", b"3")
    await steps.declare(Q)
    await steps.send(Q, 2)
    await give_up(steps)
    await until_done(broker)
    assert broker.topology.placement.home("/", Q, 0) == partition_of("/", Q, PARTITIONS)
    assert await got(client, Q) == [b"0", b"1", b"2", b"3"]
