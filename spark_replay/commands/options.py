"""Shares between commands: options, checks of the places that a command writes to, and the Spark session."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rewindmq.engine.keeping.archive.objects import BadUrl, Objects, open_objects
from rewindmq.engine.keeping.location import InKafka, Location
from rewindmq.projections.rewind import absolute, parse_time
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.log import beginnings
from rewindmq.spark_replay.location.marks import time_of
from rewindmq.spark_replay.location.ranges import BadRequest

# A directory, or object storage
Out = Path | Objects

queue_option = click.option("--queue", help="Only this queue: vhost/name, or the name of a queue in the vhost /.")
format_option = click.option(
    "--format",
    "form",
    default="table",
    show_default=True,
    type=click.Choice(["table", "json", "csv", "parquet", "delta"]),
)


def _place(_context: click.Context, _option: click.Parameter, given: str | None) -> Out | None:
    """Return the directory, or the object storage by its URL."""
    if given is None or "://" not in given:
        return None if given is None else Path(given)
    if given.startswith("file://"):
        return Path(given.removeprefix("file://"))
    try:
        return open_objects(given)
    except BadUrl as error:
        raise BadRequest(f"--out: {error}") from None


class _Directory(click.Path):
    """A directory of this machine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):
            raise BadRequest(f"--out: {value} is a URL; this command writes to a directory only")
        return super().convert(value, param, ctx)


out_option = click.option(
    "--out",
    callback=_place,
    metavar="PLACE",
    help="The directory to write to, or s3://BUCKET/PREFIX, gs://..., az://... parquet and delta need one.",
)
directory = _Directory(file_okay=False, path_type=Path)
without_option = click.option(
    "--without",
    "left_out",
    multiple=True,
    help="Leave out events as if they had not happened: message=queues-0:123, user=eve, session=7, from=TIME, to=TIME"
    " (or mark:NAME, 10m). Joined by commas, all of them must apply. May be given again.",
)
snapshots_option = click.option(
    "--snapshots",
    type=click.Path(path_type=Path),
    help="Begin at the snapshots in this directory (of `cut`, or a node's), instead of those beside the log.",
)


def moment_option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """Return an option for one moment or several.

    A time such as 10m becomes the time that it means now, so that all readers of the option see the same time."""

    def resolved(_context: click.Context, _option: click.Parameter, given: Any) -> Any:
        if isinstance(given, tuple):
            return tuple(absolute(each) for each in given)
        return None if given is None else absolute(given)

    return click.option(*names, callback=resolved, **settings)


def require_out(form: str, out: Out | None) -> None:
    """Check that the result can be written to `out` in this format.

    Raises BadRequest; NoAnswer where object storage does not answer."""
    if form in ("parquet", "delta") and out is None:
        raise BadRequest(f"--format {form}: name a directory with --out")
    if isinstance(out, Objects):
        if form == "delta":
            raise BadRequest("--format delta: Spark writes it to a directory only; parquet goes to a URL, too")
        if next(out.list(""), None) is not None:
            raise BadRequest(f"--out: something is at {out.url} already")
    elif out is not None:
        if out.exists():
            raise BadRequest(f"--out: {out} exists already")
        require_makeable("--out", out)


def require_makeable(option: str, directory: Path) -> None:
    """Raise BadRequest unless the directory exists and can be written to, or can be made."""
    there = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise BadRequest(f"{option}: {directory} cannot be written: {there} is no directory that can be written to")


def require_writable(option: str, file: Path) -> None:
    """Raise BadRequest unless the file can be written, into a directory that exists."""
    if not file.absolute().parent.is_dir():
        raise BadRequest(f"{option}: {file} cannot be written: there is no directory {file.parent}")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise BadRequest(f"{option}: {file} cannot be written")


def tell_beginnings(location: Location, start: str | None = None) -> None:
    """Print on stderr where partitions begin that were trimmed, if the moment `start` lies before that.

    `start`: None for the beginning of the history. Raises LogError, NoSuchMark."""
    log = location.open()
    for line in beginnings(log, None if start is None else parse_time(time_of(log, start))):
        click.echo(line, err=True)


def start_spark(location: Location) -> Any:
    """Return the Spark session of a command.

    At a terminal a line on stderr says that Spark starts, which takes seconds. Elsewhere stderr stays empty as long as
    nothing is wrong."""
    from pyspark.logger import PySparkLogger

    from rewindmq.spark_replay.session import session

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True  # the command reports such an error itself, in one line
    if sys.stderr.isatty():
        click.echo("spark_replay: starting Spark, which takes some seconds ...", err=True)
    spark = session(records_in_java=isinstance(location, InKafka) and not location.archive)
    lineage.begin(spark)
    return spark
