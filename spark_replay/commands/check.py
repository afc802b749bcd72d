"""The commands that check a history: audit, verify, cut, watch. Status 1: a check failed."""

import functools
import signal
from pathlib import Path
from typing import Any

import click

from rewindmq.engine.keeping.location import InKafka, Location
from rewindmq.schemas.json_values import json_text
from rewindmq.spark_replay.commands.exit_status import EX_DATAERR
from rewindmq.spark_replay.commands.location_options import with_location, with_topics
from rewindmq.spark_replay.commands.options import (
    directory,
    require_makeable,
    require_writable,
    snapshots_option,
    start_spark,
    tell_beginnings,
)


@click.command()
@with_location
@click.option("--format", "form", default="table", type=click.Choice(["table", "json"]), show_default=True)
@click.option(
    "--html", "page", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report as an HTML page."
)
@click.option(
    "--public-key",
    "public_keys",
    multiple=True,
    type=click.Path(path_type=Path),
    help="The public key (PEM) of the program that seals the log. Seals must exist, signed with it. May"
    " be given again.",
)
@click.option(
    "--copies",
    type=click.Path(path_type=Path),
    help="A file or directory with copies of seals. Each copied seal must still be in the log.",
)
@snapshots_option
@click.option("--since-last", is_flag=True, help="Audit only the events since the last ledger in --snapshots.")
@click.option(
    "--progress/--no-progress",
    "shown",
    default=None,
    help="Print the progress on stderr. Default: at a terminal only.",
)
def audit(
    location: Location,
    form: str,
    page: Path | None,
    public_keys: tuple[Path, ...],
    copies: Path | None,
    snapshots: Path | None,
    since_last: bool,
    shown: bool | None,
) -> int:
    """Check the history against itself, its seals, its hash chain, the broker's claims and its RocksDB."""
    from rewindmq.engine.keeping.seals.seal import public_keys as read_keys
    from rewindmq.engine.keeping.seals.seal import read_copies
    from rewindmq.spark_replay.audit.audit import audit as audit_of
    from rewindmq.spark_replay.audit.audit import ledger_snapshots
    from rewindmq.spark_replay.audit.ledger_files import count_ledgers
    from rewindmq.spark_replay.audit.seals import check_seals
    from rewindmq.spark_replay.commands.progress import progress
    from rewindmq.spark_replay.commands.report import print_report
    from rewindmq.spark_replay.commands.report_html import report_html

    if page is not None:
        require_writable("--html", page)
    keys, kept = read_keys(public_keys), [] if copies is None else read_copies(copies)
    external = ledger_snapshots(location, snapshots, since_last)
    tell_beginnings(location)
    spark = start_spark(location)
    with progress(spark, "audit", shown, lambda: "" if external is None else f"{count_ledgers(external)} ledgers kept"):
        findings = check_seals(spark, location, keys or None, kept) + audit_of(spark, location, snapshots, since_last)
    print_report(findings, form)
    if page is not None:
        page.write_text(report_html(findings, str(location)), encoding="utf-8")
    if any(finding.corrupt for finding in findings):
        return EX_DATAERR
    return 0 if all(finding.ok for finding in findings) else 1


@click.command()
@with_location
@snapshots_option
@click.option("--format", "form", default="table", type=click.Choice(["table", "json"]), show_default=True)
def verify(location: Location, snapshots: Path | None, form: str) -> int:
    """Check that the events lead from each snapshot to the next one, and to the state in RocksDB."""
    from rewindmq.spark_replay.commands.report import print_report
    from rewindmq.spark_replay.snapshots.external import external_snapshots
    from rewindmq.spark_replay.snapshots.verify import verify as verify_chunks

    external_snapshots(location, snapshots)
    findings = verify_chunks(start_spark(location), location, snapshots)
    print_report(findings, form, "verify")
    return 0 if all(finding.ok for finding in findings) else 1


@click.command()
@with_location
@click.option(
    "--every", default=1_000_000, type=click.IntRange(1), show_default=True, help="Events from snapshot to snapshot."
)
@click.option(
    "--out",
    required=True,
    type=directory,
    help="The directory of the snapshots: a new one, or that of an earlier run.",
)
def cut(location: Location, every: int, out: Path) -> None:
    """Make snapshots at regular offsets of a history. A later run adds those of newer events."""
    from dataclasses import asdict

    from rewindmq.spark_replay.snapshots.build import cut as cut_log
    from rewindmq.spark_replay.snapshots.build import prepare

    require_makeable("--out", out)
    prepare(location, every, out)
    click.echo(json_text(asdict(cut_log(start_spark(location), location, every, out))))


@click.command("watch")
@with_topics
@click.option(
    "--checkpoint",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory of this watch. A later watch of the same directory goes on where this one stopped.",
)
@click.option(
    "--interval", default=10.0, type=click.FloatRange(0.1), show_default=True, help="Seconds between batches."
)
@click.option(
    "--batch-events", default=1_000_000, type=click.IntRange(1), show_default=True, help="About so many events a batch."
)
@click.option("--fail-fast", is_flag=True, help="End with status 1 at the first finding.")
@click.option("--once", is_flag=True, help="End when all present events are audited; status 1 if there is a finding.")
@click.option("--format", "form", default="table", type=click.Choice(["table", "json"]), show_default=True)
def watch_command(
    location: InKafka, checkpoint: Path, interval: float, batch_events: int, fail_fast: bool, once: bool, form: str
) -> int:
    """Audit a history in Kafka as it grows, until SIGTERM or SIGINT. Prints a line for each batch with events."""
    from rewindmq.spark_replay.audit.watch import Watch, watch
    from rewindmq.spark_replay.commands.report import print_batch

    require_makeable("--checkpoint", checkpoint)
    before: dict[int, Any] = {}

    def stop_on_signals(watching: Watch) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda *_: watching.stop())

    try:
        done = watch(
            start_spark(location),
            location,
            checkpoint,
            interval,
            batch_events,
            fail_fast,
            once,
            functools.partial(print_batch, form=form),
            stop_on_signals,
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 1 if done.violations and (fail_fast or once) else 0
