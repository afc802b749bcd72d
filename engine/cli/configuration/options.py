"""Makes options of commands from the table of settings."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from rewindmq.engine.cli.configuration.sources import FILE_VARIABLE, Sources
from rewindmq.engine.cli.configuration.table import SETTINGS, Setting


def option_of(setting: Setting, variable: bool = False) -> Callable[[Any], Any]:
    """Return the option of a setting. `variable`: also read the environment, for a command that reads no file."""
    kind = setting.kind
    named = f"{setting.option}/--no-{setting.option[2:]}" if kind.is_flag else setting.option
    how: dict[str, Any] = {} if kind.is_flag else {"type": kind.parser, "multiple": kind.several}
    if setting.default is not None:
        how |= {"default": False if kind.is_flag else setting.default, "show_default": not kind.is_flag}
    if setting.bare:
        how |= {"is_flag": False, "flag_value": setting.bare}
    if variable:
        how["envvar"] = setting.environment
    return click.option(named, setting.name, metavar=setting.metavar, help=setting.help, **how)


def with_sources(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that adds all settings as options, and --config. The command gets them as `sources`."""

    @functools.wraps(command)
    def with_one(*arguments: Any, config_file: Path | None, **options: Any) -> Any:
        context = click.get_current_context()
        parsed = {name: options.pop(name) for name in SETTINGS}
        flags = {
            name: value
            for name, value in parsed.items()
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        return command(*arguments, sources=Sources.found(flags, os.environ, config_file), **options)

    for setting in reversed(SETTINGS.values()):
        with_one = option_of(setting)(with_one)
    return click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help=f"A TOML file with settings (default: {FILE_VARIABLE}, or /etc/rewindmq/rewindmq.toml if it exists).",
    )(with_one)
