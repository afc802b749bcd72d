"""rabbitmqctl's commands that operate a node: listeners, log level, limits, the cluster's name, and waiting for it."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import click

from rewindmq.engine.cli.client import Client, Json, path
from rewindmq.engine.cli.columns import Item, fields, rows_of
from rewindmq.engine.cli.commands.diagnostics import WAIT_SECONDS, await_node, list_alarms
from rewindmq.engine.cli.exits import DATA, TIMEOUT, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.rows import Asked, Row, commands, node_of, says
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import FILE, argument, command, option
from rewindmq.engine.cli.values import json_line

UNITS = {"bytes": 1, "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000}


def known_level(asked: Asked) -> None:
    """CliError for a level that does not exist."""
    from rewindmq.engine.logging_setup import LEVELS

    if asked["level"] not in LEVELS:
        text = f"(argument validation): level {asked['level']} is not supported. Supported levels: {', '.join(LEVELS)}"
        raise CliError(DATA, text)


def named(asked: Asked) -> None:
    """CliError for an empty name."""
    if not asked["name"]:
        raise CliError(DATA, "(argument validation): the cluster's name must not be empty")


def moving(item: Item) -> str:
    """Return the queues that move, of a repartition."""
    return ", ".join(f"{each['name']} in {each['vhost']}" for each in cast(list[Json], item["moving"]))


REPARTITION = {
    **fields("phase partitions placed_by wanted"),
    "waits_for": lambda item: ", ".join(cast(list[str], item["waits_for"])),
    "moving": moving,
    **fields("moved staying"),
    "reasons": lambda item: json_line(dict(cast(Json, item["reasons"]))),
    **fields("left"),
}


@command("repartition", argument("[PARTITIONS]", type=click.IntRange(1)))
def repartition(settings: CliSettings, partitions: int | None) -> None:
    """Add partitions to the log, and let queues move to them. Without a number: show how far that is.

    Start the nodes again afterwards, one after the other. The rest goes on by itself.

    \b
    Examples:
      rewindmq repartition 6
      rewindmq repartition
    """
    client = settings.client()
    if partitions is None:
        settings.banner("Checking the repartition ...")
        state = client.get_one("repartition")
    else:
        settings.banner(f"Adding partitions up to {partitions} ...")
        state = client.request("POST", path("repartition"), json={"partitions": partitions}).json()
    settings.show(rows_of([state], list(REPARTITION), REPARTITION))


def finalized(asked: Asked, done: Json) -> None:
    """Say which machine version the history follows."""
    if done["before"] == done["after"]:
        click.echo(f"the history follows machine version {done['after']} already: nothing to do")
    else:
        click.echo(f"the history follows machine version {done['after']} now, and followed {done['before']}")


@command(
    "wait",
    option("-P --pid", "Wait for this process instead of a file's.", click.IntRange(1)),
    argument("[PIDFILE]", type=FILE),
)
def wait(settings: CliSettings, pidfile: Path | None, pid: int | None) -> None:
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
    """Return the process id in a file, which may appear later. CliError at the deadline."""
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


@command("memory_breakdown", option("--unit", "Unit of the sizes.", click.Choice(list(UNITS)), "gb"))
def memory_breakdown(settings: CliSettings, unit: str) -> None:
    """Show the parts of the node's memory."""
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Reporting memory breakdown on node {node}...")
    parts, total = memory_parts(client, node)
    if settings.formatter is not None:
        settings.show(
            [{"category": name, "bytes": size, "percentage": round(100 * size / total, 4)} for name, size in parts]
        )
        return
    for name, size in parts:
        shown = f"{size}" if unit == "bytes" else f"{size / UNITS[unit]:.4f}"
        click.echo(f"{name}: {shown} {unit} ({100 * size / total:.2f}%)")


def memory_parts(client: Client, node: str) -> tuple[list[tuple[str, int]], int]:
    """Return the parts of the memory as (category, bytes), the largest first, and the resident memory as their sum."""
    memory: Json = client.get_one("nodes", node, "memory")["memory"]  # type: ignore[assignment]
    totals: Json = memory["total"]  # type: ignore[assignment]
    total = int(str(totals["rss"]))
    parts = {name: value for name, value in memory.items() if isinstance(value, int)}
    parts["other"] = max(0, total - sum(parts.values()))
    return sorted(parts.items(), key=lambda part: -part[1]), total


@command("resource_alarms")
def resource_alarms(settings: CliSettings) -> None:
    """List the alarms (the same as `alarms`)."""
    click.get_current_context().invoke(list_alarms)


LIMIT = click.Argument(["limit"], nargs=-1, required=True)


def put_limit(settings: CliSettings, what: str, name: str, value: str, to: str, parse: Callable[[str], object]) -> None:
    """Check a limit and sets it on the node. CliError."""
    try:
        parse(value)
    except ValueError as error:
        raise CliError(USAGE, f"(argument validation): {error}") from None
    client = settings.client()
    node = node_of(client)
    settings.banner(f"Setting {what} on {node} to {to} ...")
    client.put("nodes", node, "limits", name, content={"value": value})


@command("set_vm_memory_high_watermark", LIMIT)
def set_vm_memory_high_watermark(settings: CliSettings, limit: tuple[str, ...]) -> None:
    """Set how much memory the node takes before publishers are held back.

    LIMIT is a part of the memory, or a size. The setting holds until the node stops.

    \b
    Examples:
      rewindmq set_vm_memory_high_watermark 0.6
      rewindmq set_vm_memory_high_watermark absolute 2GB
    """
    from rewindmq.engine.host.watermarks import ABSOLUTE, fraction_of, memory_watermark

    parse: Callable[[str], object]
    if len(limit) == 2 and limit[0] == ABSOLUTE:
        parse, value, to = memory_watermark, f"{ABSOLUTE}:{limit[1]}", f"{limit[1]} bytes"
    elif len(limit) == 1:  # ValueError for 40, as in rabbitmqctl: 40 bytes would hold back every publisher
        parse, value, to = partial(fraction_of, most=1.0), limit[0], limit[0]
    else:
        raise CliError(USAGE, f"(argument validation): give FRACTION, or {ABSOLUTE} SIZE")
    put_limit(settings, "memory threshold", "vm_memory_high_watermark", value, to, parse)


@command("set_disk_free_limit", LIMIT)
def set_disk_free_limit(settings: CliSettings, limit: tuple[str, ...]) -> None:
    """Set the free disk space below which publishers are held back.

    LIMIT is a size, or a multiple of the memory. The setting holds until the node stops.

    \b
    Examples:
      rewindmq set_disk_free_limit 2GB
      rewindmq set_disk_free_limit mem_relative 1.5
    """
    from rewindmq.engine.host.watermarks import MEM_RELATIVE, disk_limit

    if len(limit) == 2 and limit[0] == MEM_RELATIVE:
        value, to = f"{MEM_RELATIVE}:{limit[1]}", f"{limit[1]} times the total RAM"
    elif len(limit) == 1:
        value, to = limit[0], f"{limit[0]} bytes"
    else:
        raise CliError(USAGE, f"(argument validation): give SIZE, or {MEM_RELATIVE} FRACTION")
    put_limit(settings, "disk free limit", "disk_free_limit", value, to, disk_limit)


COMMANDS = commands(
    Row(
        "suspend_listeners",
        "Take no new AMQP connections. Open connections go on.",
        "Will suspend client listeners on node {node}. No new client connections will be accepted",
        "POST nodes/{node}/listeners/suspend",
    ),
    Row(
        "resume_listeners",
        "Take AMQP connections again.",
        "Will resume client listeners on node {node}.",
        "POST nodes/{node}/listeners/resume",
    ),
    Row(
        "stop_app",
        "Close all AMQP connections and take no new ones. The management API stays up.",
        "Stopping rabbit application on node {node} ...",
        "POST nodes/{node}/app/stop",
    ),
    Row(
        "start_app",
        "Take AMQP connections again after stop_app.",
        "Starting node {node} ...",
        "POST nodes/{node}/app/start",
    ),
    Row(
        "set_log_level LEVEL",
        "Set the lowest level that is logged: debug, info, warning or error.\n\nThe level holds until the node stops.",
        'Setting log level to "{level}" ...',
        "PUT nodes/{node}/log-level",
        body="level",
        check=known_level,
    ),
    Row(
        "set_cluster_name NAME",
        "Set the name of the cluster. Clients see it in server_properties, tools in the overview.",
        "Setting cluster name to {name} ...",
        "PUT cluster-name",
        body="name",
        check=named,
    ),
    Row(
        "node_health_check",
        "Fail if the node does not answer, or has an alarm.",
        "Checking health of node {node} ...",
        "GET healthchecks/node",
        then=says("Health check passed"),
    ),
    wait,
    memory_breakdown,
    resource_alarms,
    repartition,
    Row(
        "finalize_upgrade",
        "Let the history follow the newest machine version that the nodes know.\n\n"
        "Until then you can go back to the version of RewindMQ from which you upgraded. Afterwards you cannot: it"
        " refuses to start. What is new in the machine version can be used from then on.",
        "Finalizing the upgrade ...",
        "POST upgrade/finalize",
        then=finalized,
    ),
)
# Limits of memory and disk, until the node stops: a start takes those of its options
LIMITS = (set_vm_memory_high_watermark, set_disk_free_limit)
