"""rabbitmq-diagnostics' commands: health checks, and facts about the node. A check that fails has exit code 69."""

import json
import socket
import time
from collections.abc import Callable
from typing import cast

import click

from rewindmq.engine.cli.client import Client, Json, Refused
from rewindmq.engine.cli.columns import chosen, fields, rows_of
from rewindmq.engine.cli.commands.node import PURPOSES, alarms, cluster_status, status
from rewindmq.engine.cli.exits import TIMEOUT, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.settings import Settings, with_settings

FLAG_COLUMNS = fields("name", "state", "stability", "provided_by", "desc", "doc_url")
DEPRECATED_COLUMNS = fields("name", "deprecation_phase", "provided_by", "desc", "doc_url")
WAIT_SECONDS = 0.5

# RabbitMQ's commands for its Erlang node and its cluster, which have no counterpart here, each with the reason.
ERLANG, NODES, MIRRORS = (
    "there is no Erlang node to run it in",
    "nodes have no members and no state but the log: start one to join, stop it (SIGTERM) to leave (docs/cluster.md)",
    "there are no mirrored queues: quorum queues are replicated by Kafka (docs/cluster.md)",
)
REFUSED = {
    **dict.fromkeys(("eval", "eval_file", "exec", "remote_shell", "observer", "force_gc", "encode", "decode"), ERLANG),
    **dict.fromkeys(
        (
            "join_cluster",
            "forget_cluster_node",
            "change_cluster_node_type",
            "rename_cluster_node",
            "force_boot",
            "update_cluster_nodes",
            "reset",
            "force_reset",
            "stop",
            "shutdown",
        ),
        NODES,
    ),
    **dict.fromkeys(("sync_queue", "cancel_sync_queue"), MIRRORS),
    "rotate_logs": "the log goes to stderr: rotate it where stderr is kept",
    **dict.fromkeys(
        ("stream_status", "list_stream_connections", "list_stream_consumers", "list_stream_publishers"),
        "a stream is a queue here, its members are its partition's: 'rewindmq cluster_status' shows them,"
        " 'rewindmq list_queues name type messages' the stream",
    ),
}

# Commands that exist elsewhere, each with the place.
SPARK = "Spark derives it from the log: rewindmq spark {} --data DIR (--help says more)"
CLIENT = (
    "messages go in and out by AMQP, with any client of RabbitMQ's; by hand: POST /api/exchanges/VHOST/EXCHANGE/publish"
    " and /api/queues/VHOST/QUEUE/get of the management API, or its web page"
)
ELSEWHERE = {
    **{name: SPARK.format(name) for name in ("audit", "slo", "state-at", "what-if", "watch", "keep-history")},
    **dict.fromkeys(("publish", "consume", "get"), CLIENT),
}


def node_of(client: Client) -> str:
    """The name of the node that answers."""
    return str(client.get_one("overview")["node"])


def listeners_of(client: Client) -> list[Json]:
    """The listeners of the node, as the API lists them."""
    return cast(list[Json], client.get_one("overview")["listeners"])


def passed(settings: Settings, text: str, **more: object) -> None:
    """Prints the result of a check that passed. `more`: fields of the JSON output."""
    if settings.formatter in ("json", "json_stream"):
        click.echo(json.dumps({"result": "ok", **more}, allow_nan=False))
    elif not settings.silent:
        click.echo(text)


def check(client: Client, *segments: str) -> str | None:
    """The reason why a health check fails. None when it passes."""
    try:
        client.get_one("health", "checks", *segments)
    except Refused as refused:
        if refused.status != 503:
            raise
        return refused.reason
    return None


@click.command("check_running")
@with_settings
def check_running(settings: Settings) -> None:
    """Check that the node takes clients."""
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Checking if RabbitMQ is running on node {node} ...")
    if check(client, "ready-to-serve-clients") is not None:
        raise CliError(UNAVAILABLE, f"RabbitMQ on node {node} is not running or has not fully booted yet")
    passed(settings, f"RabbitMQ on node {node} is fully booted and running", node=node)


@click.command("is_running")
@with_settings
def is_running(settings: Settings) -> None:
    """Print whether the node takes clients."""
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Asking node {node} for its status ...")
    state = "not running" if check(client, "ready-to-serve-clients") else "fully booted and running"
    click.echo(f"RabbitMQ on node {node} is {state}")


def alarms_check(name: str, path: str, help: str, fine: str) -> click.Command:
    """A command that fails while there is an alarm. `path`: the health check of the API."""

    @click.command(name, help=help)
    @with_settings
    def command(settings: Settings) -> None:
        client = settings.client()
        node = node_of(client)
        settings.banner(f"Asking node {node} to report any local resource alarms ...")
        reason = check(client, path)
        if reason is not None:
            raise CliError(UNAVAILABLE, f"{reason}:\n" + "\n".join(alarms(client.get_one("overview"))))
        passed(settings, f"Node {node} reported {fine}")

    return command


check_alarms = alarms_check(
    "check_alarms", "alarms", "Check that no node has an alarm.", "no alarms, local or clusterwide"
)
check_local_alarms = alarms_check(
    "check_local_alarms", "local-alarms", "Check that this node has no alarm.", "no local alarms"
)


@click.command("alarms")
@with_settings
def list_alarms(settings: Settings) -> None:
    """List the alarms of memory and disk. Publishers are held back during an alarm."""
    client = settings.client()
    overview = client.get_one("overview")
    settings.banner(f"Asking node {overview['node']} to report any known resource alarms ...")
    found = alarms(overview)
    click.echo("\n".join(found) or f"Node {overview['node']} reported no alarms, local or clusterwide")


@click.command("check_virtual_hosts")
@with_settings
def check_virtual_hosts(settings: Settings) -> None:
    """Check that all virtual hosts run."""
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Checking if all vhosts are running on node {node} ...")
    reason = check(client, "virtual-hosts")
    if reason is not None:
        raise CliError(UNAVAILABLE, reason)
    passed(settings, f"Node {node} reported all vhosts as running")


@click.command("check_port_listener")
@click.argument("port", type=click.IntRange(0, 65535))
@with_settings
def check_port_listener(settings: Settings, port: int) -> None:
    """Check that the node listens on PORT."""
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Asking node {node} if there's an active listener on port {port} ...")
    ports = sorted({int(str(each["port"])) for each in listeners_of(client)})
    if port not in ports:
        raise CliError(
            UNAVAILABLE,
            f"No listener for port {port} is active on node {node}. Found listeners that use"
            f" the following ports: {', '.join(map(str, ports))}",
        )
    passed(settings, f"A listener for port {port} is running on node {node}.", node=node, port=port)


@click.command("check_protocol_listener")
@click.argument("protocol")
@with_settings
def check_protocol_listener(settings: Settings, protocol: str) -> None:
    """Check that the node listens for PROTOCOL (amqp, amqps, http, prometheus)."""
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Asking node {node} if there's an active listener for protocol {protocol} ...")
    if check(client, "protocol-listener", protocol) is not None:
        known = sorted({str(each["protocol"]) for each in listeners_of(client)})
        raise CliError(
            UNAVAILABLE,
            f"No listener for protocol {protocol} is active on node {node}. Found listeners for"
            f" the following protocols: {', '.join(known)}",
        )
    passed(settings, f"A listener for protocol {protocol} is running on node {node}.", node=node, protocol=protocol)


@click.command("check_port_connectivity")
@click.option("--address", help="Connect to this address instead of the listener's.")
@with_settings
def check_port_connectivity(settings: Settings, address: str | None) -> None:
    """Check that each listener takes TCP connections."""
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Testing TCP connections to all active listeners on node {node} ...")
    refused: list[str] = []
    ports: list[str] = []
    for listener in listeners_of(client):
        at = address or reachable(str(listener["ip_address"]), client)
        if str(listener["port"]) not in ports:
            ports.append(str(listener["port"]))
        try:
            socket.create_connection((at, int(str(listener["port"]))), timeout=settings.seconds).close()
        except OSError as error:
            refused.append(f"{listener['protocol']} at {at}:{listener['port']} ({error.strerror or error})")
    if refused:
        raise CliError(
            UNAVAILABLE, f"Connection to ports of the following listeners on node {node} failed: {', '.join(refused)}"
        )
    passed(settings, f"Successfully connected to ports {', '.join(ports)} on node {node}.", node=node)


def reachable(listening: str, client: Client) -> str:
    """The address to connect to. A listener on all addresses is reached where the API is."""
    return client.host if listening in ("", "0.0.0.0", "::") else listening


@click.command("check_certificate_expiration")
@click.option(
    "--unit",
    type=click.Choice(["days", "weeks", "months", "years"]),
    default="weeks",
    show_default=True,
    help="Unit of --within.",
)
@click.option("--within", type=click.IntRange(min=0), default=4, show_default=True, help="How soon is too soon.")
@with_settings
def check_certificate_expiration(settings: Settings, unit: str, within: int) -> None:
    """Check that no TLS certificate expires soon."""
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Checking certificate expiration on node {node} ...")
    reason = check(client, "certificate-expiration", str(within), unit)
    if reason is not None:
        raise CliError(UNAVAILABLE, f"{reason} on node {node} within {within} {unit}")
    passed(settings, f"No certificates are expiring within {within} {unit}.")


@click.command("listeners")
@with_settings
def listeners(settings: Settings) -> None:
    """List the addresses, ports and protocols of the node."""
    client = settings.client()
    settings.banner(f"Asking node {node_of(client)} to report its protocol listeners ...")
    found = listeners_of(client)
    if settings.formatter == "json":
        click.echo(json.dumps({"result": "ok", "listeners": found}, allow_nan=False))
        return
    for each in found:
        click.echo(
            f"Interface: {each['ip_address']}, port: {each['port']}, protocol: {each['protocol']}, purpose:"
            f" {PURPOSES.get(str(each['protocol']), '')}"
        )


@click.command("server_version")
@with_settings
def server_version(settings: Settings) -> None:
    """Print the RabbitMQ version whose behaviour and API the node has.

    `rewindmq status` also prints the version of RewindMQ."""
    client = settings.client()
    overview = client.get_one("overview")
    settings.banner(f"Asking node {overview['node']} for its RabbitMQ version...")
    click.echo(overview["rabbitmq_version"])


@click.command("environment")
@with_settings
def environment(settings: Settings) -> None:
    """Print the configuration of the node."""
    client = settings.client()
    settings.banner(f"Application environment of node {node_of(client)} ...")
    click.echo(client.request("GET", "/api/config/effective").text, nl=False)


@click.command("await_startup")
@with_settings
def await_startup(settings: Settings) -> None:
    """Wait until the node takes clients. --timeout says how long."""
    client = settings.client(any_node=True)
    settings.banner("Waiting for the node to start ...")
    await_node(client, settings.seconds, time.monotonic() + settings.seconds, lambda: None)


def await_node(client: Client, seconds: float, deadline: float, still: Callable[[], None]) -> None:
    """Returns when the node takes clients. `still` is called before each try, and raises to end the waiting."""
    while True:
        still()
        try:
            if check(client, "ready-to-serve-clients") is None:
                return
        except Refused:
            raise
        except CliError as error:
            if error.code not in (UNAVAILABLE, TIMEOUT):
                raise
        if time.monotonic() > deadline:
            raise CliError(TIMEOUT, f"the node at {client.address} did not start within {seconds:g} seconds")
        time.sleep(WAIT_SECONDS)


@click.command("list_feature_flags")
@click.argument("column", nargs=-1)
@with_settings
def list_feature_flags(settings: Settings, column: tuple[str, ...]) -> None:
    """List RabbitMQ's feature flags.

    Columns: name state stability provided_by desc doc_url (default: name state)."""
    names = chosen(column, ("name", "state"), FLAG_COLUMNS)
    settings.banner("Listing feature flags ...")
    settings.show(names, rows_of(settings.client().get("feature-flags"), names, FLAG_COLUMNS))


@click.command("enable_feature_flag")
@click.argument("flag")
@with_settings
def enable_feature_flag(settings: Settings, flag: str) -> None:
    """Check that a feature flag exists: all are enabled."""
    settings.banner("Enabling all feature flags ..." if flag == "all" else f'Enabling feature flag "{flag}" ...')
    if flag == "all":
        return
    try:
        settings.client().put("feature-flags", flag, "enable")
    except Refused as refused:
        raise CliError(UNAVAILABLE, refused.reason) from None


@click.command("list_deprecated_features")
@click.option("--used", is_flag=True, help="Only features in use.")
@click.argument("column", nargs=-1)
@with_settings
def list_deprecated_features(settings: Settings, used: bool, column: tuple[str, ...]) -> None:
    """List features that later versions of RabbitMQ remove.

    Columns: name deprecation_phase provided_by desc doc_url (default: name deprecation_phase)."""
    names = chosen(column, ("name", "deprecation_phase"), DEPRECATED_COLUMNS)
    settings.banner("Listing deprecated features ...")
    found = settings.client().get("deprecated-features", *(("used",) if used else ()))
    settings.show(names, rows_of(found, names, DEPRECATED_COLUMNS))


@click.command("report")
@click.pass_context
@with_settings
def report(settings: Settings, context: click.Context) -> None:
    """Print all about the node, for support: status, cluster, listings."""
    from rewindmq.engine.cli.commands import listings, policies

    if settings.formatter is not None:
        raise CliError(USAGE, "(argument validation): a report has no formatter")
    node = node_of(settings.client())
    click.echo(f"Reporting server status of node {node} ...\n")
    for command in (
        status,
        cluster_status,
        listings.list_connections,
        listings.list_channels,
        listings.list_queues,
        listings.list_exchanges,
        listings.list_bindings,
        listings.list_consumers,
        policies.list_policies,
        policies.list_operator_policies,
        listings.list_vhosts,
        list_feature_flags,
        environment,
    ):
        context.invoke(command)
        click.echo()
    click.echo(f"End of server status report of node {node}")


def refusal(name: str, reason: str) -> click.Command:
    """A hidden command of RabbitMQ's that only says why it is not here."""

    @click.command(name, hidden=True, context_settings={"ignore_unknown_options": True}, help=f"Not here: {reason}.")
    @click.argument("anything", nargs=-1, type=click.UNPROCESSED)
    @with_settings
    def command(settings: Settings, anything: tuple[str, ...]) -> None:
        raise CliError(UNAVAILABLE, f"{name}: {reason}")

    return command


COMMANDS: tuple[click.Command, ...] = (
    check_running,
    is_running,
    check_alarms,
    check_local_alarms,
    list_alarms,
    check_virtual_hosts,
    check_port_connectivity,
    check_port_listener,
    check_protocol_listener,
    check_certificate_expiration,
    listeners,
    server_version,
    environment,
    await_startup,
    list_feature_flags,
    enable_feature_flag,
    list_deprecated_features,
    report,
)
NOT_HERE = tuple(refusal(name, reason) for name, reason in (REFUSED | ELSEWHERE).items())
