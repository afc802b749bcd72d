"""Completion of a shell, and man pages: both are made of the tree of commands."""

from inspect import cleandoc
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from rewindmq.engine.cli.exits import USAGE, CliError
from rewindmq.engine.cli.usage import command
from rewindmq.engine.config import VERSION

PROGRAM = "rewindmq"
SHELLS = ("bash", "zsh", "fish")
SEE_ALSO = "The pages for operators in docs/operators/ of the source."


@command("completion", click.Argument(["shell"], type=click.Choice(SHELLS)), common=False)
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and options in a shell.

    \b
    Examples:
      rewindmq completion bash > /etc/bash_completion.d/rewindmq
      rewindmq completion zsh > /usr/local/share/zsh/site-functions/_rewindmq
      rewindmq completion fish > ~/.config/fish/completions/rewindmq.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click has these shells"
    click.echo(found(context.find_root().command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source())


@command("man", click.Argument(["directory"], type=click.Path(path_type=Path)), common=False)
@click.pass_context
def man(context: click.Context, directory: Path) -> None:
    """Write man pages into a directory: one for the program, one for each command.

    \b
    Examples:
      rewindmq man /usr/local/share/man/man1
    """
    root = context.find_root().command
    assert isinstance(root, click.Group)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in pages(root).items():
            (directory / f"{name}.1").write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(USAGE, f"{directory}: {error.strerror}") from None


def commands_of(root: click.Group) -> dict[str, click.Command]:
    """Return all commands by name, each with its file imported."""
    top = click.Context(root)
    return {name: found for name in root.list_commands(top) if (found := root.get_command(top, name)) is not None}


def pages(root: click.Group) -> dict[str, str]:
    """Return the man page of the program and of each command that the help lists, by name."""
    top = click.Context(root, info_name=PROGRAM)
    commands = {name: each for name, each in commands_of(root).items() if not each.hidden}
    listed = [(name, each.get_short_help_str(200)) for name, each in commands.items()]
    found = {PROGRAM: _page(PROGRAM, top, ("COMMANDS", listed), SEE_ALSO)}
    for name, each in commands.items():
        context = click.Context(each, info_name=name, parent=top)
        found[f"{PROGRAM}-{name}"] = _page(f"{PROGRAM}-{name}", context, None, f"rewindmq(1). {SEE_ALSO}")
    return found


def _page(title: str, context: click.Context, listed: tuple[str, list[tuple[str, str]]] | None, also: str) -> str:
    command = context.command
    options = [record for each in command.get_params(context) if (record := each.get_help_record(context)) is not None]
    lines = [
        f'.TH "{roff(title.upper())}" "1" "" "RewindMQ {VERSION}" "RewindMQ"',
        ".SH NAME",
        f"{roff(title)} \\- {roff(command.get_short_help_str(200))}",
        ".SH SYNOPSIS",
        f".B {roff(context.command_path)}",
        roff(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
    ]
    for heading, records in (("OPTIONS", options), *([listed] if listed else [])):
        if records:
            lines += [f".SH {heading}", *(line for what, text in records for line in (".TP", _bold(what), roff(text)))]
    return "\n".join([*lines, ".SH SEE ALSO", roff(also)]) + "\n"


def _paragraphs(text: str) -> list[str]:
    """The help of a command. A paragraph below \\b keeps its lines, as click keeps them."""
    lines = []
    for paragraph in cleandoc(text).split("\n\n"):
        kept = paragraph.startswith("\b")
        lines += [".PP", *([".nf"] if kept else [])]
        lines += [roff(line) for line in paragraph.removeprefix("\b\n").split("\n")]
        lines += [".fi"] if kept else []
    return lines


def _bold(text: str) -> str:
    return f"\\fB{roff(text)}\\fP"


def roff(text: str) -> str:
    """Escape a text for roff: backslashes, hyphens, and a dot or quote at the beginning of a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


COMMANDS = (completion, man)
