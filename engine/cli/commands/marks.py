"""Our own commands: moments with a name."""

from typing import cast

import click

from rewindmq.engine.cli.exits import UNAVAILABLE, CliError
from rewindmq.engine.cli.lookups import missing
from rewindmq.engine.cli.settings import Settings, with_settings
from rewindmq.engine.cli.values import Value, json_line


@click.command("set_mark")
@click.option("--note", default="", help="A text that is stored with the mark.")
@click.argument("name")
@with_settings
def set_mark(settings: Settings, name: str, note: str) -> None:
    """Give this moment a name.

    All commands take mark:NAME for a time.

    \b
    Examples:
      rewindmq set_mark before-the-release --note "release 4.2"
      rewindmq rewind orders --at mark:before-the-release
    """
    settings.banner(f'Setting mark "{name}" ...')
    settings.client().put("marks", name, content={"note": note})


@click.command("list_marks")
@with_settings
def list_marks(settings: Settings) -> None:
    """List the moments that have names."""
    settings.banner("Listing marks ...")
    columns = ("name", "time", "user", "note", "positions")
    settings.show(columns, [{name: value(each[name]) for name in columns} for each in settings.client().get("marks")])


def value(of_api: Value) -> Value:
    """A field of a mark as it is printed."""
    return json_line(cast(dict[str, Value], of_api)) if isinstance(of_api, dict) else of_api


@click.command("clear_mark")
@click.argument("name")
@with_settings
def clear_mark(settings: Settings, name: str) -> None:
    """Remove the name of a moment. The history stays."""
    settings.banner(f'Clearing mark "{name}" ...')
    with missing(CliError(UNAVAILABLE, f'There is no mark "{name}"')):
        settings.client().delete("marks", name)


COMMANDS = (set_mark, list_marks, clear_mark)
