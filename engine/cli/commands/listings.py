"""Listings of queues, exchanges, bindings, connections, channels, consumers, vhosts and quarantined records."""

from collections.abc import Sequence

import click

from rewindmq.engine.cli import columns
from rewindmq.engine.cli.columns import Column, chosen, rows_of
from rewindmq.engine.cli.lookups import list_in_vhost
from rewindmq.engine.cli.settings import Settings, with_settings

BINDING_COLUMNS = ("source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments")
CONSUMER_COLUMNS = (
    "queue_name",
    "channel_pid",
    "consumer_tag",
    "ack_required",
    "prefetch_count",
    "active",
    "arguments",
)


def show(settings: Settings, names: Sequence[str], known: dict[str, Column], items: list[dict[str, object]]) -> None:
    """Prints the columns `names` of items. `known`: all columns of this listing."""
    settings.show(names, rows_of(items, names, known))


@click.command("list_queues")
@click.option("--online", is_flag=True, help="Only queues that are available: all are.")
@click.option("--offline", is_flag=True, help="Only queues whose node is lost: none, as each node has all queues.")
@click.option("--local", is_flag=True, help="Only queues whose node is this one.")
@click.argument("column", nargs=-1)
@with_settings
def list_queues(settings: Settings, column: tuple[str, ...], online: bool, offline: bool, local: bool) -> None:
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
        here = client.get_one("overview", columns="node")["node"]
        found = [queue for queue in found if queue["node"] == here]
    show(settings, names, columns.QUEUE, [] if offline and not online else found)


UNRESPONSIVE = {name: columns.QUEUE[name] for name in ("name", "durable", "auto_delete", "arguments", "pid", "type")}


@click.command("list_unresponsive_queues")
@click.argument("column", nargs=-1)
@with_settings
def list_unresponsive_queues(settings: Settings, column: tuple[str, ...]) -> None:
    """List the queues that do not answer.

    The list is empty while the node answers: a queue has no process of its own."""
    names = chosen(column, ("name",), UNRESPONSIVE)
    settings.banner(f"Listing unresponsive queues for vhost {settings.vhost_name} ...")
    list_in_vhost(settings.client(), settings, "queues", columns="name")
    show(settings, names, UNRESPONSIVE, [])


# All columns. `head_message_timestamp` makes the broker look at the first message of each queue.
QUEUE_FIELDS = ",".join(
    [
        *columns.QUEUE,
        "argument_types",
        "node",
        "partition",
        "queue_id",
        "owner_pid_details",
    ]
)


@click.command("list_exchanges")
@click.argument("column", nargs=-1)
@with_settings
def list_exchanges(settings: Settings, column: tuple[str, ...]) -> None:
    """List the exchanges of a virtual host (default: name type)."""
    names = chosen(column, ("name", "type"), columns.EXCHANGE)
    settings.banner(f"Listing exchanges for vhost {settings.vhost_name} ...")
    show(settings, names, columns.EXCHANGE, list_in_vhost(settings.client(), settings, "exchanges"))


@click.command("list_bindings")
@click.argument("column", nargs=-1)
@with_settings
def list_bindings(settings: Settings, column: tuple[str, ...]) -> None:
    """List the bindings of a virtual host."""
    names = chosen(column, BINDING_COLUMNS, columns.BINDING)
    settings.banner(f"Listing bindings for vhost {settings.vhost_name}...")
    show(settings, names, columns.BINDING, list_in_vhost(settings.client(), settings, "bindings"))


@click.command("list_connections")
@click.argument("column", nargs=-1)
@with_settings
def list_connections(settings: Settings, column: tuple[str, ...]) -> None:
    """List the AMQP connections (default: user peer_host peer_port state)."""
    names = chosen(column, ("user", "peer_host", "peer_port", "state"), columns.CONNECTION)
    settings.banner("Listing connections ...")
    show(settings, names, columns.CONNECTION, settings.client().get("connections"))


@click.command("list_channels")
@click.argument("column", nargs=-1)
@with_settings
def list_channels(settings: Settings, column: tuple[str, ...]) -> None:
    """List the channels (default: pid user consumer_count messages_unacknowledged)."""
    names = chosen(column, ("pid", "user", "consumer_count", "messages_unacknowledged"), columns.CHANNEL)
    settings.banner("Listing channels ...")
    show(settings, names, columns.CHANNEL, settings.client().get("channels"))


@click.command("list_consumers")
@click.argument("column", nargs=-1)
@with_settings
def list_consumers(settings: Settings, column: tuple[str, ...]) -> None:
    """List the consumers of a virtual host."""
    names = chosen(column, CONSUMER_COLUMNS, columns.CONSUMER)
    settings.banner(f"Listing consumers in vhost {settings.vhost_name} ...")
    show(settings, names, columns.CONSUMER, list_in_vhost(settings.client(), settings, "consumers"))


@click.command("list_vhosts")
@click.argument("column", nargs=-1)
@with_settings
def list_vhosts(settings: Settings, column: tuple[str, ...]) -> None:
    """List the virtual hosts (default: name)."""
    names = chosen(column, ("name",), columns.VHOST)
    settings.banner("Listing vhosts ...")
    show(settings, names, columns.VHOST, settings.client().get("vhosts"))


@click.command("list_quarantined")
@click.option("--partition", metavar="NAME", help="Only records of this partition of the log, such as queues-0.")
@click.option(
    "--count",
    type=click.IntRange(0, 10_000),
    default=100,
    show_default=True,
    help="Number of the newest records of each partition.",
)
@click.argument("column", nargs=-1)
@with_settings
def list_quarantined(settings: Settings, partition: str | None, count: int, column: tuple[str, ...]) -> None:
    """List the records of the log that were skipped because they make no sense.

    Columns: partition offset event reason (the default), and more."""
    names = chosen(column, ("partition", "offset", "event", "reason"), columns.QUARANTINED)
    settings.banner("Listing quarantined records ...")
    query = {"count": str(count)} | ({} if partition is None else {"partition": partition})
    show(settings, names, columns.QUARANTINED, settings.client().get("quarantine", **query))


COMMANDS = (
    list_queues,
    list_unresponsive_queues,
    list_exchanges,
    list_bindings,
    list_connections,
    list_channels,
    list_consumers,
    list_vhosts,
    list_quarantined,
)
