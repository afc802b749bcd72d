"""The options that say which Kafka has the log, for commands that read or write the log themselves."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rewindmq.engine.cli.configuration.assembly import kafka_settings
from rewindmq.engine.cli.configuration.options import option_of
from rewindmq.engine.cli.configuration.sources import ConfigError
from rewindmq.engine.cli.configuration.table import SETTINGS
from rewindmq.engine.cli.exits import CONFIG, CliError

if TYPE_CHECKING:
    from rewindmq.engine.keeping.location import History

# The same as those of `start`, also from the environment: these commands read no configuration file.
NAMES = ("kafka", "kafka_prefix", "kafka_setting", "kafka_config")


@dataclass(frozen=True, slots=True)
class Kafka:
    """The Kafka that has the log. `servers`: None when the log is in the data directory. `asked_for`: the option named
    them, not the environment."""

    servers: str | None
    asked_for: bool
    prefix: str
    settings: tuple[tuple[str, str], ...]
    archive: str | None = None  # what Kafka no longer has is there; None: a node's directory may name it

    def history(self, data: Path | None) -> "History":
        """Return the location of the history: this Kafka, or the data directory."""
        from rewindmq.engine.keeping.location import History

        return History(data, self.servers, self.prefix, self.settings, archive=self.archive)


def with_kafka(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that adds these options. The command gets them as `kafka`."""

    @functools.wraps(command)
    def with_one(
        *arguments: Any,
        kafka: str | None,
        kafka_prefix: str,
        kafka_setting: tuple[tuple[str, str], ...],
        kafka_config: Path | None,
        **options: Any,
    ) -> Any:
        context = click.get_current_context()
        asked_for = context.get_parameter_source("kafka") is ParameterSource.COMMANDLINE
        if kafka == "":
            raise click.BadParameter("'' is not an address", param_hint="--kafka")
        if kafka is None and context.get_parameter_source("kafka_prefix") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--kafka-prefix needs --kafka")
        if not kafka_prefix:
            raise click.BadParameter("'' is not a prefix", param_hint="--kafka-prefix")
        try:
            settings = kafka_settings(kafka_setting, kafka_config)
        except ConfigError as error:
            raise CliError(CONFIG, str(error)) from None
        return command(*arguments, kafka=Kafka(kafka, asked_for, kafka_prefix, settings), **options)

    for name in reversed(NAMES):
        with_one = option_of(SETTINGS[name], variable=True)(with_one)
    return with_one


def with_kafka_and_archive(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that adds these options, and one for the archive of the topics. The command gets all as
    `kafka`."""

    @click.option(
        "--archive",
        "archive_url",
        metavar="URL",
        help="With --kafka: the archive of the topics, which has what Kafka no longer has.",
    )
    @functools.wraps(command)
    def with_both(*arguments: Any, kafka: Kafka, archive_url: str | None, **options: Any) -> Any:
        if archive_url is not None and kafka.servers is None:
            raise click.UsageError("--archive needs --kafka: a data directory names its archive by itself")
        return command(*arguments, kafka=replace(kafka, archive=archive_url), **options)

    return with_kafka(with_both)
