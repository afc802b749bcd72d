"""Export and import of definitions: vhosts, users, queues, exchanges, bindings and policies as one JSON document."""

import json
import sys
from pathlib import Path

import click

from rewindmq.engine.cli.client import path
from rewindmq.engine.cli.exits import DATA, CliError
from rewindmq.engine.cli.settings import Settings, with_settings

FORMATS = ("json",)  # rabbitmqctl also knows Erlang terms


def check_format(asked: str) -> None:
    """CliError for a format other than JSON."""
    if asked.lower() not in FORMATS:
        raise CliError(DATA, "(argument validation): Bad argument: Format should be json")


@click.command("export_definitions")
@click.option("--format", "kind", default="json", show_default=True, help="Format of the document: json.")
@click.argument("file")
@with_settings
def export_definitions(settings: Settings, file: str, kind: str) -> None:
    """Write all definitions to FILE, or to standard output (-).

    Definitions are virtual hosts, users, queues, exchanges, bindings, policies and parameters."""
    check_format(kind)
    if file == "-":
        sys.stdout.buffer.write(settings.client().request("GET", path("definitions")).content + b"\n")
        return
    target = Path(file)
    if not target.absolute().parent.is_dir():
        raise CliError(DATA, f"(argument validation): Bad argument: Directory {target.parent} does not exist")
    settings.banner(f'Exporting definitions in JSON to a file at "{file}" ...')
    target.write_bytes(settings.client().request("GET", path("definitions")).content)


@click.command("import_definitions")
@click.option("--format", "kind", default="json", show_default=True, help="Format of the document: json.")
@click.argument("file", required=False, default="-")
@with_settings
def import_definitions(settings: Settings, file: str, kind: str) -> None:
    """Import definitions from FILE, or from standard input.

    One wrong definition prevents the whole import."""
    check_format(kind)
    source = "standard input" if file == "-" else f'a file at "{file}"'
    settings.banner(f"Importing definitions in JSON from {source} ...")
    if file != "-" and not Path(file).exists():
        raise CliError(DATA, f"(argument validation): Bad argument: File {file} does not exist")
    body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    if not body.strip():
        raise CliError(DATA, "No definitions on standard input" if file == "-" else f"File {file} is zero-sized")
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CliError(DATA, f"Failed to deserialise input (format: JSON) (error: {error})") from None
    settings.client().request("POST", path("definitions"), content=body, headers={"content-type": "application/json"})
    settings.banner("Successfully imported definitions")


COMMANDS = (export_definitions, import_definitions)
