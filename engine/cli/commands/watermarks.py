"""Limits of memory and disk, until the node stops. A start takes the limits of its options."""

from collections.abc import Callable

import click

from rewindmq.engine.cli.exits import USAGE, CliError
from rewindmq.engine.cli.settings import Settings, with_settings
from rewindmq.engine.runtime.watermarks import ABSOLUTE, MEM_RELATIVE, Limit, disk_limit, fraction_of, memory_watermark


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


COMMANDS = (set_vm_memory_high_watermark, set_disk_free_limit)
