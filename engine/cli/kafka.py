"""The options that say which Kafka the log is in, for the commands that read or write it themselves."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
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
        help="Bootstrap servers of a Kafka that is the log; else it is in the data directory.",
    ),
    click.option("--kafka-prefix", "prefix", default="rewindmq", show_default=True, help="Of the names of the topics."),
    click.option(
        "--kafka-setting",
        "settings_given",
        metavar="KEY=VALUE",
        multiple=True,
        help="One more setting of the Kafka clients (librdkafka's names), as for security.",
    ),
)


@dataclass(frozen=True, slots=True)
class Kafka:
    """`servers`: None when the log is in the data directory. `asked_for`: they were named by the option, not by the
    environment."""

    servers: str | None
    asked_for: bool
    prefix: str
    settings: tuple[tuple[str, str], ...]

    def history(self, data: Path | None) -> "History":
        from rewindmq.engine.log.location import History

        return History(data, self.servers, self.prefix, self.settings)


def with_kafka(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; it is called with `kafka`."""

    @functools.wraps(command)
    def with_one(
        *arguments: Any, servers: str | None, prefix: str, settings_given: tuple[str, ...], **options: Any
    ) -> Any:
        context = click.get_current_context()
        asked_for = context.get_parameter_source("servers") is ParameterSource.COMMANDLINE
        if servers == "":
            raise click.BadParameter("'' is no address", param_hint="--kafka")
        if servers is None and context.get_parameter_source("prefix") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--kafka-prefix says which topics, but not of which Kafka: --kafka")
        if not prefix:
            raise click.BadParameter("'' is no prefix", param_hint="--kafka-prefix")
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
