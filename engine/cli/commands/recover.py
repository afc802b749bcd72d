"""Our own command: make a data directory, or topics on a Kafka, from an archive. It asks no broker."""

import sys
from pathlib import Path

import click

from rewindmq.engine.cli.commands.archive import archive_option, done
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.formatters import MACHINE_READABLE
from rewindmq.engine.cli.kafka import Kafka, with_kafka
from rewindmq.engine.cli.kafka_archive import recover_to_kafka
from rewindmq.engine.cli.settings import Settings, with_settings
from rewindmq.engine.cli.values import Value
from rewindmq.projections.rewind import RewindError, UnreadableTime, format_time


@click.command("recover")
@archive_option
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="The data directory to make. It must have no log.",
)
@click.option(
    "--at",
    metavar="TIME",
    help="Only what had happened by then: ISO 8601 with a zone, -10m, or mark:NAME. The result is a fork.",
)
@with_kafka
@click.option(
    "--kafka-replication",
    "replication",
    metavar="N",
    type=click.IntRange(min=1),
    help="With --kafka: replicas of the topics (default: 3, or as many as Kafka has brokers).",
)
@with_settings
def recover(
    settings: Settings, archive_url: str, data: Path | None, at: str | None, kafka: Kafka, replication: int | None
) -> None:
    """Make a data directory from an archive alone; with --kafka, topics on a Kafka.

    The segments come back byte for byte, and each block is proven. `archived_until`: the time of the last record that
    came back; what came later is not in the archive. If the command was killed, run it again: it goes on. Then start a
    broker on the directory.

    With --at it is a history of its own, which branches from the archived one at that moment. Archive it to a URL of
    its own.

    On a Kafka each record comes back at its offset, with its time. The topics must not exist yet. Then start nodes
    there, with new data directories.

    \b
    Examples:
      rewindmq recover --archive s3://bucket/prefix --data ./recovered
      rewindmq recover --archive s3://bucket/prefix --data ./before --at mark:before-release
      rewindmq start --data ./recovered
      rewindmq recover --archive s3://bucket/prefix --kafka localhost:9092 --kafka-prefix again
    """
    if kafka.asked_for:
        if at is not None:
            raise CliError(USAGE, "--at makes a data directory, and no topics: leave --kafka out")
        _recover_topics(settings, archive_url, data, kafka, replication)
        return
    if data is None:
        raise CliError(USAGE, "say where to recover to: --data DIR, or --kafka HOST:PORT")
    from rewindmq.engine.log.archive.objects import open_objects
    from rewindmq.engine.log.archive.recovery import RecoveredPartition
    from rewindmq.engine.log.archive.recovery import recover as recover_to

    def recovered(data: Path = data) -> list[RecoveredPartition]:
        objects = open_objects(archive_url)
        settings.banner(f"Recovering {objects.url} to {data} ...")
        quiet = bool(settings.quiet or settings.silent or settings.formatter in MACHINE_READABLE)
        with click.progressbar(length=1, file=sys.stderr, hidden=quiet or not sys.stderr.isatty()) as bar:

            def progress(bytes_done: int, total: int) -> None:
                bar.length = total
                bar.update(bytes_done - bar.pos)

            try:
                return recover_to(objects, data, progress, at)
            except UnreadableTime as error:
                raise CliError(USAGE, str(error)) from None
            except RewindError as error:
                raise CliError(DATA, str(error)) from None
            except OSError as error:
                raise CliError(UNAVAILABLE, f"{data}: it cannot be written: {error.strerror}") from None

    found = done(recovered)
    for each in found:
        if each.ends_early and not settings.quiet:
            what = f"{each.partition} is archived up to offset {each.next_offset} only"
            click.echo(f"{what}: what came between there and the moment, if anything, is not in the fork", err=True)
    rows: list[dict[str, Value]] = [
        {
            "partition": each.partition,
            "next_offset": each.next_offset,
            "archived_until": None if each.until_ms is None else format_time(each.until_ms),
            "segments": each.segments,
            "bytes": each.segment_bytes,
            "snapshots": each.snapshots,
        }
        for each in found
    ]
    settings.show(("partition", "next_offset", "archived_until", "segments", "bytes", "snapshots"), rows)


def _recover_topics(settings: Settings, url: str, data: Path | None, kafka: Kafka, replication: int | None) -> None:
    if data is not None:
        raise CliError(USAGE, "--data and --kafka: a history is recovered to one of both")
    rows: list[dict[str, Value]] = [
        {
            "partition": each.partition,
            "next_offset": each.next_offset,
            "archived_until": None if each.until_ms is None else format_time(each.until_ms),
            "segments": each.segments,
            "bytes": each.record_bytes,
        }
        for each in done(lambda: recover_to_kafka(settings, url, kafka, replication))
    ]
    settings.show(("partition", "next_offset", "archived_until", "segments", "bytes"), rows)


COMMANDS = (recover,)
