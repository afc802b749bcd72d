"""Commands from a line of usage, and options from one.

    @command("move_message QUEUE", option("--to QUEUE", "The queue to move them to."), ...)
    def move_message(settings: CliSettings, queue: str, to: str | None, ...) -> None:

`NAME` is an argument, `[NAME]` one that may be left out, `[NAME]...` any number of them. In the line of an option a
word in capitals is its metavar, and a word in small letters the name of the function's parameter.
"""

import re
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

from rewindmq.engine.cli.formatters import FORMATTERS
from rewindmq.engine.cli.settings import DEFAULT_URL, CliSettings

EXISTING_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FILE = click.Path(path_type=Path)
QUIET_DEFAULTS = ("", 0, "0s")  # which the help of an option does not repeat


def option(line: str, help: str, type: Any = None, default: Any = None, **more: Any) -> click.Option:
    """Return an option, such as `--at time TIME`."""
    words = line.split()
    names = [word for word in words if word.startswith("-") or word != word.upper()]
    metavar = " ".join(word for word in words if word not in names)
    if default is not None:
        more = {"default": default, "show_default": default not in QUIET_DEFAULTS} | more
    return click.Option(names, type=type, metavar=metavar or None, help=help, **more)


def flag(line: str, help: str, **more: Any) -> click.Option:
    """Return an option without a value."""
    return click.Option(line.split(), is_flag=True, help=help, **more)


def argument(word: str, **more: Any) -> click.Argument:
    """Return the argument that a word of a usage means."""
    name = re.sub(r"\W", "", word).lower()
    count = -1 if word.endswith("...") else 1
    return click.Argument([name], required=not word.startswith("["), nargs=count, **more)


# Of every command, as of rabbitmqctl's, before or after the command's name: the later counts.
OPTIONS = (
    option("-n --node asked_node NAME", "Fail unless this node answers."),
    option("-p --vhost VHOST", "Virtual host (default: /)."),
    option("--formatter", "Format of listings (default: table).", click.Choice(list(FORMATTERS))),
    flag("-s --silent", "Print no messages and no table headers.", default=None),
    flag("-q --quiet", "Print no messages.", default=None),
    flag("--no-table-headers", "Print no table headers.", default=None),
    option("--reason TEXT", "Why; the history shows it beside what the command does."),
    option("-t --timeout", "Seconds to wait for an answer (default: 60).", click.FloatRange(min=0)),
    option("--url URL", f"Address of the management API (default: REWINDMQ_URL, or {DEFAULT_URL})."),
    option("--http-port", "Port of the management API on this machine, instead of --url.", click.IntRange(1, 65535)),
    option("--user NAME", "User to log in as (default: REWINDMQ_USER, or guest)."),
    option("--password PASSWORD", "The same on the command line, where others see it: --password-file is better."),
    option(
        "--password-file FILE",
        "File with the password of the user (default: REWINDMQ_PASSWORD_FILE, or REWINDMQ_PASSWORD, or guest).",
        FILE,
    ),
    option(
        "--tls-ca-cert-file",
        "Certificate authority to trust with https (default: REWINDMQ_TLS_CA, or the system's).",
        EXISTING_FILE,
    ),
)
SEEN = (
    "Warning: other users of this machine see --password; give --password-file FILE or REWINDMQ_PASSWORD_FILE instead"
)


def take_options(values: dict[str, Any]) -> CliSettings:
    """Take the values of the common options out of those of a command, and return all that were given so far."""
    settings = click.get_current_context().ensure_object(CliSettings)
    if values["password"] is not None:
        click.echo(SEEN, err=True)
    settings.update(**{name: values.pop(name) for name in CliSettings.__dataclass_fields__})
    return settings


def made(usage: str, help: str, params: Sequence[click.Parameter], run: Callable[..., Any]) -> click.Command:
    """Return the command that calls `run` with the settings and the values of its parameters."""

    @wraps(run)
    def call(**values: Any) -> Any:
        return run(take_options(values), **values)

    return _built(usage, help, params, call, OPTIONS)


def command(usage: str, *params: click.Parameter, common: bool = True) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a command. Its docstring is the help; arguments with a type follow those of the usage.

    `common`: it takes the options of all commands, and the function gets them as its first argument, `settings`."""

    def decorated(run: Callable[..., Any]) -> click.Command:
        every = (*params, *reversed(getattr(run, "__click_params__", ())))  # of decorators such as with_kafka
        help = run.__doc__ or ""
        return made(usage, help, every, run) if common else _built(usage, help, every, run, ())

    return decorated


def _built(
    usage: str, help: str, params: Sequence[click.Parameter], run: Callable[..., Any], last: Sequence[click.Parameter]
) -> click.Command:
    name, *words = usage.split()
    options = [each for each in params if isinstance(each, click.Option)]
    typed = [each for each in params if isinstance(each, click.Argument)]
    every = [*options, *map(argument, words), *typed, *last]
    return click.Command(name, params=every, callback=run, help=cleandoc(help))
