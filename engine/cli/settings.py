"""The options that every command takes, before its name or after it, as rabbitmqctl does; the later one counts."""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from rewindmq.engine.cli.client import Client
from rewindmq.engine.cli.exits import UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.formatters import FORMATTERS, MACHINE_READABLE, Rows

DEFAULT_URL = "http://127.0.0.1:15672"
DEFAULT_TIMEOUT_SECONDS = 60.0

OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "-n", "--node", "asked_node", metavar="NAME", help="The node that has to answer: another one is not asked."
    ),
    click.option("-p", "--vhost", metavar="VHOST", help="Virtual host (default: /)."),
    click.option("--formatter", type=click.Choice(list(FORMATTERS)), help="How listings are printed (default: table)."),
    click.option("-s", "--silent", is_flag=True, default=None, help="No messages and no table headers."),
    click.option("-q", "--quiet", is_flag=True, default=None, help="No messages."),
    click.option("--no-table-headers", is_flag=True, default=None, help="No headers in tables."),
    click.option("-t", "--timeout", type=click.FloatRange(min=0), help="Seconds to wait for an answer (default: 60)."),
    click.option("--url", metavar="URL", help=f"Management API (default: REWINDMQ_URL, or {DEFAULT_URL})."),
    click.option("--http-port", type=click.IntRange(1, 65535), help="Its port on this machine, instead of --url."),
    click.option("--user", metavar="NAME", help="Who asks (default: REWINDMQ_USER, or guest)."),
    click.option("--password", metavar="PASSWORD", help="(default: REWINDMQ_PASSWORD, or guest)."),
    click.option(
        "--tls-ca-cert-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Who signed an https URL's certificate (default: REWINDMQ_TLS_CA, or who the system trusts).",
    ),
)
NAMES = (
    "asked_node",
    "vhost",
    "formatter",
    "silent",
    "quiet",
    "no_table_headers",
    "timeout",
    "url",
    "http_port",
    "user",
    "password",
    "tls_ca_cert_file",
)


@dataclass(slots=True)
class Settings:
    """What was given, None where nothing was."""

    asked_node: str | None = None
    vhost: str | None = None
    formatter: str | None = None
    silent: bool | None = None
    quiet: bool | None = None
    no_table_headers: bool | None = None
    timeout: float | None = None
    url: str | None = None
    http_port: int | None = None
    user: str | None = None
    password: str | None = None
    tls_ca_cert_file: Path | None = None

    def given(self, **later: object) -> None:
        for name, value in later.items():
            if value is not None:
                setattr(self, name, value)

    @property
    def home(self) -> str:
        """The vhost."""
        return "/" if self.vhost is None else self.vhost

    @property
    def seconds(self) -> float:
        return DEFAULT_TIMEOUT_SECONDS if self.timeout is None else self.timeout

    def client(self, any_node: bool = False) -> Client:
        if self.url and self.http_port:
            raise CliError(USAGE, "give either --url or --http-port")
        url = self.url or os.environ.get("REWINDMQ_URL") or DEFAULT_URL
        if self.http_port:
            url = f"http://127.0.0.1:{self.http_port}"
        user = self.user or os.environ.get("REWINDMQ_USER") or "guest"
        password = self.password or os.environ.get("REWINDMQ_PASSWORD") or "guest"
        ca = self.tls_ca_cert_file or os.environ.get("REWINDMQ_TLS_CA") or None
        client = Client(url, user, password, self.seconds, ca)
        if self.asked_node is not None and not any_node:
            answering = client.get_one("overview", columns="node")["node"]
            if answering != self.asked_node:
                asked = f"unable to perform an operation on node '{self.asked_node}'"
                raise CliError(UNAVAILABLE, f"{asked}: at {client.address} there is '{answering}'")
        return client

    def banner(self, *lines: str) -> None:
        """What is going on, for people: not when it was asked to be quiet, nor before what a machine reads."""
        if not self.silent and not self.quiet and self.formatter not in MACHINE_READABLE:
            for line in lines:
                click.echo(line)

    def show(self, columns: Sequence[str], rows: Rows) -> None:
        headers = not self.silent and not self.no_table_headers
        for line in FORMATTERS[self.formatter or "table"](columns, rows, headers):
            click.echo(line)


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the common options; it is called with `settings` first."""

    @functools.wraps(command)
    def with_settings(*arguments: Any, **options: Any) -> Any:
        settings = click.get_current_context().ensure_object(Settings)
        settings.given(**{name: options.pop(name) for name in NAMES})
        return command(settings, *arguments, **options)

    for option in reversed(OPTIONS):
        with_settings = option(with_settings)
    return with_settings
