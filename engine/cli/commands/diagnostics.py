"""rabbitmq-diagnostics' commands: health checks, and facts about the node. A check that fails has exit code 69."""

import json
import socket
import time
from collections.abc import Callable
from typing import cast

import click

from rewindmq.engine.cli.client import Client, Json, RequestRefused
from rewindmq.engine.cli.columns import fields
from rewindmq.engine.cli.commands.node import alarms, listener_line
from rewindmq.engine.cli.exits import TIMEOUT, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.rows import Asked, Refusal, Row, commands, node_of, on, passed, passes, says
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import argument, command, made, option

WAIT_SECONDS = 0.5

# RabbitMQ's commands for its Erlang node and its cluster, which have no counterpart here, each with the reason.
ERLANG, NODES, MIRRORS = (
    "there is no Erlang node to run it in",
    "nodes have no members and no state but the log: start one to join, stop it (SIGTERM) to leave (docs/cluster.md)",
    "there are no mirrored queues: quorum queues are replicated by Kafka (docs/cluster/quorum-queues.md)",
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

REPORTED = (
    "status cluster_status list_connections list_channels list_queues list_exchanges list_bindings list_consumers"
    " list_policies list_operator_policies list_vhosts list_feature_flags environment"
)

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


def listeners_of(client: Client) -> list[Json]:
    """Return the listeners of the node, as the API lists them."""
    return cast(list[Json], client.get_one("overview")["listeners"])


def is_ready(client: Client) -> bool:
    """Return True if the node takes clients. CliError."""
    try:
        client.get_one("health", "checks", "ready-to-serve-clients")
    except RequestRefused as refused:
        if refused.status != 503:
            raise
        return False
    return True


@command("is_running")
def is_running(settings: CliSettings) -> None:
    """Print whether the node takes clients."""
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Asking node {node} for its status ...")
    state = "fully booted and running" if is_ready(client) else "not running"
    click.echo(f"RabbitMQ on node {node} is {state}")


@command("alarms")
def list_alarms(settings: CliSettings) -> None:
    """List the alarms of memory and disk. Publishers are held back during an alarm."""
    client = settings.client()
    overview = client.get_one("overview")
    settings.banner(f"Asking node {overview['node']} to report any known resource alarms ...")
    found = alarms(overview)
    click.echo("\n".join(found) or f"Node {overview['node']} reported no alarms, local or clusterwide")


def not_listening(what: str) -> Refusal:
    """Return the error of a check that the node listens, which names the ports or the protocols of its listeners."""

    def refusal(asked: Asked, refused: RequestRefused) -> CliError:
        if refused.status != 503:
            return refused
        known = ", ".join(map(str, sorted({cast(str, each[what]) for each in listeners_of(asked.client)})))
        text = f"No listener for {what} {{{what}}} is active on node {{node}}. Found listeners "
        using = "that use the following ports" if what == "port" else "for the following protocols"
        return CliError(UNAVAILABLE, f"{asked.text(text)}{using}: {known}")

    return refusal


def alarmed(asked: Asked, refused: RequestRefused) -> CliError:
    """Return the error of a check, which names the alarms."""
    if refused.status != 503:
        return refused
    return CliError(UNAVAILABLE, f"{refused.reason}:\n" + "\n".join(alarms(asked.client.get_one("overview"))))


@command("check_port_connectivity", option("--address", "Connect to this address instead of the listener's."))
def check_port_connectivity(settings: CliSettings, address: str | None) -> None:
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
    passes(settings, f"Successfully connected to ports {', '.join(ports)} on node {node}.", node=node)


def reachable(listening: str, client: Client) -> str:
    """Return the address to connect to. A listener on all addresses is reached where the API is."""
    return client.host if listening in ("", "0.0.0.0", "::") else listening


@command("listeners")
def listeners(settings: CliSettings) -> None:
    """List the addresses, ports and protocols of the node."""
    client = settings.client()
    settings.banner(f"Asking node {node_of(client)} to report its protocol listeners ...")
    found = listeners_of(client)
    if settings.formatter == "json":
        click.echo(json.dumps({"result": "ok", "listeners": found}, allow_nan=False))
        return
    for each in found:
        click.echo(listener_line(each))


@command("environment")
def environment(settings: CliSettings) -> None:
    """Print the configuration of the node."""
    client = settings.client()
    settings.banner(f"Application environment of node {node_of(client)} ...")
    click.echo(client.request("GET", "/api/config/effective").text, nl=False)


@command("await_startup")
def await_startup(settings: CliSettings) -> None:
    """Wait until the node takes clients. --timeout says how long."""
    client = settings.client(any_node=True)
    settings.banner("Waiting for the node to start ...")
    await_node(client, settings.seconds, time.monotonic() + settings.seconds, lambda: None)


def await_node(client: Client, seconds: float, deadline: float, still: Callable[[], None]) -> None:
    """Return when the node takes clients. `still` is called before each try, and raises to end the waiting."""
    while True:
        still()
        try:
            if is_ready(client):
                return
        except RequestRefused:
            raise
        except CliError as error:
            if error.code not in (UNAVAILABLE, TIMEOUT):
                raise
        if time.monotonic() > deadline:
            raise CliError(TIMEOUT, f"the node at {client.address} did not start within {seconds:g} seconds")
        time.sleep(WAIT_SECONDS)


@command("enable_feature_flag FLAG")
def enable_feature_flag(settings: CliSettings, flag: str) -> None:
    """Check that a feature flag exists: all are enabled."""
    settings.banner("Enabling all feature flags ..." if flag == "all" else f'Enabling feature flag "{flag}" ...')
    if flag == "all":
        return
    try:
        settings.client().put("feature-flags", flag, "enable")
    except RequestRefused as refused:
        raise CliError(UNAVAILABLE, refused.reason) from None


@command("report")
def report(settings: CliSettings) -> None:
    """Print all about the node, for support: status, cluster, listings."""
    context = click.get_current_context()
    program = cast(click.Group, context.find_root().command)
    if settings.formatter is not None:
        raise CliError(USAGE, "(argument validation): a report has no formatter")
    node = node_of(settings.client())
    click.echo(f"Reporting server status of node {node} ...\n")
    for name in REPORTED.split():
        context.invoke(program.commands[name])
        click.echo()
    click.echo(f"End of server status report of node {node}")


def refusal(name: str, reason: str) -> click.Command:
    """Return a hidden command of RabbitMQ's that only says why it is not here."""

    def run(settings: CliSettings, anything: tuple[str, ...]) -> None:
        raise CliError(UNAVAILABLE, f"{name}: {reason}")

    anything = argument("[ANYTHING]...", type=click.UNPROCESSED)
    found = made(name, f"Not here: {reason}.", (anything,), run)
    found.hidden, found.context_settings = True, {"ignore_unknown_options": True}
    return found


COMMANDS = commands(
    Row(
        "check_running",
        "Check that the node takes clients.",
        "Checking if RabbitMQ is running on node {node} ...",
        "GET health/checks/ready-to-serve-clients",
        refused=on(503, UNAVAILABLE, "RabbitMQ on node {node} is not running or has not fully booted yet"),
        then=passed("RabbitMQ on node {node} is fully booted and running", "node"),
    ),
    is_running,
    Row(
        "check_alarms",
        "Check that no node has an alarm.",
        "Asking node {node} to report any local resource alarms ...",
        "GET health/checks/alarms",
        refused=alarmed,
        then=passed("Node {node} reported no alarms, local or clusterwide"),
    ),
    Row(
        "check_local_alarms",
        "Check that this node has no alarm.",
        "Asking node {node} to report any local resource alarms ...",
        "GET health/checks/local-alarms",
        refused=alarmed,
        then=passed("Node {node} reported no local alarms"),
    ),
    list_alarms,
    Row(
        "check_virtual_hosts",
        "Check that all virtual hosts run.",
        "Checking if all vhosts are running on node {node} ...",
        "GET health/checks/virtual-hosts",
        refused=on(503, UNAVAILABLE),
        then=passed("Node {node} reported all vhosts as running"),
    ),
    check_port_connectivity,
    Row(
        "check_port_listener",
        "Check that the node listens on PORT.",
        "Asking node {node} if there's an active listener on port {port} ...",
        "GET health/checks/port-listener/{port}",
        refused=not_listening("port"),
        then=passed("A listener for port {port} is running on node {node}.", "node", "port"),
        params=(argument("PORT", type=click.IntRange(0, 65535)),),
    ),
    Row(
        "check_protocol_listener PROTOCOL",
        "Check that the node listens for PROTOCOL (amqp, amqps, http, prometheus).",
        "Asking node {node} if there's an active listener for protocol {protocol} ...",
        "GET health/checks/protocol-listener/{protocol}",
        refused=not_listening("protocol"),
        then=passed("A listener for protocol {protocol} is running on node {node}.", "node", "protocol"),
    ),
    Row(
        "check_certificate_expiration",
        "Check that no TLS certificate expires soon.",
        "Checking certificate expiration on node {node} ...",
        "GET health/checks/certificate-expiration/{within}/{unit}",
        refused=on(503, UNAVAILABLE, "{reason} on node {node} within {within} {unit}"),
        then=passed("No certificates are expiring within {within} {unit}."),
        params=(
            option("--unit", "Unit of --within.", click.Choice(["days", "weeks", "months", "years"]), "weeks"),
            option("--within", "How soon is too soon.", click.IntRange(min=0), 4),
        ),
    ),
    listeners,
    Row(
        "server_version",
        "Print the RabbitMQ version whose behaviour and API the node has.\n\n"
        "`rewindmq status` also prints the version of RewindMQ.",
        "Asking node {node} for its RabbitMQ version...",
        "GET overview",
        then=says("{rabbitmq_version}"),
    ),
    environment,
    await_startup,
    Row(
        "list_feature_flags",
        "List RabbitMQ's feature flags.\n\n"
        "Columns: name state stability provided_by desc doc_url (default: name state).",
        "Listing feature flags ...",
        "GET feature-flags",
        fields("name state stability provided_by desc doc_url"),
        "name state",
    ),
    enable_feature_flag,
    Row(
        "list_deprecated_features",
        "List features that later versions of RabbitMQ remove.\n\n"
        "Columns: name deprecation_phase provided_by desc doc_url (default: name deprecation_phase).",
        "Listing deprecated features ...",
        "GET deprecated-features/{used}",
        fields("name deprecation_phase provided_by desc doc_url"),
        "name deprecation_phase",
        params=(click.Option(["--used"], is_flag=True, flag_value="used", default=None, help="Only features in use."),),
    ),
    report,
    *(refusal(name, reason) for name, reason in (REFUSED | ELSEWHERE).items()),
)
