"""Our own commands: moments with a name."""

from typing import cast

import click

from rewindmq.engine.cli.client import Refused
from rewindmq.engine.cli.exits import UNAVAILABLE, CliError
from rewindmq.engine.cli.settings import Settings, common
from rewindmq.engine.cli.values import Value, json_line


@click.command("set_mark")
@click.option("--note", default="", help="What it is about.")
@click.argument("name")
@common
def set_mark(settings: Settings, name: str, note: str) -> None:
    """Name this moment, of all queues; then say mark:NAME wherever a time is asked for."""
    settings.banner(f'Setting mark "{name}" ...')
    settings.client().put("marks", name, content={"note": note})


@click.command("list_marks")
@common
def list_marks(settings: Settings) -> None:
    """List the moments that have a name."""
    settings.banner("Listing marks ...")
    columns = ("name", "time", "user", "note", "positions")
    settings.show(columns, [{name: value(each[name]) for name in columns} for each in settings.client().get("marks")])


def value(of_api: Value) -> Value:
    return json_line(cast(dict[str, Value], of_api)) if isinstance(of_api, dict) else of_api


@click.command("clear_mark")
@click.argument("name")
@common
def clear_mark(settings: Settings, name: str) -> None:
    """Forget the name of a moment; the history stays as it is."""
    settings.banner(f'Clearing mark "{name}" ...')
    try:
        settings.client().delete("marks", name)
    except Refused as refused:
        raise CliError(UNAVAILABLE, f'There is no mark "{name}"') if refused.status == 404 else refused from None


COMMANDS = (set_mark, list_marks, clear_mark)
