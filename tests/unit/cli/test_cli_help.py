"""The help of each command: one line in the list, and examples that use what the command has."""

import shlex

import click
import pytest

from rewindmq.engine.cli.configuration.manual import commands_of
from rewindmq.engine.cli.main import SECTIONS, LazyCommand, rewindmq

COMMANDS = {name: command for name, command in commands_of(rewindmq).items() if not command.hidden}
NO_VERB = ("A", "An", "The", "What", "Is", "Are", "Does", "How", "Where", "Of", "Everything")


def help_of(command: click.Command) -> str:
    return command.get_help(click.Context(command, info_name=command.name))


def examples_of(command: click.Command) -> list[str]:
    """The lines that begin with the program's name, below "Example:" or "Examples:"."""
    _, found, below = help_of(command).partition("Example")
    lines = [line.strip() for line in below.splitlines()] if found else []
    return [line for line in lines if line.startswith("rewindmq ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_has_a_whole_sentence_that_begins_with_a_verb(name: str) -> None:
    line = COMMANDS[name].get_short_help_str(80)
    assert line, "no docstring"
    assert not line.endswith(("...", "?")), line
    assert line.split()[0] not in NO_VERB, line


@pytest.mark.parametrize("line", [each for part in SECTIONS.values() for each in part if isinstance(each, LazyCommand)])
def test_the_list_says_of_a_command_imported_later_what_its_help_says(line: LazyCommand) -> None:
    assert line.get_short_help_str(200) == COMMANDS[str(line.name)].get_short_help_str(200)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_says_what_it_is(name: str) -> None:
    options = [each for each in COMMANDS[name].params if isinstance(each, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("name", ["start", "rewind", "restore", "events", "set_policy", "set_permissions", "seal"])
def test_a_command_that_needs_examples_has_some(name: str) -> None:
    assert examples_of(COMMANDS[name])


@pytest.mark.parametrize("line", [line for each in (rewindmq, *COMMANDS.values()) for line in examples_of(each)])
def test_an_example_uses_a_command_and_options_that_exist(line: str) -> None:
    _, name, *arguments = shlex.split(line.partition(" > ")[0])
    command = COMMANDS[name]
    _, rest, order = command.make_parser(click.Context(command)).parse_args(arguments)
    assert rest == []
    assert all(isinstance(each, click.Parameter) for each in order)
