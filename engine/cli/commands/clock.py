"""Our own command: the time in the log set right after a wrong date."""

import click

from rewindmq.engine.cli.client import path
from rewindmq.engine.cli.settings import Settings, common


@click.command("repair_clock")
@common
def repair_clock(settings: Settings) -> None:
    """Set the time in the log to this machine's wall clock; what is in queues expires when it would have."""
    settings.banner("Setting the time in the log to the wall clock ...")
    done = settings.client().ask("POST", path("clock", "repair")).json()
    click.echo(f"from {done['before']} to {done['after']}")


COMMANDS = (repair_clock,)
