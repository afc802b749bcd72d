"""Listings of queues, exchanges, bindings, connections, channels, consumers, vhosts and quarantined records."""

import click

from rewindmq.engine.cli import columns
from rewindmq.engine.cli.columns import chosen, fields, rows_of
from rewindmq.engine.cli.lookups import list_in_vhost
from rewindmq.engine.cli.rows import Row, commands, node_of
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import command, flag, option

# All columns. `head_message_timestamp` makes the broker look at the first message of each queue.
QUEUE_FIELDS = ",".join([*columns.QUEUE, "argument_types", "node", "partition", "queue_id", "owner_pid_details"])
UNRESPONSIVE = {name: columns.QUEUE[name] for name in ("name", "durable", "auto_delete", "arguments", "pid", "type")}


@command(
    "list_queues [COLUMN]...",
    flag("--online", "Only queues that are available: all are."),
    flag("--offline", "Only queues whose node is lost: none, as each node has all queues."),
    flag("--local", "Only queues whose node is this one."),
)
def list_queues(settings: CliSettings, column: tuple[str, ...], online: bool, offline: bool, local: bool) -> None:
    """List the queues of a virtual host.

    Columns are rabbitmqctl's (default: name messages).

    \b
    Examples:
      rewindmq list_queues
      rewindmq list_queues name type messages_ready messages_unacknowledged policy
    """
    names = chosen(column, ("name", "messages"), columns.QUEUE)
    settings.banner(
        f"Timeout: {settings.seconds:.1f} seconds ...", f"Listing queues for vhost {settings.vhost_name} ..."
    )
    query = {"columns": QUEUE_FIELDS} if "head_message_timestamp" in names else {}
    client = settings.client()
    found = list_in_vhost(client, settings, "queues", **query)
    if local:
        here = node_of(client)
        found = [queue for queue in found if queue["node"] == here]
    settings.show(rows_of([] if offline and not online else found, names, columns.QUEUE))


@command("list_unresponsive_queues [COLUMN]...")
def list_unresponsive_queues(settings: CliSettings, column: tuple[str, ...]) -> None:
    """List the queues that do not answer.

    The list is empty while the node answers: a queue is not a process here."""
    chosen(column, ("name",), UNRESPONSIVE)
    settings.banner(f"Listing unresponsive queues for vhost {settings.vhost_name} ...")
    list_in_vhost(settings.client(), settings, "queues", columns="name")
    settings.show([])


COMMANDS = commands(
    list_queues,
    list_unresponsive_queues,
    Row(
        "list_exchanges",
        "List the exchanges of a virtual host (default: name type).",
        "Listing exchanges for vhost {vhost} ...",
        "GET exchanges/{vhost}",
        columns.EXCHANGE,
        "name type",
    ),
    Row(
        "list_bindings",
        "List the bindings of a virtual host.",
        "Listing bindings for vhost {vhost}...",
        "GET bindings/{vhost}",
        columns.BINDING,
        "source_name source_kind destination_name destination_kind routing_key arguments",
    ),
    Row(
        "list_connections",
        "List the AMQP connections (default: user peer_host peer_port state).",
        "Listing connections ...",
        "GET connections",
        columns.CONNECTION,
        "user peer_host peer_port state",
    ),
    Row(
        "list_channels",
        "List the channels (default: pid user consumer_count messages_unacknowledged).",
        "Listing channels ...",
        "GET channels",
        columns.CHANNEL,
        "pid user consumer_count messages_unacknowledged",
    ),
    Row(
        "list_consumers",
        "List the consumers of a virtual host.",
        "Listing consumers in vhost {vhost} ...",
        "GET consumers/{vhost}",
        columns.CONSUMER,
        "queue_name channel_pid consumer_tag ack_required prefetch_count active arguments",
    ),
    Row(
        "list_vhosts",
        "List the virtual hosts (default: name).",
        "Listing vhosts ...",
        "GET vhosts",
        fields("name description tags default_queue_type tracing cluster_state"),
        "name",
    ),
    Row(
        "list_quarantined",
        "List the records of the log that were skipped because they make no sense.\n\n"
        "Columns: partition offset event reason (the default), and more.",
        "Listing quarantined records ...",
        "GET quarantine?count&partition",
        fields("partition topic offset event reason"),
        "partition offset event reason",
        params=(
            option("--partition NAME", "Only records of this partition of the log, such as queues-0."),
            option("--count", "Number of the newest records of each partition.", click.IntRange(0, 10_000), 100),
        ),
    ),
)
