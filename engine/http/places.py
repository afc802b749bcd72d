"""Where partitions are folded: for clients and balancers that choose a node.

    GET /api/placement                     each partition: its owner, the nodes that fold it, what is in it
    GET /api/placement/{vhost}/{queue}     the nodes that are near a queue, with their addresses

Every node serves every queue. It costs least at a node that folds the queue's partition whatever its clients do: the
partition's owner, or one of its standbys. The partition follows from the names alone. So the second answer needs no
fold, and the queue need not exist yet. Neither request changes what a node folds.
"""

from collections import Counter
from typing import TYPE_CHECKING

from starlette.responses import Response

from rewindmq.engine.http.call import Call, reply
from rewindmq.engine.http.listing import listed, listed_queues
from rewindmq.engine.http.reference.operation import MONITORING, Folds, operation
from rewindmq.engine.http.shapes.node import NearNodeView, NearQueueView, PlacedPartitionView
from rewindmq.schemas.values import EPOCH_SHIFT

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.queue_counters import Listed
    from rewindmq.engine.partition.reading import PartitionReading


@operation(
    "Shows which nodes own and fold each partition", folds=Folds.COUNTERS, who=MONITORING, listing=PlacedPartitionView
)
async def list_all(call: Call) -> Response:
    """Answer GET /api/placement."""
    call.require("monitoring")
    by_partition: dict[str, list[tuple[PartitionReading, Listed]]] = {each.name: [] for each in call.broker.partitions}
    async for pair in call.work.over(await listed_queues(call, call.broker.topology.vhosts)):
        by_partition[pair[0].name].append(pair)
    return await listed(call, [await view_of(call, each, by_partition[each.name]) for each in call.broker.partitions])


async def view_of(
    call: Call, partition: "PartitionReading", pairs: "list[tuple[PartitionReading, Listed]]"
) -> PlacedPartitionView:
    """Return the view of a partition."""
    broker = call.broker
    place = broker.nodes.place(partition)
    nodes = broker.topology.nodes
    messages = consumers = 0
    consuming: Counter[str] = Counter()
    async for _, queue in call.work.over(pairs):
        messages += queue.messages_ready + queue.messages_unacked
        consumers += queue.consumer_count()
        for consumer in queue.consumers() if queue.consumer_count() else ():
            joined = nodes.get(consumer.session >> EPOCH_SHIFT)
            if joined is not None:
                consuming[joined.node] += 1
    return PlacedPartitionView(
        partition=partition.name,
        owner=place.owner,
        folded_at=list(place.folded_at),
        folded_here=partition.current,
        queues=len(pairs),
        messages=messages,
        consumers=consumers,
        consumers_at=dict(sorted(consuming.items())),
        counters_age_ms=partition.counters_age_ms,
    )


@operation(
    "Names the nodes that are near a queue, which need not exist", folds=Folds.NONE, columns=True, answer=NearQueueView
)
async def near(call: Call) -> Response:
    """Answer GET /api/placement/{vhost}/{queue}: the owner of the queue's partition is first among the nodes."""
    vhost, queue = call.monitored_vhost, call.segment("queue")
    partition = call.broker.queues.partition_for(vhost, queue)
    place = call.broker.nodes.place(partition)
    addresses = addresses_of(call.broker)
    names = sorted(place.folded_at, key=lambda name: (name != place.owner, name))
    return reply(
        NearQueueView(
            vhost=vhost,
            queue=queue,
            partition=partition.name,
            owner=place.owner,
            nodes=[NearNodeView(name=name, address=addresses[name]) for name in names if name in addresses],
        )
    )


def addresses_of(broker: "Broker") -> dict[str, str]:
    """Return the AMQP address of each living node, by its name, as the node announced it when it joined."""
    config = broker.config
    return {config.node: config.address} | {joined.node: joined.address for joined in broker.topology.nodes.values()}
