"""Our own command: remove the oldest part of a history for good. It asks no broker."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rewindmq.engine.cli.archive_options import Duration
from rewindmq.engine.cli.commands.archive import done
from rewindmq.engine.cli.exits import USAGE, CliError
from rewindmq.engine.cli.settings import Settings, with_settings
from rewindmq.engine.cli.values import Value
from rewindmq.projections.rewind import UnreadableTime, format_time, parse_time

if TYPE_CHECKING:
    from rewindmq.engine.embedded.trim import TrimReport

COLUMNS = ("partition", "begins", "floor", "trimmed_until", "queued", "bytes", "archived_bytes", "findings")


@click.command("trim")
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Data directory of a broker that is stopped.",
)
@click.option("--before", metavar="TIME", help="Trim what is older: ISO 8601 with a zone, or how long ago (-400d).")
@click.option(
    "--keep",
    type=Duration(),
    metavar="DURATION",
    help="Trim what is older than this, from the newest event on: 400d, 36h.",
)
@click.option("--partition", metavar="NAME", help="This partition only, such as queues-0 (default: all of queues).")
@click.option(
    "--archive",
    "archive_url",
    metavar="URL",
    help="The archive of this history, where the data directory does not name it: it is trimmed, too.",
)
@click.option("--reason", default="", metavar="TEXT", help="Why. It stays in the history.")
@click.option("--dry-run", is_flag=True, help="Audit, and say what would go. Nothing changes.")
@click.option(
    "--accept-findings", is_flag=True, help="Trim although the audit found something. It stays in the history."
)
@with_settings
def trim(
    settings: Settings,
    data: Path,
    before: str | None,
    keep: int | None,
    partition: str | None,
    archive_url: str | None,
    reason: str,
    dry_run: bool,
    accept_findings: bool,
) -> None:
    """Remove the oldest part of the history, for good.

    Whole segments go. The stretch is audited first, and the state at the new beginning is written and proven, with
    every message that is still queued there. `floor`: the offset where a partition begins then; `queued`: the messages
    that were published before it and are kept. Messages in queues, and all later events, stay as they are.

    What the archive has below the floor is deleted, too: `archived_bytes`. Its login needs the right to delete.

    \b
    Examples:
      rewindmq trim --data ./data --keep 400d --dry-run
      rewindmq trim --data ./data --before 2025-01-01T00:00:00Z --reason 'retention, ticket 4711'
    """
    from rewindmq.engine.embedded.trim import Wanted
    from rewindmq.engine.embedded.trim import trim as trim_history

    if (before is None) == (keep is None):
        raise CliError(USAGE, "give either --before TIME or --keep DURATION")
    try:
        wanted = Wanted(
            None if before is None else parse_time(before),
            keep,
            partition,
            reason,
            accept_findings,
        )
    except UnreadableTime as error:
        raise CliError(USAGE, str(error)) from None
    settings.banner(f"Trimming {data} ..." if not dry_run else f"Auditing what would be trimmed of {data} ...")
    reports = done(lambda: trim_history(data, wanted, dry_run, url=archive_url))
    settings.show(COLUMNS, [_row(report) for report in reports])
    for report in reports:
        for finding in report.findings:
            click.echo(f"{report.partition}: {finding}", err=True)


def _row(report: "TrimReport") -> dict[str, Value]:
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
