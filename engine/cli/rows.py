"""Commands that ask the management API one thing, as rows of a table: what differs between them, and nothing else.

    Row("delete_user NAME", "Remove a user with its permissions.", 'Deleting user "{name}" ...', "DELETE users/{name}")
    Row("list_users", "List the users and their tags.", "Listing users ...", "GET users", columns=fields("user tags"))

A text between braces names an argument, an option, `vhost`, `reason`, or `node`: the name of the node that answers.
tests/unit/cli/test_cli_rows.py compares each row with the operations of the API.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

import click

from rewindmq.engine.cli import exits
from rewindmq.engine.cli.client import Client, Json, RequestRefused
from rewindmq.engine.cli.columns import Column, chosen, rows_of
from rewindmq.engine.cli.exits import DATA, CliError
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import argument, made


class Words(tuple[str, ...]):
    """The values of an argument that may be given several times, in a text separated by commas."""

    __slots__ = ()

    def __str__(self) -> str:
        return ", ".join(self)


class Asked(dict[str, Any]):
    """The values of one call of a command, by name."""

    def __init__(self, settings: CliSettings, values: dict[str, Any]) -> None:
        found = {name: Words(value) if isinstance(value, tuple) else value for name, value in values.items()}
        super().__init__(found, vhost=settings.vhost_name, reason=settings.reason or "")
        self.settings = settings

    def __missing__(self, name: str) -> str:
        if name != "node":
            raise KeyError(name)
        self[name] = node_of(self.client)
        return str(self[name])

    @cached_property
    def client(self) -> Client:
        """The client of the API. CliError."""
        return self.settings.client()

    def text(self, template: str) -> str:
        """Fill the values into a text."""
        return template.format_map(self)


def node_of(client: Client) -> str:
    """Return the name of the node that answers."""
    return str(client.get_one("overview", columns="node")["node"])


Refusal = Callable[[Asked, RequestRefused], CliError | None]  # None: it is not an error of this command
Then = Callable[[Asked, Any], None]


def on(status: int, code: int, text: str = "{reason}") -> Refusal:
    """Return the error where the API refuses with this status; other refusals stay as they are."""

    def refusal(asked: Asked, refused: RequestRefused) -> CliError | None:
        if refused.status != status:
            return refused
        asked["reason"] = refused.reason
        return CliError(code, asked.text(text))

    return refusal


NO_VHOST = on(404, DATA, "Virtual host '{vhost}' does not exist")
NO_USER = on(404, exits.NO_USER, 'User "{name}" does not exist')


@dataclass(frozen=True, slots=True)
class Row:
    """A command, its one request, and what it prints.

    request   METHOD path?query: a name of the path or the query is left out where it has no value
    body      the content: the names of values, or a function that makes it
    columns   those of a listing; with `default` the user may choose, and these are shown otherwise
    then      prints the answer, unless it is a listing
    refused   the error of a refusal; without one a 404 means that the user or the virtual host in the path is missing
    check     raises CliError for a value that makes no sense, before anything else
    """

    usage: str
    help: str
    banner: str | Callable[[Asked], str]
    request: str
    columns: dict[str, Column] | None = None
    default: str = ""
    body: str | Callable[[Asked], Json] = ""
    then: Then | None = None
    refused: Refusal | None = None
    check: Callable[[Asked], None] | None = None
    params: tuple[click.Parameter, ...] = ()
    examples: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.request.partition(" ")[0]

    @property
    def path(self) -> str:
        """The template of the path."""
        return self.request.partition(" ")[2].partition("?")[0]

    @property
    def query(self) -> list[str]:
        """The names of the query's parameters."""
        names = self.request.partition("?")[2]
        return names.split("&") if names else []

    def command(self) -> click.Command:
        """Return the command."""
        choice = (argument("[COLUMN]..."),) if self.default else ()
        lines = ("\n\n\b\nExample" + "s" * (len(self.examples) > 1) + ":", *self.examples) if self.examples else ()
        return made(self.usage, self.help + "\n  ".join(lines), (*self.params, *choice), self.run)

    def run(self, settings: CliSettings, **values: Any) -> None:
        """Ask, and print the answer. CliError."""
        asked = Asked(settings, values)
        if self.check is not None:
            self.check(asked)
        known = self.columns or {}
        names = chosen(values["column"], self.default.split(), known) if self.default else list(known)
        banner = asked.text(self.banner) if isinstance(self.banner, str) else self.banner(asked)
        if banner:
            settings.banner(banner)
        answer = self.send(asked)
        if self.columns is not None:
            settings.show(rows_of(answer, names, known))
        if self.then is not None:
            self.then(asked, answer)

    def send(self, asked: Asked) -> Any:
        """Send the request; return the answer, None for an empty one. CliError."""
        if isinstance(self.body, str):
            content: Json | None = {name: asked[name] for name in self.body.split()} or None
        else:
            content = self.body(asked)
        if content is None and self.method == "PUT":
            content = {}
        found = {name: asked[name.replace("-", "_")] for name in self.query}
        query = {name: as_text(value) for name, value in found.items() if value not in (None, "")}
        parts = [part for part in self.path.split("/") if part[0] != "{" or asked.get(part[1:-1], part) is not None]
        try:
            where = "/api/" + "/".join(quote(asked.text(part), safe="") for part in parts)
            response = asked.client.request(self.method, where, params=query, json=content)
        except RequestRefused as refused:
            usual = NO_USER if self.path.startswith("user") else NO_VHOST if "{vhost}" in self.path else None
            refusal = self.refused or usual
            error = refused if refusal is None else refusal(asked, refused)
            if error is None:
                return None
            raise error from None
        return response.json() if response.content else None


def as_text(value: object) -> str:
    """Return a value as it is written in a query."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def says(text: str) -> Then:
    """Print a line, with fields of the answer in it."""
    return lambda asked, answer: click.echo(text.format_map({**(answer or {}), **asked}))


def ends(text: str) -> Then:
    """Print a line for people at the end."""
    return lambda asked, answer: asked.settings.banner(asked.text(text))


def passed(text: str, *names: str) -> Then:
    """Print the result of a check that passed. `names`: fields of the JSON output."""
    return lambda asked, answer: passes(asked.settings, asked.text(text), **{name: asked[name] for name in names})


def passes(settings: CliSettings, text: str, **more: object) -> None:
    """Print the result of a check that passed. `more`: fields of the JSON output."""
    if settings.formatter in ("json", "json_stream"):
        click.echo(json.dumps({"result": "ok", **more}, allow_nan=False))
    elif not settings.silent:
        click.echo(text)


def commands(*rows: "Row | click.Command") -> tuple[click.Command, ...]:
    """Return the commands of a table; those that do more than a row says are commands already."""
    return tuple(row.command() if isinstance(row, Row) else row for row in rows)
