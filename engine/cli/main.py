"""`rewindmq`: rabbitmqctl's commands over the management API, and our own: start, rewind, verify.

Each failure is one line on stderr and an exit code of sysexits.h (exits.py). An option may come before or after the
command's name.
"""

import os
import sys
from importlib import import_module
from typing import Any

import click

from rewindmq import __version__, builds
from rewindmq.engine.cli.commands import (
    access,
    connections,
    definitions,
    diagnostics,
    listings,
    node,
    operations,
    own,
    parameters,
    queues,
    quorum,
    vhosts,
)
from rewindmq.engine.cli.exits import DATA, SOFTWARE, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.usage import OPTIONS, command, take_options
from rewindmq.engine.file_modes import restrict_new_files

PROGRAM = """RewindMQ: a message queue whose queues can be rewound.

Most commands are rabbitmqctl's and ask a running broker. Options may come before or after the command.
`rewindmq COMMAND --help` shows options and examples.

\b
Examples:
  rewindmq try
  rewindmq start
  rewindmq list_queues name messages consumers
  rewindmq rewind orders --at 10m
  rewindmq restore orders --undo purge
"""


class LazyCommand(click.Command):
    """A command whose file is imported when the command is used: it needs more than the management API."""

    def __init__(self, name: str, help: str, file: str) -> None:
        super().__init__(name, help=help)
        self.file = file

    def load(self) -> click.Command:
        """Import the command."""
        commands: tuple[click.Command, ...] = import_module(f"rewindmq.engine.cli.{self.file}").COMMANDS
        return next(each for each in commands if each.name == self.name)


def later(file: str, **lines: str) -> tuple[LazyCommand, ...]:
    """Return the commands of a file, each with its line in the list."""
    return tuple(LazyCommand(name, line, file) for name, line in lines.items())


SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Node": (
        *later(
            "configuration.commands",
            start="Run a broker in the foreground, until SIGINT or SIGTERM.",
            config="Show each setting of a broker, its value, and where the value comes from.",
        ),
        *later("commands.trial", **{"try": "Run a temporary broker with a week of history, to try RewindMQ out."}),
        *node.COMMANDS,
        *operations.COMMANDS,
        *later("commands.copy_state", copy_state="Copy the state of a running node on Kafka for a new node."),
    ),
    "Diagnostics": diagnostics.COMMANDS,
    "History": (
        *later(
            "commands.history",
            rewind="Show the messages of QUEUE at a moment of the past.",
            restore="Bring messages of QUEUE back, from a moment or from before a purge.",
            verify="Fold the log again and compare the result with the stored state.",
        ),
        *later(
            "commands.answers",
            find="Find messages by what is in them, in QUEUE or in all queues of the virtual host.",
            history="Show the last outcomes in QUEUE.",
            biography="Show the life of a message, its dead letters and its copies.",
            diff="Show what changed in QUEUE between two moments.",
            what_if="Show what a policy would have done to QUEUE.",
            spans="Make spans of messages with a header traceparent.",
        ),
        *later("commands.events", events="Print the log, one event a line."),
        *own.MARKS,
        *later(
            "commands.seals",
            seal="Sign all that is in the log: a Merkle root and the hash chain of each partition.",
            verify_seals="Check the whole log against its seals.",
            export_seals="Print the seals, one a line, for --copies of the other commands.",
            prove="Print a proof that an event is in the sealed history.",
            check_proof="Check a proof and show its event.",
        ),
        *later(
            "commands.archive",
            archive="Bring what is new in the history into object storage.",
            archive_status="Show how far each partition is archived.",
            archive_verify="Read the whole archive, and prove every block of it.",
        ),
        *later(
            "commands.recover", recover="Make a data directory from an archive alone; with --kafka, topics on a Kafka."
        ),
        *later("commands.trim", trim="Remove the oldest part of the history, for good."),
        *own.ERASURES,
        *later("commands.erasures", check_erasure="Check that the keys of SUBJECT, or of a day, are destroyed."),
        *later(
            "commands.versions", compare_versions="Fold the history with another version and show the first difference."
        ),
        *own.CLOCK,
    ),
    "Policies": parameters.POLICIES,
    "Connections": connections.COMMANDS,
    "Monitoring": listings.COMMANDS,
    "Queues": queues.COMMANDS,
    "Replication": (
        *quorum.COMMANDS,
        *later(
            "standby",
            follow="Copy the log of a running broker, and serve its history read-only.",
            promote="Make the copy of a follower the leader: then start a broker on it.",
        ),
        *own.FOLLOWERS,
    ),
    "Access control": access.COMMANDS,
    "Virtual hosts": vhosts.VHOSTS,
    "Limits": (*vhosts.LIMITS, *operations.LIMITS),
    "Parameters": parameters.PARAMETERS,
    "Definitions": definitions.COMMANDS,
    "Moving": later("shovel", shovel="Move the messages of a queue to another broker."),
    "Kafka's consoles": later(
        "registry",
        register_schemas="Give a schema registry the schemas of history.",
        copy_for_consoles="Copy the topics of a history into topics that Kafka's consoles read.",
    ),
    "This program": later(
        "configuration.manual",
        completion="Print a script that completes commands and options in a shell.",
        man="Write man pages into a directory: one for the program, one for each command.",
    ),
}


class Group(click.Group):
    """The program: its help lists the commands by section."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self.commands.get(cmd_name)
        return found.load() if isinstance(found, LazyCommand) else found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                shown = [command for command in commands if not command.hidden]
                formatter.write_dl([(command.name or "", command.get_short_help_str(80)) for command in shown])


@command("help [COMMAND]", common=False)
def show_help(command: str | None) -> None:
    """Show the help of a command."""
    context = click.get_current_context().find_root()
    found = rewindmq.get_command(context, command) if command else rewindmq
    if found is None:
        raise CliError(USAGE, f"Command '{command}' not found; 'rewindmq help' lists them")
    with click.Context(found, info_name=f"rewindmq {command}" if command else "rewindmq") as inner:
        click.echo(found.get_help(inner))


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]}, help=PROGRAM)
@click.version_option(__version__, message=f"{__version__}, build: {builds.running()}".replace("%", "%%"))
def rewindmq(**values: Any) -> None:
    """Take the options before the name of the command."""
    take_options(values)


rewindmq.params += OPTIONS
for _each in (show_help, *(each for commands in SECTIONS.values() for each in commands)):
    rewindmq.add_command(_each)


def add_command(section: str, command: click.Command) -> None:
    """Add a command of a package that the engine does not know."""
    SECTIONS[section] = (*SECTIONS[section], command)
    rewindmq.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """The console script: runs a command and exits with its code."""
    restrict_new_files()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run a command and returns its exit code. Each failure is one line on stderr."""
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
    except (BrokenPipeError, SystemExit):  # `| head` closed the pipe: click would return 1, but this is not an error
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
    """Return the text with each run of white space, line breaks too, as one space."""
    return " ".join(text.split())
