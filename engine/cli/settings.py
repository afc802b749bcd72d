"""The options that every command takes, as rabbitmqctl does: before or after the command's name. The later counts."""

import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from rewindmq.engine.cli.client import Client
from rewindmq.engine.cli.exits import CONFIG, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.formatters import FORMATTERS, MACHINE_READABLE, Rows, one_line
from rewindmq.engine.log.secret_file import BadSecret, secret_in

DEFAULT_URL = "http://127.0.0.1:15672"
DEFAULT_TIMEOUT_SECONDS = 60.0
SEEN = (
    "Warning: other users of this machine see --password; give --password-file FILE or REWINDMQ_PASSWORD_FILE instead"
)

OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("-n", "--node", "asked_node", metavar="NAME", help="Fail unless this node answers."),
    click.option("-p", "--vhost", metavar="VHOST", help="Virtual host (default: /)."),
    click.option("--formatter", type=click.Choice(list(FORMATTERS)), help="Format of listings (default: table)."),
    click.option("-s", "--silent", is_flag=True, default=None, help="Print no messages and no table headers."),
    click.option("-q", "--quiet", is_flag=True, default=None, help="Print no messages."),
    click.option("--no-table-headers", is_flag=True, default=None, help="Print no table headers."),
    click.option("-t", "--timeout", type=click.FloatRange(min=0), help="Seconds to wait for an answer (default: 60)."),
    click.option(
        "--url", metavar="URL", help=f"Address of the management API (default: REWINDMQ_URL, or {DEFAULT_URL})."
    ),
    click.option(
        "--http-port",
        type=click.IntRange(1, 65535),
        help="Port of the management API on this machine, instead of --url.",
    ),
    click.option("--user", metavar="NAME", help="User to log in as (default: REWINDMQ_USER, or guest)."),
    click.option(
        "--password",
        metavar="PASSWORD",
        help="The same on the command line, where others see it: --password-file is better.",
    ),
    click.option(
        "--password-file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="File with the password of the user (default: REWINDMQ_PASSWORD_FILE, or REWINDMQ_PASSWORD, or guest).",
    ),
    click.option(
        "--tls-ca-cert-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Certificate authority to trust with https (default: REWINDMQ_TLS_CA, or the system's).",
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
    "password_file",
    "tls_ca_cert_file",
)


@dataclass(slots=True)
class Settings:
    """The values of the common options. None: the option was not given."""

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
    password_file: Path | None = None
    tls_ca_cert_file: Path | None = None

    def update(self, **later: object) -> None:
        """Overwrites what is not None."""
        for name, value in later.items():
            if value is not None:
                setattr(self, name, value)

    @property
    def vhost_name(self) -> str:
        """The virtual host of the command: --vhost, or /."""
        return "/" if self.vhost is None else self.vhost

    @property
    def seconds(self) -> float:
        """Seconds to wait for an answer."""
        return DEFAULT_TIMEOUT_SECONDS if self.timeout is None else self.timeout

    def client(self, any_node: bool = False, patient: bool = False) -> Client:
        """A client of the management API. Unless `any_node`, CliError when --node names another node. `patient`:
        without --timeout it waits for an answer as long as that takes."""
        if self.url and self.http_port:
            raise CliError(USAGE, "give either --url or --http-port")
        url = self.url or os.environ.get("REWINDMQ_URL") or DEFAULT_URL
        if self.http_port:
            url = f"http://127.0.0.1:{self.http_port}"
        user, password = self.login()
        ca = self.tls_ca_cert_file or os.environ.get("REWINDMQ_TLS_CA") or None
        client = Client(url, user, password, None if patient and self.timeout is None else self.seconds, ca)
        if self.asked_node is not None and not any_node:
            answering = client.get_one("overview", columns="node")["node"]
            if answering != self.asked_node:
                asked = f"unable to perform an operation on node '{self.asked_node}'"
                raise CliError(UNAVAILABLE, f"{asked}: at {client.address} there is '{answering}'")
        return client

    def login(self) -> tuple[str, str]:
        """The user to log in as, and the password. CliError: its file cannot be read."""
        return self.user or os.environ.get("REWINDMQ_USER") or "guest", self._password()

    def _password(self) -> str:
        """The password to log in with. CliError: its file cannot be read."""
        file = self.password_file or os.environ.get("REWINDMQ_PASSWORD_FILE")
        if self.password or not file:
            return self.password or os.environ.get("REWINDMQ_PASSWORD") or "guest"
        try:
            return secret_in(Path(file))
        except BadSecret as error:
            raise CliError(CONFIG, str(error)) from None

    def banner(self, *lines: str) -> None:
        """Prints lines for people: not with --quiet or --silent, nor before output for programs."""
        if not self.silent and not self.quiet and self.formatter not in MACHINE_READABLE:
            for line in lines:
                echo_exactly(line)

    def show(self, columns: Sequence[str], rows: Rows) -> None:
        """Prints a table in the format of --formatter."""
        headers = not self.silent and not self.no_table_headers
        for line in FORMATTERS[self.formatter or "table"](columns, rows, headers):
            echo_exactly(line)


def echo_exactly(text: str) -> None:
    """Print a line as it is; to a terminal, which names could control, with its control characters escaped."""
    if sys.stdout.isatty():
        text = re.sub(r"[^\t\n]+", lambda part: one_line(part[0]), text)
    click.echo(text, color=True)  # otherwise click would take escape sequences out


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds the common options. The command gets them as its first argument, `settings`."""

    @functools.wraps(command)
    def command_with_settings(*arguments: Any, **options: Any) -> Any:
        settings = click.get_current_context().ensure_object(Settings)
        if options["password"] is not None:
            click.echo(SEEN, err=True)
        settings.update(**{name: options.pop(name) for name in NAMES})
        return command(settings, *arguments, **options)

    for option in reversed(OPTIONS):
        command_with_settings = option(command_with_settings)
    return command_with_settings
