"""The options for the location of the history, which every command has."""

import functools
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

import click

from rewindmq.engine.keeping.archive.objects import Objects
from rewindmq.engine.keeping.location import InArchive, InDirectory, InKafka, Location
from rewindmq.spark_replay.commands.table_writer import Printed, discard_output, nothing_at
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.kafka_settings import read_settings
from rewindmq.spark_replay.location.log import in_archive
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.location.trims import beside_trims

_DATA = click.option("--data", type=click.Path(path_type=Path), help="The broker's data directory.")
_ARCHIVE = click.option(
    "--archive",
    metavar="URL",
    help="Instead of --data: the archive of the history, s3://BUCKET/PREFIX, gs://..., az://..., or a directory."
    " With --kafka: it has what Kafka no longer has. Credentials come from the environment of each process.",
)
_TOPICS = (
    click.option(
        "--prefix",
        "--kafka-prefix",
        "prefix",
        default="rewindmq",
        show_default=True,
        help="The beginning of its topics' names.",
    ),
    click.option(
        "--kafka-setting",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting of the Kafka clients, by librdkafka's names, for example for security. May be given again.",
    ),
    click.option(
        "--kafka-config",
        "settings_file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="A file with such settings, one a line. Use it for secrets.",
    ),
)
_KAFKA = click.option(
    "--kafka", help="Instead of --data: the Kafka that has the log, host:port (several are separated by commas)."
)
_KAFKA_ONLY = click.option(
    "--kafka", required=True, help="The Kafka that has the log, host:port (several are separated by commas)."
)


def with_location(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for a data directory, topics of a Kafka or an archive; the command gets it as `location`."""

    @functools.wraps(command)
    def found(
        data: Path | None,
        archive: str | None,
        kafka: str | None,
        prefix: str,
        settings: tuple[str, ...],
        settings_file: Path | None,
        **others: Any,
    ) -> Any:
        location = _existing(data, archive, kafka, prefix, settings, settings_file)
        return _as_run(command, location, others)

    return _wrapped(found, (_DATA, _ARCHIVE, _KAFKA, *_TOPICS))


def with_topics(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for topics of a Kafka; the command gets it as `location`."""

    @functools.wraps(command)
    def found(kafka: str, prefix: str, settings: tuple[str, ...], settings_file: Path | None, **others: Any) -> Any:
        return _as_run(command, _existing(None, None, kafka, prefix, settings, settings_file), others)

    return _wrapped(found, (_KAFKA_ONLY, *_TOPICS))


def _as_run(command: Callable[..., Any], location: Location, others: dict[str, Any]) -> Any:
    """Run the command within its lineage run, which begins when Spark is started."""
    name = click.get_current_context().info_name or ""
    out = others.get("out")
    written = InArchive(out.url) if isinstance(out, Objects) else out
    files = [written, others.get("page"), others.get("checkpoint")]
    printed = Printed(sys.stdout)

    def nothing_printed() -> bool:
        return printed.characters == 0 and (out is None or nothing_at(out))

    with lineage.run(name, location, queue=others.get("queue"), files=files), redirect_stdout(cast(TextIO, printed)):
        status = 0
        try:
            status = beside_trims(location, lambda: command(location=location, **others), may_repeat=nothing_printed)
            sys.stdout.flush()
        except BrokenPipeError:  # click would end with status 1, as if an audit had found something
            discard_output()
        return status


def _wrapped(command: Callable[..., Any], options: tuple[Callable[[Any], Any], ...]) -> Callable[..., Any]:
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def _existing(
    data: Path | None,
    archive: str | None,
    kafka: str | None,
    prefix: str,
    settings: tuple[str, ...],
    settings_file: Path | None,
) -> Location:
    """The location of an existing log: a directory as an absolute path, which workers can use, an archive, or topics.

    Raises BadRequest; LogError when there is no log; NoAnswer when Kafka does not answer; KafkaNotInstalled."""
    if (data is None) == (archive is None and kafka is None):
        raise BadRequest("where is the history? Give one of --data, --archive and --kafka, or the last two")
    if data is not None and not data.is_dir():
        raise BadRequest(f"{data}: no such directory")
    if kafka is None and (settings or settings_file is not None):
        raise BadRequest("--kafka-setting and --kafka-config need --kafka")
    location: Location
    if data is not None:
        location = InDirectory(data.resolve())
    elif kafka is None:
        location = in_archive(archive or "")
    else:
        url = None if archive is None else in_archive(archive).url
        location = InKafka(kafka, prefix, read_settings(settings, settings_file), url)
    location.open()
    return location
