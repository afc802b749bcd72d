"""Our own command: remove the oldest part of a history for good. It asks no broker."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from rewindmq.engine.cli.commands.archive import done
from rewindmq.engine.cli.configuration.kinds import DURATION
from rewindmq.engine.cli.exits import USAGE, CliError
from rewindmq.engine.cli.kafka import location_asked_for, with_kafka
from rewindmq.engine.cli.kafka_archive import reader_of
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.times import A_TIME
from rewindmq.engine.cli.usage import EXISTING_DIRECTORY, command, flag, option
from rewindmq.engine.cli.values import Value
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.in_directory import trim_directory
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.keeping.trim_rules import TrimReport, TrimRequest
from rewindmq.projections.rewind import UnreadableTime, format_time, parse_time


@command(
    "trim",
    option(
        "--data",
        "Data directory of a broker that is stopped. With --kafka: that of a node, which may name the archive.",
        EXISTING_DIRECTORY,
    ),
    option("--before TIME", f"Trim what is older: {A_TIME}."),
    option("--keep DURATION", "Trim what is older than this, from the newest event on: 400d, 36h.", DURATION.parser),
    option("--partition NAME", "This partition only, such as queues-0 (default: all of queues)."),
    option(
        "--archive archive_url URL",
        "The archive of this history, where no data directory names it: it is trimmed as well.",
    ),
    flag("--dry-run", "Audit, and say what would go. Nothing changes."),
    flag("--accept-findings", "Trim although the audit found something. It stays in the history."),
)
@with_kafka
def trim(
    settings: CliSettings,
    data: Path | None,
    kafka: InKafka | None,
    before: str | None,
    keep: int | None,
    partition: str | None,
    archive_url: str | None,
    dry_run: bool,
    accept_findings: bool,
) -> None:
    """Remove the oldest part of the history, for good.

    Whole segments go. The stretch is audited first, and the state at the new beginning is written and proven, with
    every message that is still queued there. `floor`: the offset where a partition begins then; `queued`: the messages
    that were published before it and are kept. Messages in queues, and all later events, stay as they are.

    What the archive has below the floor is deleted, too: `archived_bytes`. Its login needs the right to delete.

    With --kafka, whole archived stretches go, from Kafka and from the archive, and nodes may run. `bytes`: of the
    stretches that Kafka still had.

    \b
    Examples:
      rewindmq trim --data ./data --keep 400d --dry-run
      rewindmq trim --data ./data --before 2025-01-01T00:00:00Z --reason 'retention, ticket 4711'
      rewindmq trim --kafka localhost:9092 --archive s3://bucket/prefix --keep 400d
    """

    if (before is None) == (keep is None):
        raise CliError(USAGE, "give either --before TIME or --keep DURATION")
    try:
        before_ms = None if before is None else parse_time(before)
        wanted = TrimRequest(before_ms, keep, partition, settings.reason or "", accept_findings)
    except UnreadableTime as error:
        raise CliError(USAGE, str(error)) from None
    location = location_asked_for(data, kafka)
    run: Callable[[], list[TrimReport]]
    if isinstance(location, InKafka):
        place, url = location.name, archive_url or location.archive_url
        if url is None:
            raise CliError(USAGE, "a history in Kafka is trimmed with its archive: give --archive URL")
        run = partial(_trim_topics, location, url, wanted, dry_run)
    else:
        place, run = str(location), partial(trim_directory, location.data, wanted, dry_run, url=archive_url)
    settings.banner(f"Auditing what would be trimmed of {place} ..." if dry_run else f"Trimming {place} ...")
    reports = done(run)
    settings.show([_row(report) for report in reports])
    for report in reports:
        for finding in report.findings:
            click.echo(f"{report.partition}: {finding}", err=True)


def _trim_topics(topics: InKafka, url: str, wanted: TrimRequest, dry_run: bool) -> list[TrimReport]:
    from rewindmq.engine.keeping.in_topics import trim_topics

    return trim_topics(reader_of(topics), open_objects(url), wanted, dry_run)


def _row(report: TrimReport) -> dict[str, Value]:
    trimmed = report.offset > report.start
    return {
        "partition": report.partition,
        "begins": report.start,
        "floor": report.offset,
        "trimmed_until": format_time(report.until_ms) if trimmed else None,
        "queued": report.queued if trimmed else None,
        "bytes": report.freed_bytes,
        "archived_bytes": report.archived_bytes,
        "findings": len(report.findings),
    }


COMMANDS = (trim,)
