"""Our own command `repair_clock`: corrects the time in the log after a wrong date."""

import click

from rewindmq.engine.cli.client import path
from rewindmq.engine.cli.settings import Settings, with_settings


@click.command("repair_clock")
@with_settings
def repair_clock(settings: Settings) -> None:
    """Set the time in the log to the wall clock of the broker's machine.

    Messages in queues keep their remaining time to live."""
    settings.banner("Setting the time in the log to the wall clock ...")
    done = settings.client().request("POST", path("clock", "repair")).json()
    click.echo(f"from {done['before']} to {done['after']}")


COMMANDS = (repair_clock,)
