"""The options that say which Kafka has the log, for commands that read or write the log themselves."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from rewindmq.engine.log.location import History

OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--kafka",
        "servers",
        metavar="HOST:PORT,...",
        envvar="REWINDMQ_KAFKA",
        help="Bootstrap servers of the Kafka that has the log. Without it the log is in the data directory.",
    ),
    click.option(
        "--kafka-prefix", "prefix", default="rewindmq", show_default=True, help="Prefix of the names of the topics."
    ),
    click.option(
        "--kafka-setting",
        "settings_given",
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting of the Kafka clients, by librdkafka's names. May be given several times.",
    ),
)


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
        """The location of the history: this Kafka, or the data directory."""
        from rewindmq.engine.log.location import History

        return History(data, self.servers, self.prefix, self.settings, archive=self.archive)


def with_kafka(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds these options. The command gets them as `kafka`."""

    @functools.wraps(command)
    def with_one(
        *arguments: Any, servers: str | None, prefix: str, settings_given: tuple[str, ...], **options: Any
    ) -> Any:
        context = click.get_current_context()
        asked_for = context.get_parameter_source("servers") is ParameterSource.COMMANDLINE
        if servers == "":
            raise click.BadParameter("'' is not an address", param_hint="--kafka")
        if servers is None and context.get_parameter_source("prefix") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--kafka-prefix needs --kafka")
        if not prefix:
            raise click.BadParameter("'' is not a prefix", param_hint="--kafka-prefix")
        settings = []
        for setting in settings_given:
            key, separator, value = setting.partition("=")
            if not separator:
                raise click.BadParameter(f"'{setting}' is not KEY=VALUE", param_hint="--kafka-setting")
            settings.append((key, value))
        return command(*arguments, kafka=Kafka(servers, asked_for, prefix, tuple(settings)), **options)

    for option in reversed(OPTIONS):
        with_one = option(with_one)
    return with_one


def with_kafka_and_archive(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds these options, and one for the archive of the topics. The command gets all as `kafka`."""

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
