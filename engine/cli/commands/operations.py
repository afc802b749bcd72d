"""rabbitmqctl's commands that operate a node: listeners, log level, limits, the cluster's name, and waiting for it."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rewindmq.engine.cli.client import Client, Json, path
from rewindmq.engine.cli.commands.diagnostics import WAIT_SECONDS, await_node, list_alarms, node_of
from rewindmq.engine.cli.exits import DATA, TIMEOUT, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.settings import Settings, with_settings
from rewindmq.engine.cli.values import Value, json_line
from rewindmq.engine.logging_setup import LEVELS
from rewindmq.engine.runtime.watermarks import ABSOLUTE, MEM_RELATIVE, Limit, disk_limit, fraction_of, memory_watermark

REPARTITION = (
    "phase",
    "partitions",
    "placed_by",
    "wanted",
    "waits_for",
    "moving",
    "moved",
    "staying",
    "reasons",
    "left",
)
UNITS = {"bytes": 1, "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000}


def listener_command(name: str, path: tuple[str, str], banner: str, help: str) -> click.Command:
    """A command that opens or closes the listeners of a node by a POST."""

    @click.command(name, help=help)
    @with_settings
    def command(settings: Settings) -> None:
        client = settings.client()
        node = node_of(client)
        settings.banner(banner.format(node=node))
        client.request("POST", f"/api/nodes/{node}/{'/'.join(path)}")

    return command


suspend_listeners = listener_command(
    "suspend_listeners",
    ("listeners", "suspend"),
    "Will suspend client listeners on node {node}. No new client connections will be accepted",
    "Take no new AMQP connections. Open connections go on.",
)
resume_listeners = listener_command(
    "resume_listeners",
    ("listeners", "resume"),
    "Will resume client listeners on node {node}.",
    "Take AMQP connections again.",
)
stop_app = listener_command(
    "stop_app",
    ("app", "stop"),
    "Stopping rabbit application on node {node} ...",
    "Close all AMQP connections and take no new ones. The management API goes on.",
)
start_app = listener_command(
    "start_app",
    ("app", "start"),
    "Starting node {node} ...",
    "Take AMQP connections again after stop_app.",
)


@click.command("set_log_level")
@click.argument("level")
@with_settings
def set_log_level(settings: Settings, level: str) -> None:
    """Set the lowest level that is logged: debug, info, warning or error.

    The level holds until the node stops."""
    if level not in LEVELS:
        raise CliError(
            DATA, f"(argument validation): level {level} is not supported. Supported levels: {', '.join(LEVELS)}"
        )
    client = settings.client()
    node = node_of(client)
    settings.banner(f'Setting log level to "{level}" ...')
    client.put("nodes", node, "log-level", content={"level": level})


@click.command("set_cluster_name")
@click.argument("name")
@with_settings
def set_cluster_name(settings: Settings, name: str) -> None:
    """Set the name of the cluster. Clients see it in server_properties, tools in the overview."""
    if not name:
        raise CliError(DATA, "(argument validation): the cluster's name must not be empty")
    settings.banner(f"Setting cluster name to {name} ...")
    settings.client().put("cluster-name", content={"name": name})


@click.command("repartition")
@click.argument("partitions", required=False, type=click.IntRange(1))
@with_settings
def repartition(settings: Settings, partitions: int | None) -> None:
    """Add partitions to the log, and let queues move to them. Without a number: show how far that is.

    Start the nodes again afterwards, one after the other. The rest goes on by itself.

    \b
    Examples:
      rewindmq repartition 6
      rewindmq repartition
    """
    client = settings.client()
    if partitions is None:
        settings.banner("Looking how far the repartition is ...")
        state = client.get_one("repartition")
    else:
        settings.banner(f"Adding partitions, so that there are {partitions} ...")
        state = client.request("POST", path("repartition"), json={"partitions": partitions}).json()
    settings.show(REPARTITION, [_row(state)])


@click.command("finalize_upgrade")
@with_settings
def finalize_upgrade(settings: Settings) -> None:
    """Let the history follow the newest machine version that the nodes know.

    Until then you can go back to the version of RewindMQ from which you upgraded. Afterwards you cannot: it refuses to
    start. What is new in the machine version can be used from then on."""
    settings.banner("Finalizing the upgrade ...")
    done = settings.client().request("POST", path("upgrade", "finalize")).json()
    if done["before"] == done["after"]:
        click.echo(f"the history follows machine version {done['after']} already: nothing to do")
    else:
        click.echo(f"the history follows machine version {done['after']} now, and followed {done['before']}")


def _row(state: dict[str, Any]) -> dict[str, Value]:
    """The state as it is printed."""
    return {
        **state,
        "waits_for": ", ".join(state["waits_for"]),
        "moving": ", ".join(f"{each['name']} in {each['vhost']}" for each in state["moving"]),
        "reasons": json_line(dict(state["reasons"])),
    }


@click.command("node_health_check")
@with_settings
def node_health_check(settings: Settings) -> None:
    """Fail if the node does not answer, or has an alarm."""
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Checking health of node {node} ...")
    client.get_one("healthchecks", "node")
    click.echo("Health check passed")


@click.command("wait")
@click.argument("pidfile", required=False, type=click.Path(path_type=Path))
@click.option("-P", "--pid", type=click.IntRange(1), help="Wait for this process instead of a file's.")
@with_settings
def wait(settings: Settings, pidfile: Path | None, pid: int | None) -> None:
    """Wait until the node of PIDFILE takes clients.

    PIDFILE holds the process id of the node. --timeout says how long to wait."""
    if (pidfile is None) == (pid is None):
        raise CliError(DATA, "(argument validation): give either a PIDFILE or --pid")
    client = settings.client(any_node=True)
    deadline = time.monotonic() + settings.seconds
    if pidfile is not None:
        settings.banner(f"Waiting for pid file '{pidfile}' to appear")
        pid = pid_in(pidfile, deadline)
    assert pid is not None
    settings.banner(f"pid is {pid}", f"Waiting for node to boot on process {pid}")
    await_node(client, settings.seconds, deadline, lambda: require_process(pid))


def pid_in(pidfile: Path, deadline: float) -> int:
    """The process id in a file, which may appear later. CliError at the deadline."""
    while True:
        try:
            return int(pidfile.read_text())
        except (FileNotFoundError, ValueError):  # not there yet, or not written yet
            if time.monotonic() > deadline:
                raise CliError(TIMEOUT, f"there is no process id in {pidfile}") from None
            time.sleep(WAIT_SECONDS)


def require_process(pid: int) -> None:
    """CliError when the process does not run."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        raise CliError(UNAVAILABLE, f"process {pid} is not running") from None
    except PermissionError:  # it runs, as another user
        pass


@click.command("memory_breakdown")
@click.option("--unit", type=click.Choice(list(UNITS)), default="gb", show_default=True, help="Unit of the sizes.")
@with_settings
def memory_breakdown(settings: Settings, unit: str) -> None:
    """Show the parts of the node's memory."""
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Reporting memory breakdown on node {node}...")
    parts, total = memory_parts(client, node)
    if settings.formatter is not None:
        settings.show(
            ["category", "bytes", "percentage"],
            [{"category": name, "bytes": size, "percentage": round(100 * size / total, 4)} for name, size in parts],
        )
        return
    for name, size in parts:
        shown = f"{size}" if unit == "bytes" else f"{size / UNITS[unit]:.4f}"
        click.echo(f"{name}: {shown} {unit} ({100 * size / total:.2f}%)")


def memory_parts(client: Client, node: str) -> tuple[list[tuple[str, int]], int]:
    """The parts of the memory as (category, bytes), the largest first, and the resident memory as their sum."""
    memory: Json = client.get_one("nodes", node, "memory")["memory"]  # type: ignore[assignment]
    totals: Json = memory["total"]  # type: ignore[assignment]
    total = int(str(totals["rss"]))
    parts = {name: value for name, value in memory.items() if isinstance(value, int)}
    parts["other"] = max(0, total - sum(parts.values()))
    return sorted(parts.items(), key=lambda part: -part[1]), total


@click.command("resource_alarms")
@click.pass_context
@with_settings
def resource_alarms(settings: Settings, context: click.Context) -> None:
    """List the alarms (the same as `alarms`)."""
    context.invoke(list_alarms)


def put_limit(settings: Settings, what: str, name: str, parse: Callable[[str], Limit], value: str, to: str) -> None:
    """Checks a limit and sets it on the node. CliError."""
    try:
        parse(value)
    except ValueError as error:
        raise CliError(USAGE, f"(argument validation): {error}") from None
    client = settings.client()
    node = str(client.get_one("overview")["node"])
    settings.banner(f"Setting {what} on {node} to {to} ...")
    client.put("nodes", node, "limits", name, content={"value": value})


@click.command("set_vm_memory_high_watermark")
@click.argument("limit", nargs=-1, required=True)
@with_settings
def set_vm_memory_high_watermark(settings: Settings, limit: tuple[str, ...]) -> None:
    """Set how much memory the node takes before publishers are held back.

    LIMIT is a part of the memory, or a size. The setting holds until the node stops.

    \b
    Examples:
      rewindmq set_vm_memory_high_watermark 0.6
      rewindmq set_vm_memory_high_watermark absolute 2GB
    """
    parse: Callable[[str], Limit]
    if len(limit) == 2 and limit[0] == ABSOLUTE:
        parse, value, to = memory_watermark, f"{ABSOLUTE}:{limit[1]}", f"{limit[1]} bytes"
    elif len(limit) == 1:
        parse, value, to = fraction_of_memory, limit[0], limit[0]
    else:
        raise CliError(USAGE, f"(argument validation): give FRACTION, or {ABSOLUTE} SIZE")
    put_limit(settings, "memory threshold", "vm_memory_high_watermark", parse, value, to)


def fraction_of_memory(text: str) -> Limit:
    """Parses a part of the memory. ValueError for 40, as in rabbitmqctl: 40 bytes would hold back every publisher."""
    return Limit(fraction_of(text, 1.0))


@click.command("set_disk_free_limit")
@click.argument("limit", nargs=-1, required=True)
@with_settings
def set_disk_free_limit(settings: Settings, limit: tuple[str, ...]) -> None:
    """Set the free disk space below which publishers are held back.

    LIMIT is a size, or a multiple of the memory. The setting holds until the node stops.

    \b
    Examples:
      rewindmq set_disk_free_limit 2GB
      rewindmq set_disk_free_limit mem_relative 1.5
    """
    if len(limit) == 2 and limit[0] == MEM_RELATIVE:
        value, to = f"{MEM_RELATIVE}:{limit[1]}", f"{limit[1]} times the total RAM"
    elif len(limit) == 1:
        value, to = limit[0], f"{limit[0]} bytes"
    else:
        raise CliError(USAGE, f"(argument validation): give SIZE, or {MEM_RELATIVE} FRACTION")
    put_limit(settings, "disk free limit", "disk_free_limit", disk_limit, value, to)


COMMANDS: tuple[click.Command, ...] = (
    suspend_listeners,
    resume_listeners,
    stop_app,
    start_app,
    set_log_level,
    set_cluster_name,
    node_health_check,
    wait,
    memory_breakdown,
    resource_alarms,
    repartition,
    finalize_upgrade,
)
# Limits of memory and disk, until the node stops: a start takes those of its options
LIMITS = (set_vm_memory_high_watermark, set_disk_free_limit)
