"""Export and import of definitions: vhosts, users, queues, exchanges, bindings and policies as one JSON document."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from rewindmq.engine.cli.client import path
from rewindmq.engine.cli.exits import DATA, CliError
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import argument, command, option

FORMATS = ("json",)  # rabbitmqctl also knows Erlang terms
MOST_NAMED = 20  # users, queues or exchanges in a note
FORMAT = option("--format kind", "Format of the document: json.", default="json")


def check_format(asked: str) -> None:
    """CliError for a format other than JSON."""
    if asked.lower() not in FORMATS:
        raise CliError(DATA, "(argument validation): Bad argument: Format should be json")


@command("export_definitions FILE", FORMAT)
def export_definitions(settings: CliSettings, file: str, kind: str) -> None:
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
    content = settings.client().request("GET", path("definitions")).content
    target.write_bytes(content)
    if not settings.quiet and not settings.silent:
        for note in notes_for_rabbitmq(json.loads(content)):
            click.echo(f"Note for a RabbitMQ that is to import it: {note}", err=True)


def notes_for_rabbitmq(document: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return notes about users, exchanges and queues that a RabbitMQ cannot use.

    A RabbitMQ stops at the first such exchange, and says nothing about the users and queues."""
    users = [each["name"] for each in document["users"] if each["hashing_algorithm"] == "argon2id"]
    exchanges = [f"{each['name']} ({each['type']})" for each in document["exchanges"] if each["type"].startswith("x-")]
    queues = [each["name"] for each in document["queues"] if "x-semantics" in each["arguments"]]
    found = (
        ("no login there before they get a new password: users", users),
        ("refused there without the plugin of the type: exchanges", exchanges),
        ("x-semantics decides nothing there: queues", queues),
    )
    return [f"{what} {_listed(names)}" for what, names in found if names]


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


@command("import_definitions", FORMAT, argument("[FILE]", default="-"))
def import_definitions(settings: CliSettings, file: str, kind: str) -> None:
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
