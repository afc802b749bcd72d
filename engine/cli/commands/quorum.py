"""rabbitmq-queues' commands for members and leaders of quorum queues (S-120, S-121).

Only Kafka's own tool can move members. For that these commands print shell commands on stdout; the error on stderr and
exit code 69 say that the change is not done yet.
"""

import json
from collections import Counter
from typing import Any, cast

import click

from rewindmq.engine.cli.client import Refused, path
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.settings import Settings, with_settings

STATUS_COLUMNS = (
    "Node Name",
    "Raft State",
    "Membership",
    "Last Log Index",
    "Last Written",
    "Last Applied",
    "Commit Index",
    "Snapshot Index",
    "Term",
    "Machine Version",
)


def request(settings: Settings, method: str, segments: tuple[str, ...], queue: str | None = None, **body: str) -> Any:
    """The API's answer, None for an empty one."""
    try:
        response = settings.client().request(method, path(*segments), json=body or None)
    except Refused as refused:
        raise failure(settings, refused, queue) from None
    return response.json() if response.content else None


def failure(settings: Settings, refused: Refused, queue: str | None) -> CliError:
    """The error of a refusal. Prints the shell commands that do the change instead, if any."""
    if refused.status == 404 and queue is not None:
        return CliError(DATA, f"queue '{queue}' was not found in virtual host '{settings.vhost_name}'")
    if refused.status == 400:
        return CliError(USAGE, f"(argument validation): {refused.reason}")
    if refused.status == 501:
        if "reassignment" in refused.answer:
            script(refused.answer)
            return CliError(UNAVAILABLE, f"not done: {refused.reason}; the commands are on the standard output")
        return CliError(UNAVAILABLE, refused.reason)
    return CliError(UNAVAILABLE, refused.reason) if refused.status == 503 else refused


def script(answer: dict[str, object]) -> None:
    """Prints the shell commands that do the rest."""
    for each in cast(list[dict[str, object]], answer["partitions"]):
        click.echo(f"# {each['partition']}, with all its queues: replicas {each['members']} -> {each['wanted']}")
    wanted = json.dumps(answer["reassignment"], allow_nan=False)
    click.echo(f"cat > reassignment.json <<'END'\n{wanted}\nEND\n{answer['command']}")


def of_queue(settings: Settings, method: str, queue: str, *more: str, **body: str) -> Any:
    """The API's answer to a request about one quorum queue."""
    return request(settings, method, ("queues", "quorum", settings.vhost_name, queue, *more), queue, **body)


@click.command("quorum_status")
@click.argument("queue")
@with_settings
def quorum_status(settings: Settings, queue: str) -> None:
    """Show the members of a quorum queue, its leader, and their offsets."""
    settings.banner(f"Status of quorum queue {queue} in vhost {settings.vhost_name} ...")
    rows = of_queue(settings, "GET", queue, "status")
    settings.update(formatter=settings.formatter or "pretty_table")
    settings.show(STATUS_COLUMNS, rows)


@click.command("add_member")
@click.argument("queue")
@click.argument("node")
@with_settings
def add_member(settings: Settings, queue: str, node: str) -> None:
    """Add a member of a quorum queue on a Kafka broker.

    NODE is the id of the Kafka broker, or its host:port."""
    settings.banner(f"# Adding a member for queue {queue} on node {node}...")
    of_queue(settings, "POST", queue, "replicas", "add", node=node)


@click.command("delete_member")
@click.argument("queue")
@click.argument("node")
@with_settings
def delete_member(settings: Settings, queue: str, node: str) -> None:
    """Remove the member of a quorum queue on a Kafka broker.

    NODE is the id of the Kafka broker, or its host:port."""
    settings.banner(f"# Removing a replica of queue {queue} on node {node}...")
    of_queue(settings, "DELETE", queue, "replicas", "delete", node=node)


@click.command("transfer_leadership")
@click.argument("queue")
@click.argument("node")
@with_settings
def transfer_leadership(settings: Settings, queue: str, node: str) -> None:
    """Make a Kafka broker the leader of a quorum queue.

    NODE is the id of the Kafka broker, or its host:port."""
    settings.banner(f"# Transferring leadership of quorum queue {queue} to node {node}...")
    of_queue(settings, "POST", queue, "leader", node=node)


@click.command("grow")
@click.option("--vhost-pattern", default=".*", show_default=True, help="Pattern of the names of virtual hosts.")
@click.option("--queue-pattern", default=".*", show_default=True, help="Pattern of the names of queues.")
@click.argument("node")
@click.argument("strategy", type=click.Choice(["all", "even"]))
@with_settings
def grow(settings: Settings, node: str, strategy: str, vhost_pattern: str, queue_pattern: str) -> None:
    """Add members on a Kafka broker for matching quorum queues.

    NODE is the id of the Kafka broker, or its host:port. `even`: only queues with an even number of members."""
    settings.banner(f"# Growing {strategy} queues on {node}...")
    request(
        settings,
        "POST",
        ("queues", "quorum", "replicas", "on", node, "grow"),
        strategy=strategy,
        vhost_pattern=vhost_pattern,
        queue_pattern=queue_pattern,
    )


@click.command("shrink")
@click.argument("node")
@with_settings
def shrink(settings: Settings, node: str) -> None:
    """Remove all members on a Kafka broker, before it is removed.

    NODE is the id of the Kafka broker, or its host:port."""
    settings.banner(f"# Shrinking queues on {node}...")
    request(settings, "DELETE", ("queues", "quorum", "replicas", "on", node, "shrink"))


@click.command("rebalance")
@click.option("--vhost-pattern", default=".*", show_default=True, help="Pattern of the names of virtual hosts.")
@click.option("--queue-pattern", default=".*", show_default=True, help="Pattern of the names of queues.")
@click.argument("kind", metavar="<all|quorum|owners>", type=click.Choice(["all", "quorum", "owners"]))
@with_settings
def rebalance(settings: Settings, kind: str, vhost_pattern: str, queue_pattern: str) -> None:
    """Give matching quorum queues their preferred leaders back.

    `owners` (ours) moves nothing: Kafka spreads the owners of partitions evenly by itself. It shows which node owns
    which partition, which nodes fold it, and where its consumers are. It fails if owners are not spread evenly now."""
    if kind == "owners":
        show_owners(settings)
        return
    settings.banner(
        "Re-balancing leaders of quorum queues..."
        if kind == "quorum"
        else "Re-balancing leaders of all replicated queues..."
    )
    rows = request(settings, "POST", ("rebalance", "queues"), vhost_pattern=vhost_pattern, queue_pattern=queue_pattern)
    settings.update(formatter=settings.formatter or "pretty_table")
    settings.show(("Node name", "Number of quorum queues"), rows)


PLACEMENT_COLUMNS = ("Partition", "Owner", "Folded at", "Queues", "Messages", "Consumers at")


def show_owners(settings: Settings) -> None:
    """Show the placement of all partitions. CliError: an owner is not known, or a node owns two more than another."""
    settings.banner("Owners of partitions ...")
    client = settings.client()
    placed, nodes = client.get("placement"), client.get("nodes")
    rows = [
        {
            "Partition": each["partition"],
            "Owner": each["owner"] or "",
            "Folded at": ", ".join(cast(list[str], each["folded_at"])),
            "Queues": each["queues"],
            "Messages": each["messages"],
            "Consumers at": ", ".join(
                f"{node}: {count}" for node, count in cast(dict[str, int], each["consumers_at"]).items()
            ),
        }
        for each in placed
    ]
    settings.update(formatter=settings.formatter or "pretty_table")
    settings.show(PLACEMENT_COLUMNS, rows)
    unknown = [str(each["partition"]) for each in placed if each["owner"] is None]
    if unknown:
        raise CliError(
            UNAVAILABLE,
            f"the owner of {', '.join(unknown)} is not known to this node: owners say so every five seconds, with"
            " `start --standbys N` only",
        )
    owned = Counter(str(each["owner"]) for each in placed)
    counts = [owned[str(node["name"])] for node in nodes]
    if max(counts) - min(counts) > 1:
        raise CliError(
            UNAVAILABLE,
            "the partitions are not spread evenly: a node has just come or gone, and Kafka moves them within seconds."
            " If this stays, a node is not in Kafka's consumer group (its log says why)",
        )


@click.command("check_if_node_is_quorum_critical")
@click.argument("member", required=False)
@with_settings
def check_if_node_is_quorum_critical(settings: Settings, member: str | None) -> None:
    """Check that all queues keep their quorum without a member.

    MEMBER is a Kafka broker (default: this node)."""
    client = settings.client()
    node = member or str(client.get_one("overview")["node"])
    settings.banner(f"Checking if node {node} is critical for quorum of any queues/streams ...")
    query = {} if member is None else {"member": member}
    try:
        answer = client.get_one("health", "checks", "node-is-quorum-critical", **query)
    except Refused as refused:
        if refused.status == 503 and "queues" in refused.answer:
            queues = cast(list[dict[str, str]], refused.answer["queues"])
            lines = [f"{each['readable_name']} will become unavailable if node {node} stops" for each in queues]
            raise CliError(UNAVAILABLE, "; ".join(lines) or refused.reason) from None
        raise failure(settings, refused, None) from None
    if not settings.silent:
        alone = f"Node {node} seems to be the only one in a single node cluster, the check does not apply"
        click.echo(alone if "reason" in answer else f"Node {node} reported no queues/streams with minimum quorum")


@click.command("reclaim_quorum_memory")
@click.argument("queue")
@with_settings
def reclaim_quorum_memory(settings: Settings, queue: str) -> None:
    """Do nothing: a queue has no process whose memory could be reclaimed."""
    settings.banner(f"Will garbage collect quorum queue {queue} ...")
    try:
        item = settings.client().get_one("queues", settings.vhost_name, queue)
    except Refused as refused:
        raise failure(settings, refused, queue) from None
    if item["type"] != "quorum":
        raise CliError(UNAVAILABLE, "This operation is not applicable to classic queues")


COMMANDS = (
    quorum_status,
    rebalance,
    grow,
    shrink,
    add_member,
    delete_member,
    transfer_leadership,
    check_if_node_is_quorum_critical,
    reclaim_quorum_memory,
)
