"""A model of the messages a second that N nodes on a Kafka carry, from what one costs (docs/benchmarks/nodes.md).

    costs    microseconds of CPU, measured by bench_nodes
    limits   the capacity of each resource that can be exhausted; the smallest is the limit of the cluster

A node is one process whose Python code runs on one core at a time. The messages are spread evenly over the nodes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds of a core for one message that is published with a confirm, delivered and acked.

    `both`: the node publishes it, folds it and delivers it. `append`: it only publishes. `consume`: it folds and
    delivers what another node publishes. `fold`: it only folds. `kafka_write` and `kafka_read`: Kafka's, for the one
    replica and for each node that folds. `session`: a node's, for a connection that opens and closes at another one.
    In each second a node takes `idle`, and `beat` for each node that lives."""

    both: float
    append: float
    consume: float
    fold: float
    kafka_write: float
    kafka_read: float
    idle: float
    beat: float
    session: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """`standbys`: None: every node folds every partition.

    `apart`: the share of messages whose publisher is at another node than their consumer, which is at the owner.
    `hottest`: the share of messages in one partition; 0: partitions are even. `sent_in_session`: messages that a
    connection carries before it closes."""

    nodes: int
    standbys: int | None
    partitions: int
    apart: float = 0.0
    hottest: float = 0.0
    kafka_cores: int = 24
    replicas: int = 3
    sent_in_session: float = 1_000.0


def other_folders(nodes: int, standbys: int | None) -> float:
    """Return the average number of nodes besides the owner that fold a partition.

    The first `standbys` + 1 nodes of a partition's order fold it, and the owner is among them only by chance."""
    if standbys is None:
        return nodes - 1.0
    return 0.0 if standbys == 0 else min(standbys + 1, nodes) * (1 - 1 / nodes)


def limits(costs: Costs, cluster: Cluster) -> dict[str, float]:
    """Messages a second that each thing can carry."""
    others = other_folders(cluster.nodes, cluster.standbys)
    free = 1e6 - costs.idle - costs.beat * cluster.nodes  # microseconds of a node's core in a second
    at_owner = (1 - cluster.apart) * costs.both + cluster.apart * costs.consume
    message = at_owner + cluster.apart * costs.append + others * costs.fold
    hottest = cluster.hottest or 1 / cluster.partitions
    kafka = costs.kafka_write * (1 + (cluster.replicas - 1) / 2) + costs.kafka_read * (1 + others)
    return {
        "the nodes' cores": cluster.nodes * free / message,
        "the owner of the hottest partition": free / (hottest * at_owner),
        "Kafka's cores": cluster.kafka_cores * 1e6 / kafka,
        "the metadata log": free * cluster.sent_in_session / costs.session,
    }


def capacity(costs: Costs, cluster: Cluster) -> tuple[float, str]:
    """Messages a second, and what is full then."""
    found = limits(costs, cluster)
    least = min(found, key=lambda name: found[name])
    return found[least], least
