"""`rewindmq`: rabbitmqctl's commands over the management API, and our own: start, rewind, verify.

Each failure is one line on stderr and an exit code of sysexits.h (exits.py). An option may stand before or after the
command's name.
"""

import os
import sys

import click

from rewindmq.engine.cli import registry, shovel, standby
from rewindmq.engine.cli.commands import (
    access,
    answers,
    archive,
    clock,
    connections,
    definitions,
    diagnostics,
    erasures,
    events,
    history,
    limits,
    listings,
    marks,
    node,
    parameters,
    policies,
    queues,
    quorum,
    recover,
    seals,
    trim,
    versions,
    vhosts,
)
from rewindmq.engine.cli.commands import copy_state as copying
from rewindmq.engine.cli.commands import operations as operating
from rewindmq.engine.cli.configuration import commands as configuration
from rewindmq.engine.cli.configuration import manual
from rewindmq.engine.cli.exits import DATA, SOFTWARE, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.settings import Settings, with_settings
from rewindmq.engine.config import VERSION
from rewindmq.engine.file_modes import restrict_new_files

SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Node": (*configuration.COMMANDS, *node.COMMANDS, *operating.COMMANDS, *copying.COMMANDS),
    "Diagnostics": (*diagnostics.COMMANDS, *diagnostics.NOT_HERE),
    "History": (
        *history.COMMANDS,
        *answers.COMMANDS,
        *events.COMMANDS,
        *marks.COMMANDS,
        *seals.COMMANDS,
        *archive.COMMANDS,
        *recover.COMMANDS,
        *trim.COMMANDS,
        *erasures.COMMANDS,
        *versions.COMMANDS,
        *clock.COMMANDS,
    ),
    "Policies": policies.COMMANDS,
    "Connections": connections.COMMANDS,
    "Monitoring": listings.COMMANDS,
    "Queues": queues.COMMANDS,
    "Replication": (*quorum.COMMANDS, *standby.COMMANDS),
    "Access control": access.COMMANDS,
    "Virtual hosts": vhosts.COMMANDS,
    "Limits": (*limits.COMMANDS, *operating.LIMITS),
    "Parameters": parameters.COMMANDS,
    "Definitions": definitions.COMMANDS,
    "Moving": shovel.COMMANDS,
    "Kafka's consoles": registry.COMMANDS,
    "This program": manual.COMMANDS,
}


class Group(click.Group):
    """The program: its help lists the commands by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                shown = [command for command in commands if not command.hidden]
                formatter.write_dl([(command.name or "", command.get_short_help_str(80)) for command in shown])


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="%(version)s")
@with_settings
def rewindmq(settings: Settings) -> None:
    """RewindMQ: a message queue whose queues can be rewound.

    Most commands are rabbitmqctl's and ask a running broker. Options may stand before or after the command.
    `rewindmq COMMAND --help` shows options and examples.

    \b
    Examples:
      rewindmq start --data ./data
      rewindmq list_queues name messages consumers
      rewindmq rewind orders --at 10m
      rewindmq restore orders --undo purge
    """


@rewindmq.command("help")
@click.argument("command", required=False)
@click.pass_context
def show_help(context: click.Context, command: str | None) -> None:
    """Show the help of a command."""
    assert context.parent is not None
    found = rewindmq.get_command(context, command) if command else rewindmq
    if found is None:
        raise CliError(USAGE, f"Command '{command}' not found; 'rewindmq help' lists them")
    with click.Context(found, info_name=f"rewindmq {command}" if command else "rewindmq") as inner:
        click.echo(found.get_help(inner))


for _commands in SECTIONS.values():
    for _command in _commands:
        rewindmq.add_command(_command)


def add_command(section: str, command: click.Command) -> None:
    """Adds a command of a package that the engine does not know."""
    SECTIONS[section] = (*SECTIONS[section], command)
    rewindmq.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """The console script: runs a command and exits with its code."""
    restrict_new_files()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Runs a command and returns its exit code. Each failure is one line on stderr."""
    try:
        code = rewindmq.main(arguments, prog_name="rewindmq", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        usage = " ".join(error.ctx.get_usage().split()) if error.ctx else "rewindmq --help"
        click.echo(f"Error (argument validation): {one_line(error.format_message())} {usage}", err=True)
        return USAGE
    except CliError as error:
        click.echo(f"Error {error.line}" if error.line.startswith("(") else f"Error: {error.line}", err=True)
        return error.code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (BrokenPipeError, SystemExit):  # `| head` closed the pipe: click would return 1, but this is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        click.echo(f"Error: {error.filename or ''}: {error.strerror or error}".replace(": :", ":"), err=True)
        return UNAVAILABLE
    except Exception as error:
        from rewindmq.projections.machine.state import NewerHistory  # here: few commands read a history

        if isinstance(error, NewerHistory):
            click.echo(f"Error: {error}", err=True)
            return DATA
        click.echo(f"Error: a defect of rewindmq: {type(error).__name__}: {one_line(str(error))}", err=True)
        return SOFTWARE


def one_line(text: str) -> str:
    """The text with each run of white space, line breaks too, as one space."""
    return " ".join(text.split())
