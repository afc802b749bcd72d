"""Closing clients' connections."""

import time

import click

from rewindmq.engine.cli.client import RequestRefused, path
from rewindmq.engine.cli.exits import UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.lookups import list_in_vhost
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import command, flag, option


@command("close_connection CONNECTION EXPLANATION")
def close_connection(settings: CliSettings, connection: str, explanation: str) -> None:
    """Close one connection.

    CONNECTION is its name or pid in list_connections. The client receives EXPLANATION with code 320, and the
    history keeps it."""
    settings.banner(f"Closing connection {connection}, reason: {explanation}...")
    client = settings.client()
    for item in client.get("connections"):
        if connection in (item["name"], f"<{item['node']}.{item['session_id']}>"):
            close(settings, str(item["name"]), explanation)
            return
    raise CliError(UNAVAILABLE, f"there is no connection {connection}")


@command(
    "close_all_connections EXPLANATION",
    flag("--global everywhere", "The connections of all virtual hosts."),
    option("--limit", "Number of connections at most (0: all).", click.IntRange(min=0), 0),
    option("--per-connection-delay", "Milliseconds between two connections.", click.IntRange(min=0), 0),
)
def close_all_connections(
    settings: CliSettings, explanation: str, everywhere: bool, limit: int, per_connection_delay: int
) -> None:
    """Close the connections of a virtual host, or of the node."""
    which = "all" if limit == 0 else str(limit)
    where = "to the node (across all vhosts)" if everywhere else f"in vhost {settings.vhost_name}"
    settings.banner(f"Closing {which} connections {where}, reason: {explanation}...")
    client = settings.client()
    if not everywhere:
        list_in_vhost(client, settings, "queues", columns="name")  # raises when the virtual host is missing
    found = [
        str(item["name"])
        for item in client.get("connections")
        if item["type"] == "network" and (everywhere or item["vhost"] == settings.vhost_name)
    ]
    close_each(settings, found[: limit or None], explanation, per_connection_delay)


@command("close_all_user_connections NAME EXPLANATION")
def close_all_user_connections(settings: CliSettings, name: str, explanation: str) -> None:
    """Close all connections of a user."""
    settings.banner(f"Closing connections of user {name}, reason: {explanation}...")
    found = [str(item["name"]) for item in settings.client().get("connections") if item["user"] == name]
    close_each(settings, found, explanation, 0)


def close_each(settings: CliSettings, names: list[str], explanation: str, delay_ms: int) -> None:
    """Close connections one after the other, and prints their number."""
    for number, name in enumerate(names):
        if number and delay_ms:
            time.sleep(delay_ms / 1000)
        close(settings, name, explanation)
    if not settings.silent:
        click.echo(f"Closed {len(names)} connections")


def close(settings: CliSettings, name: str, explanation: str) -> None:
    """Close a connection. A connection that has ended meanwhile is not an error."""
    if settings.reason not in (None, explanation):
        raise CliError(USAGE, "EXPLANATION is the reason: leave out --reason")
    settings.update(reason=explanation)
    try:
        settings.client().request("DELETE", path("connections", name))
    except RequestRefused as refused:
        if refused.status != 404:
            raise


COMMANDS = (close_connection, close_all_connections, close_all_user_connections)
