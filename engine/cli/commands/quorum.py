"""rabbitmq-queues' commands for members and leaders of quorum queues (S-120, S-121).

Only Kafka's own tool can move members. For that these commands print shell commands on stdout; the error on stderr and
exit code 69 say that the change is not done yet.
"""

import json
from collections import Counter
from typing import cast

import click

from rewindmq.engine.cli.client import Json, RequestRefused, path
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.rows import Asked, Row, commands
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import argument, command, option

PATTERNS = (
    option("--vhost-pattern", "Pattern of the names of virtual hosts.", default=".*"),
    option("--queue-pattern", "Pattern of the names of queues.", default=".*"),
)
A_BROKER = "NODE is the id of the Kafka broker, or its host:port."


def failure(asked: Asked, refused: RequestRefused) -> CliError:
    """Return the error of a refusal. Prints the shell commands that do the change instead, if any."""
    if refused.status == 404 and "queue" in asked:
        return CliError(DATA, asked.text("queue '{queue}' was not found in virtual host '{vhost}'"))
    if refused.status == 400:
        return CliError(USAGE, f"(argument validation): {refused.reason}")
    if "reassignment" in refused.answer:
        script(refused.answer)
        return CliError(UNAVAILABLE, f"not done: {refused.reason}; the commands are on the standard output")
    return CliError(UNAVAILABLE, refused.reason) if refused.status in (501, 503) else refused


def script(answer: Json) -> None:
    """Print the shell commands that do the rest."""
    for each in cast(list[Json], answer["partitions"]):
        click.echo(f"# {each['partition']}, with all its queues: replicas {each['members']} -> {each['wanted']}")
    wanted = json.dumps(answer["reassignment"], allow_nan=False)
    click.echo(f"cat > reassignment.json <<'END'\n{wanted}\nEND\n{answer['command']}")


def show_box(settings: CliSettings, rows: list[Json]) -> None:
    """Print a table, in a box unless --formatter says another form."""
    settings.update(formatter=settings.formatter or "pretty_table")
    settings.show(rows)


@command(
    "rebalance",
    *PATTERNS,
    click.Argument(["kind"], metavar="<all|quorum|owners>", type=click.Choice(["all", "quorum", "owners"])),
)
def rebalance(settings: CliSettings, kind: str, **patterns: str) -> None:
    """Give matching quorum queues their preferred leaders back.

    `owners` (ours) moves nothing: Kafka spreads the owners of partitions evenly by itself. It shows which node owns
    which partition, which nodes fold it, and where its consumers are. It fails if owners are not spread evenly now."""
    if kind == "owners":
        show_owners(settings)
        return
    settings.banner(f"Re-balancing leaders of {'quorum' if kind == 'quorum' else 'all replicated'} queues...")
    try:
        rows = settings.client().request("POST", path("rebalance", "queues"), json=patterns).json()
    except RequestRefused as refused:
        raise failure(Asked(settings, {}), refused) from None
    show_box(settings, rows)


def show_owners(settings: CliSettings) -> None:
    """Show the placement of all partitions.

    Raises CliError if an owner is not known, or a node owns two more than another."""
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
    show_box(settings, rows)
    unknown = [str(each["partition"]) for each in placed if each["owner"] is None]
    if unknown:
        raise CliError(
            UNAVAILABLE,
            f"this node does not know the owner of {', '.join(unknown)}: owners announce themselves every five seconds,"
            " and only with `start --standbys N`",
        )
    owned = Counter(str(each["owner"]) for each in placed)
    counts = [owned[str(node["name"])] for node in nodes]
    if max(counts) - min(counts) > 1:
        raise CliError(
            UNAVAILABLE,
            "the partitions are not spread evenly: a node has just come or gone, and Kafka moves them within seconds."
            " If this stays, a node is not in Kafka's consumer group (its log says why)",
        )


def name_member(asked: Asked) -> None:
    """Name the node of the check: the member that is asked for, or this node."""
    asked["shown"] = asked["member"] or asked["node"]


def critical(asked: Asked, refused: RequestRefused) -> CliError:
    """Return the error that names the queues without a quorum."""
    queues = cast(list[dict[str, str]], refused.answer.get("queues", []))
    stops = asked.text("will become unavailable if node {shown} stops")
    lines = [f"{each['readable_name']} {stops}" for each in queues]
    return CliError(UNAVAILABLE, "; ".join(lines)) if lines else failure(asked, refused)


def not_critical(asked: Asked, answer: Json) -> None:
    """Print the result of a check that passed."""
    alone = "Node {shown} seems to be the only one in a single node cluster, the check does not apply"
    fine = "Node {shown} reported no queues/streams with minimum quorum"
    if not asked.settings.silent:
        click.echo(asked.text(alone if "reason" in answer else fine))


def require_quorum_queue(asked: Asked, answer: Json) -> None:
    """CliError for a queue of another type."""
    if answer["type"] != "quorum":
        raise CliError(UNAVAILABLE, "This operation is not applicable to classic queues")


COMMANDS = commands(
    Row(
        "quorum_status QUEUE",
        "Show the members of a quorum queue, its leader, and their offsets.",
        "Status of quorum queue {queue} in vhost {vhost} ...",
        "GET queues/quorum/{vhost}/{queue}/status",
        refused=failure,
        then=lambda asked, rows: show_box(asked.settings, rows),
    ),
    rebalance,
    Row(
        "grow NODE",
        "Add members on a Kafka broker for matching quorum queues.\n\n"
        f"{A_BROKER} `even`: only queues with an even number of members.",
        "# Growing {strategy} queues on {node}...",
        "POST queues/quorum/replicas/on/{node}/grow",
        body="strategy vhost_pattern queue_pattern",
        refused=failure,
        params=(*PATTERNS, argument("STRATEGY", type=click.Choice(["all", "even"]))),
    ),
    Row(
        "shrink NODE",
        f"Remove all members on a Kafka broker, before it is removed.\n\n{A_BROKER}",
        "# Shrinking queues on {node}...",
        "DELETE queues/quorum/replicas/on/{node}/shrink",
        refused=failure,
    ),
    Row(
        "add_member QUEUE NODE",
        f"Add a member of a quorum queue on a Kafka broker.\n\n{A_BROKER}",
        "# Adding a member for queue {queue} on node {node}...",
        "POST queues/quorum/{vhost}/{queue}/replicas/add",
        body="node",
        refused=failure,
    ),
    Row(
        "delete_member QUEUE NODE",
        f"Remove the member of a quorum queue on a Kafka broker.\n\n{A_BROKER}",
        "# Removing a replica of queue {queue} on node {node}...",
        "DELETE queues/quorum/{vhost}/{queue}/replicas/delete",
        body="node",
        refused=failure,
    ),
    Row(
        "transfer_leadership QUEUE NODE",
        f"Make a Kafka broker the leader of a quorum queue.\n\n{A_BROKER}",
        "# Transferring leadership of quorum queue {queue} to node {node}...",
        "POST queues/quorum/{vhost}/{queue}/leader",
        body="node",
        refused=failure,
    ),
    Row(
        "check_if_node_is_quorum_critical [MEMBER]",
        "Check that all queues keep their quorum without a member.\n\nMEMBER is a Kafka broker (default: this node).",
        "Checking if node {shown} is critical for quorum of any queues/streams ...",
        "GET health/checks/node-is-quorum-critical?member",
        check=name_member,
        refused=critical,
        then=not_critical,
    ),
    Row(
        "reclaim_quorum_memory QUEUE",
        "Do nothing: a queue has no process whose memory could be reclaimed.",
        "Will garbage collect quorum queue {queue} ...",
        "GET queues/{vhost}/{queue}",
        refused=failure,
        then=require_quorum_queue,
    ),
)
