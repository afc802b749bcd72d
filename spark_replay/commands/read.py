"""The commands that show the history and past queues: state-at, history, keep-history, biography, diff, slo."""

import sys
from pathlib import Path

import click

from rewindmq.engine.keeping.location import Location
from rewindmq.schemas.json_values import json_text
from rewindmq.spark_replay.commands.location_options import with_location
from rewindmq.spark_replay.commands.options import (
    Out,
    directory,
    format_option,
    moment_option,
    out_option,
    queue_option,
    require_makeable,
    require_out,
    snapshots_option,
    start_spark,
    tell_beginnings,
)
from rewindmq.spark_replay.location.ranges import BadRequest


@click.command("state-at")
@with_location
@moment_option(
    "--time",
    "times",
    multiple=True,
    help="The moment: ISO 8601, epoch milliseconds, or how long ago (10m, 2h, 3d). Everything logged up to it has"
    " happened. May be given again.",
)
@click.option("--offsets", help='Instead of a time: offsets such as {"queues-0": 12}. Events below them have happened.')
@click.option("--mark", help="Instead of a time: the name of a moment (rewindmq set_mark).")
@queue_option
@snapshots_option
@click.option("--messages", is_flag=True, help="Add the messages of each queue, in order.")
@click.option("--format", "form", type=click.Choice(["json", "table"]), help="Default: table at a terminal, else json.")
def state_at(
    location: Location,
    times: tuple[str, ...],
    offsets: str | None,
    mark: str | None,
    queue: str | None,
    snapshots: Path | None,
    messages: bool,
    form: str | None,
) -> None:
    """Show the queues as they were at a time, at offsets or at a mark (default: now)."""
    from rewindmq.spark_replay.commands.table_writer import print_states
    from rewindmq.spark_replay.history.state import plan_state, state_frame

    if mark is not None and (times or offsets is not None):
        raise BadRequest("give one of --time, --offsets and --mark")
    requested: list[str | None] = [f"mark:{mark}"] if mark is not None else list(dict.fromkeys(times)) or [None]
    plans = [plan_state(location, time, offsets, snapshots) for time in requested]
    spark = start_spark(location)
    states = [state_frame(spark, plan, queue, messages) for plan in plans]
    named = requested if len(requested) > 1 else [None]
    form = form or ("table" if sys.stdout.isatty() else "json")
    print_states(list(zip(named, states, strict=True)), messages, form, queue)


@click.command()
@with_location
@moment_option("--from", "start", help="Begin at this time (ISO 8601, or 10m: ten minutes ago) or at mark:NAME.")
@moment_option("--to", "end", help="End at this time, inclusive, or at mark:NAME.")
@queue_option
@snapshots_option
@format_option
@out_option
def history(
    location: Location,
    start: str | None,
    end: str | None,
    queue: str | None,
    snapshots: Path | None,
    form: str,
    out: Out | None,
) -> None:
    """Show the outcomes of every event, one row an outcome."""
    from rewindmq.spark_replay.commands.table_writer import write_frame
    from rewindmq.spark_replay.history.history import history_frame, plan_history

    require_out(form, out)
    options = {"startingTimestamp": start, "endingTimestamp": end}
    ranges = plan_history(location, {name: value for name, value in options.items() if value is not None}, snapshots)
    tell_beginnings(location, start)
    write_frame(history_frame(start_spark(location), location, ranges, queue, snapshots), form, out, queue)


@click.command("keep-history")
@with_location
@queue_option
@click.option(
    "--out",
    required=True,
    type=directory,
    help="The directory of the kept history: a new one, or that of an earlier run.",
)
@click.option("--format", "form", default="parquet", type=click.Choice(["parquet", "delta"]), show_default=True)
def keep_history(location: Location, queue: str | None, out: Path, form: str) -> None:
    """Add the outcomes since the last run to a history in Parquet files or in a Delta table."""
    from dataclasses import asdict

    from rewindmq.spark_replay.history.incremental import keep_history as keep
    from rewindmq.spark_replay.history.incremental import read_progress

    require_makeable("--out", out)
    read_progress(out, queue, form)
    added = keep(start_spark(location), location, out, queue, form)
    ranges = [asdict(each) for each in added.ranges]
    click.echo(json_text({"run": added.run, "stretches": ranges, "rows": added.rows}))


@click.command()
@with_location
@click.option("--message", required=True, help="The message: partition:offset of its publish, such as queues-0:123.")
@queue_option
@format_option
@out_option
def biography(location: Location, message: str, queue: str | None, form: str, out: Out | None) -> None:
    """Show everything that happened to one message, and to the dead letters that came of it."""
    from rewindmq.spark_replay.commands.table_writer import write_frame
    from rewindmq.spark_replay.history.history import biography as biography_of
    from rewindmq.spark_replay.history.history import require_message

    require_out(form, out)
    require_message(location, message)
    write_frame(biography_of(start_spark(location), location, message, queue), form, out, queue)


@click.command()
@with_location
@moment_option(
    "--from",
    "start",
    required=True,
    help='The first moment: a time (ISO 8601, or 10m), mark:NAME, or offsets such as {"queues-0": 12}.',
)
@moment_option("--to", "end", help="The second moment (default: now).")
@click.option("--summary", is_flag=True, help="Show only the sums, by queue and outcome.")
@queue_option
@format_option
@out_option
def diff(
    location: Location, start: str, end: str | None, summary: bool, queue: str | None, form: str, out: Out | None
) -> None:
    """Show which messages came into the queues and left them between two moments, and why."""
    from rewindmq.spark_replay.commands.table_writer import write_frame
    from rewindmq.spark_replay.history.diff import diff_frame, plan_moments

    require_out(form, out)
    plans = plan_moments(location, start, end)
    frame = diff_frame(start_spark(location), *plans, queue)
    if summary:
        from pyspark.sql import functions as f

        keys = ("vhost", "queue", "outcome", "rule", "user")
        frame = frame.groupBy(*keys).agg(f.sum("change").alias("change")).orderBy(*keys)
    write_frame(frame, form, out, queue)


@click.command()
@with_location
@moment_option("--from", "start", help="Begin at this time (ISO 8601, or 10m: ten minutes ago) or at mark:NAME.")
@moment_option("--to", "end", help="End at this time, inclusive, or at mark:NAME.")
@click.option("--by", default="queue", type=click.Choice(["queue", "consumer"]), show_default=True)
@click.option("--every", help="Make a row for each span of this length: 5 minutes, 1 hour.")
@queue_option
@format_option
@out_option
def slo(
    location: Location,
    start: str | None,
    end: str | None,
    by: str,
    every: str | None,
    queue: str | None,
    form: str,
    out: Out | None,
) -> None:
    """Show how long messages waited for their first delivery and stayed in their queue, and how many came back."""
    from rewindmq.spark_replay.commands.table_writer import write_frame
    from rewindmq.spark_replay.history.slo import check, plan_slo
    from rewindmq.spark_replay.history.slo import slo as slo_of

    require_out(form, out)
    check(by, every)
    plan_slo(location, start, end)
    tell_beginnings(location, start)
    write_frame(slo_of(start_spark(location), location, start, end, queue, by, every), form, out, queue)
