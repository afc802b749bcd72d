"""The commands about the configuration of a broker: start, config."""

import os
from dataclasses import replace
from pathlib import Path

import click

from rewindmq.engine.cli.configuration.assembly import Impossible, config_of, credentials_of
from rewindmq.engine.cli.configuration.options import with_sources
from rewindmq.engine.cli.configuration.reload import rereader
from rewindmq.engine.cli.configuration.sources import ConfigError, Sources, Value
from rewindmq.engine.cli.exits import CONFIG, CliError
from rewindmq.engine.cli.formatters import FORMATTERS
from rewindmq.engine.cli.shapes import Setting
from rewindmq.engine.cli.usage import FILE, command, flag, option
from rewindmq.engine.cli.values import Value as Cell
from rewindmq.engine.config import Config

COLUMNS = tuple(Setting.__annotations__)


@command(
    "start",
    flag(
        "--accept-lost-end",
        "Start although the log lost records at its end. What still tells of them is kept in DIR/aside.",
    ),
    common=False,
)
@with_sources
def start(sources: Sources, accept_lost_end: bool) -> None:
    """Run a broker in the foreground, until SIGINT or SIGTERM.

    The log is in the data directory, ./rewindmq-data unless you give another one. With --kafka the log is in Kafka, and
    the broker is one of several nodes. Each option can also be in a file (`rewindmq config --help`). SIGHUP reads the
    file again.

    \b
    Examples:
      rewindmq start
      rewindmq start --config /etc/rewindmq/rewindmq.toml
      rewindmq start --data ./data-1 --node rewindmq-1 --kafka kafka-1:9092,kafka-2:9092
    """
    from rewindmq.engine.process import run

    values, config = read_sources(sources)
    config = replace(config, accept_lost_end=accept_lost_end)
    os.environ.update(
        credentials_of(values["archive_credentials"].value)
    )  # the store's client takes them from there, here and in the archiver
    code = run(config, rereader(sources, values))  # says by itself, in one line, what prevents a start
    if code:
        raise click.exceptions.Exit(code)


@command(
    "config",
    option("--check FILE", "Check this file only, and print no more.", FILE),
    option("--format form", "Output format.", click.Choice(["table", "json"]), "table"),
    common=False,
)
@with_sources
def config(sources: Sources, check: Path | None, form: str) -> None:
    """Show each setting of a broker, its value, and where the value comes from.

    A flag counts before the environment, the environment before the file, the file before the default. Give the options
    that you give to `start`. No broker is asked. Of a file with a secret only the path is shown.

    \b
    Examples:
      rewindmq config
      rewindmq config --config ./rewindmq.toml --format json
      rewindmq config --check ./rewindmq.toml
    """
    if check is not None:
        _check(check)
        return
    values, _ = read_sources(sources)
    rows: list[dict[str, Cell]] = [
        {"name": name, "value": shown(value), "from": value.origin} for name, value in values.items()
    ]
    for line in FORMATTERS[form](COLUMNS, rows, True):
        click.echo(line)


def shown(value: Value) -> str | None:
    """Return the value for people; None: the setting has none."""
    return value.shown if value.texts else None


def _check(file: Path) -> None:
    """Refuse a file that `start` would refuse."""
    read_sources(Sources({}, {}, file))
    click.echo(f"{file}: no errors")


def read_sources(sources: Sources) -> tuple[dict[str, Value], Config]:
    """Find all values and make the configuration.

    CliError; click.UsageError where flags alone make no sense together."""
    try:
        values = sources.values()
        config = config_of(values)
        credentials_of(values["archive_credentials"].value)
    except ConfigError as error:
        raise CliError(CONFIG, str(error)) from None
    except Impossible as error:
        if error.usage:
            raise click.UsageError(str(error), click.get_current_context()) from None
        raise CliError(CONFIG, str(error)) from None
    return values, config


COMMANDS = (start, config)
