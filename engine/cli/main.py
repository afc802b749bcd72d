"""`rewindmq`: rabbitmqctl's commands over the management API, and our own: start, rewind, verify.

Every failure is one line on stderr and an exit code of sysexits.h (exits.py). Options are taken before the command's
name and after it.
"""

import os
import sys

import click

from rewindmq.engine.cli.commands import (
    access,
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
    seals,
    versions,
    vhosts,
    watermarks,
)
from rewindmq.engine.cli.commands import copy_state as copying
from rewindmq.engine.cli.commands import operations as operating
from rewindmq.engine.cli.exits import SOFTWARE, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.settings import Settings, common
from rewindmq.engine.config import VERSION
from rewindmq.engine.file_modes import restrict_new_files

SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Node": (*node.COMMANDS, *operating.COMMANDS, *copying.COMMANDS),
    "Diagnostics": (*diagnostics.COMMANDS, *diagnostics.NOT_HERE),
    "History": (
        *history.COMMANDS,
        *events.COMMANDS,
        *marks.COMMANDS,
        *seals.COMMANDS,
        *erasures.COMMANDS,
        *versions.COMMANDS,
        *clock.COMMANDS,
    ),
    "Policies": policies.COMMANDS,
    "Connections": connections.COMMANDS,
    "Monitoring": listings.COMMANDS,
    "Queues": queues.COMMANDS,
    "Replication": quorum.COMMANDS,
    "Access control": access.COMMANDS,
    "Virtual hosts": vhosts.COMMANDS,
    "Limits": (*limits.COMMANDS, *watermarks.COMMANDS),
    "Parameters": parameters.COMMANDS,
    "Definitions": definitions.COMMANDS,
}


class Group(click.Group):
    """Lists its commands by section; an unknown one is a usage error that names near misses."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                shown = [command for command in commands if not command.hidden]
                formatter.write_dl([(command.name or "", command.get_short_help_str(80)) for command in shown])


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="%(version)s")
@common
def rewindmq(settings: Settings) -> None:
    """RewindMQ: a message queue whose queues can be rewound."""


@rewindmq.command("help")
@click.argument("command", required=False)
@click.pass_context
def show_help(context: click.Context, command: str | None) -> None:
    """Show how a command is used."""
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
    """One more, of a package that the engine does not know."""
    SECTIONS[section] = (*SECTIONS[section], command)
    rewindmq.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """The console script: runs a command and exits with its code."""
    restrict_new_files()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
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
    except (BrokenPipeError, SystemExit):  # nobody reads on (`| head`), which click ends with 1; but it is no error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        click.echo(f"Error: {error.filename or ''}: {error.strerror or error}".replace(": :", ":"), err=True)
        return UNAVAILABLE
    except Exception as error:
        click.echo(f"Error: a defect of rewindmq: {type(error).__name__}: {one_line(str(error))}", err=True)
        return SOFTWARE


def one_line(text: str) -> str:
    return " ".join(text.split())
