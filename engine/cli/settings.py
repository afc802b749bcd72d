"""The values of the options that every command takes, and what a command prints and asks with them."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from rewindmq.engine.cli.client import Client
from rewindmq.engine.cli.exits import CONFIG, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.formatters import FORMATTERS, MACHINE_READABLE, Rows, one_line
from rewindmq.engine.cli.terminal import aligned

DEFAULT_URL = "http://127.0.0.1:15672"
DEFAULT_TIMEOUT_SECONDS = 60.0


@dataclass(slots=True)
class CliSettings:
    """The values of the common options. None: the option was not given."""

    asked_node: str | None = None
    vhost: str | None = None
    formatter: str | None = None
    silent: bool | None = None
    quiet: bool | None = None
    no_table_headers: bool | None = None
    reason: str | None = None
    timeout: float | None = None
    url: str | None = None
    http_port: int | None = None
    user: str | None = None
    password: str | None = None
    password_file: Path | None = None
    tls_ca_cert_file: Path | None = None

    def update(self, **later: object) -> None:
        """Overwrite what is not None."""
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
        """Return a client of the management API. Unless `any_node`, CliError when --node names another node. `patient`:
        without --timeout it waits for an answer as long as that takes."""
        if self.url and self.http_port:
            raise CliError(USAGE, "give either --url or --http-port")
        url = self.url or os.environ.get("REWINDMQ_URL") or DEFAULT_URL
        if self.http_port:
            url = f"http://127.0.0.1:{self.http_port}"
        user, password = self.login()
        ca = self.tls_ca_cert_file or os.environ.get("REWINDMQ_TLS_CA") or None
        client = Client(url, user, password, None if patient and self.timeout is None else self.seconds, ca)
        if self.reason:
            client.headers["x-reason"] = " ".join(self.reason.splitlines())  # a header has one line
        if self.asked_node is not None and not any_node:
            answering = client.get_one("overview", columns="node")["node"]
            if answering != self.asked_node:
                asked = f"unable to perform an operation on node '{self.asked_node}'"
                raise CliError(UNAVAILABLE, f"{asked}: at {client.address} there is '{answering}'")
        return client

    def login(self) -> tuple[str, str]:
        """Return the user to log in as, and the password. CliError: its file cannot be read."""
        return self.user or os.environ.get("REWINDMQ_USER") or "guest", self._password()

    def _password(self) -> str:
        """Return the password to log in with. CliError: its file cannot be read."""
        file = self.password_file or os.environ.get("REWINDMQ_PASSWORD_FILE")
        if self.password or not file:
            return self.password or os.environ.get("REWINDMQ_PASSWORD") or "guest"
        from rewindmq.engine.log.secret_file import BadSecret, secret_in

        try:
            return secret_in(Path(file))
        except BadSecret as error:
            raise CliError(CONFIG, str(error)) from None

    def banner(self, *lines: str) -> None:
        """Print lines for people: not with --quiet or --silent, nor before output for programs."""
        if not self.silent and not self.quiet and self.formatter not in MACHINE_READABLE:
            for line in lines:
                echo_exactly(line)

    def show(self, rows: Rows, columns: Sequence[str] | None = None) -> None:
        """Print a table in the format of --formatter: these columns of the rows, or all."""
        headers = not self.silent and not self.no_table_headers
        shown = columns or (list(rows[0]) if rows else [])
        for line in FORMATTERS[self.formatter or "table"](shown, rows, headers):
            echo_exactly(line)

    def list_for_people(self, rows: Rows) -> None:
        """Print a listing of our own: at a terminal in columns that fit there, unless --formatter is given."""
        if not rows or self.formatter is not None or not sys.stdout.isatty():
            self.show(rows)
            return
        for line in aligned(list(rows[0]), rows, shutil.get_terminal_size().columns):
            click.echo(line, color="NO_COLOR" not in os.environ)


def echo_exactly(text: str) -> None:
    """Print a line as it is; to a terminal, which names could control, with its control characters escaped."""
    if sys.stdout.isatty():
        text = re.sub(r"[^\t\n]+", lambda part: one_line(part[0]), text)
    click.echo(text, color=True)  # otherwise click would take escape sequences out
