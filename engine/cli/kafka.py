"""The options that say which Kafka has the log, for commands that read or write the log themselves."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rewindmq.engine.cli.configuration.assembly import kafka_settings
from rewindmq.engine.cli.configuration.options import option_of
from rewindmq.engine.cli.configuration.sources import ConfigError
from rewindmq.engine.cli.configuration.table import SETTINGS
from rewindmq.engine.cli.exits import CONFIG, USAGE, CliError

if TYPE_CHECKING:
    from rewindmq.engine.keeping.location import InDirectory, InKafka

# The same as those of `start`, also from the environment: these commands read no configuration file.
NAMES = ("kafka", "kafka_prefix", "kafka_setting", "kafka_config")


def with_kafka(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options to a command, which gets the topics as `kafka`; None: neither an option nor the environment
    names a Kafka."""

    @functools.wraps(command)
    def with_one(
        *arguments: Any,
        kafka: str | None,
        kafka_prefix: str,
        kafka_setting: tuple[tuple[str, str], ...],
        kafka_config: Path | None,
        **options: Any,
    ) -> Any:
        if kafka == "":
            raise click.BadParameter("'' is not an address", param_hint="--kafka")
        if kafka is None and _is_on_command_line("kafka_prefix"):
            raise click.UsageError("--kafka-prefix needs --kafka")
        if not kafka_prefix:
            raise click.BadParameter("'' is not a prefix", param_hint="--kafka-prefix")
        try:
            settings = kafka_settings(kafka_setting, kafka_config)
        except ConfigError as error:
            raise CliError(CONFIG, str(error)) from None
        return command(*arguments, kafka=_topics(kafka, kafka_prefix, settings), **options)

    for name in reversed(NAMES):
        with_one = option_of(SETTINGS[name], variable=True)(with_one)
    return with_one


def with_kafka_and_archive(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add these options, and one for the archive of the topics, to a command, which gets all as `kafka`."""

    @click.option(
        "--archive",
        "archive_url",
        metavar="URL",
        help="With --kafka: the archive of the topics, which has what Kafka no longer has.",
    )
    @functools.wraps(command)
    def with_both(*arguments: Any, kafka: "InKafka | None", archive_url: str | None, **options: Any) -> Any:
        if archive_url is not None and kafka is None:
            raise click.UsageError("--archive needs --kafka: a data directory names its archive by itself")
        return command(*arguments, kafka=kafka and replace(kafka, archive=archive_url), **options)

    return with_kafka(with_both)


def _topics(servers: str | None, prefix: str, settings: tuple[tuple[str, str], ...]) -> "InKafka | None":
    if servers is None:
        return None
    from rewindmq.engine.keeping.location import InKafka

    return InKafka(servers, prefix, settings)


def is_kafka_asked_for() -> bool:
    """Return True if an option of the command that runs names the Kafka, not the environment."""
    return _is_on_command_line("kafka")


def _is_on_command_line(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def location_of(data: Path | None, kafka: "InKafka | None") -> "InDirectory | InKafka":
    """Return the location of the history: this Kafka, with `data` as a node's directory, or else the directory `data`.

    Raises CliError when there is neither."""
    from rewindmq.engine.keeping.location import InDirectory

    if kafka is not None:
        return replace(kafka, data=data)
    if data is None:
        raise CliError(USAGE, "say where the history is: --data DIR, or --kafka HOST:PORT")
    return InDirectory(data)


def location_asked_for(data: Path | None, kafka: "InKafka | None") -> "InDirectory | InKafka":
    """Return the location as `location_of`, but a Kafka that only the environment names yields to a directory.

    Raises CliError."""
    return location_of(data, kafka if data is None or is_kafka_asked_for() else None)
