"""Our own commands: archive the history in object storage, look at an archive, verify it.

They read a data directory or topics of a Kafka, and object storage, and ask no broker.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from rewindmq.engine.cli.configuration.kinds import DURATION
from rewindmq.engine.cli.exits import DATA, DIFFERENT, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.kafka import is_kafka_asked_for, location_asked_for, with_kafka
from rewindmq.engine.cli.kafka_archive import archive_topics, is_quiet, topic_lag, topics_by_name, with_bar
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import EXISTING_DIRECTORY, command, flag, option
from rewindmq.engine.cli.values import Value
from rewindmq.engine.keeping.archive.archiver import (
    Archiver,
    ArchiveReport,
    close_segments,
    first_waiting_ms,
    segments_behind,
    verify,
)
from rewindmq.engine.keeping.archive.directory_note import archive_of, note_archive
from rewindmq.engine.keeping.archive.identity import identity_of, read_identity
from rewindmq.engine.keeping.archive.manifest import Manifest, OtherHistory, SegmentEntry, SnapshotEntry
from rewindmq.engine.keeping.archive.objects import ArchiveError, BadUrl, Objects, ObstoreNotInstalled, open_objects
from rewindmq.engine.keeping.local_limits import local_limits
from rewindmq.engine.keeping.local_space import SpaceLimits, keep_local
from rewindmq.engine.keeping.location import InDirectory, InKafka
from rewindmq.engine.log.contract import KafkaNotInstalled, LogError, NoAnswer
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory, queue_partition
from rewindmq.engine.log.embedded.lock import LogInUse
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.projections.machine.machine import NewerHistory
from rewindmq.projections.rewind import format_time

if TYPE_CHECKING:
    from rewindmq.engine.log.kafka.reader import KafkaPartition

T = TypeVar("T")

NOTHING_CLOSED = (
    "Nothing is closed: the last segment of each partition is open and stays behind. --roll ends it when the broker is"
    " stopped, and `rewindmq start --segment-age 1h` while it runs."
)


archive_option = option(
    "--archive archive_url URL",
    "The archive: s3://BUCKET/PREFIX, gs://..., az://..., or a directory (default: REWINDMQ_ARCHIVE).",
    required=True,
    envvar="REWINDMQ_ARCHIVE",
)


def done(what: Callable[[], T]) -> T:
    """Call `what` and turns its errors into CliErrors."""

    try:
        return what()
    except BadUrl as error:
        raise CliError(USAGE, str(error)) from None
    except (NoAnswer, ObstoreNotInstalled, KafkaNotInstalled, LogInUse) as error:
        raise CliError(UNAVAILABLE, str(error)) from None
    except LogError as error:
        raise CliError(DATA, str(error)) from None


@command(
    "archive",
    option(
        "--data",
        "Data directory of a broker, which may run. With --kafka: that of a node; its snapshots are archived as well.",
        EXISTING_DIRECTORY,
    ),
    option(
        "--to archive_url URL", "The archive: s3://BUCKET/PREFIX, gs://..., az://..., or a directory.", required=True
    ),
    flag("--roll", "End the last segments first, so that all is archived. No broker may run; nodes on a Kafka may."),
    option(
        "--segment-age DURATION", "With --kafka: archive what is as old, although it is little.", DURATION.parser, "1h"
    ),
    option(
        "--keep-local LIMIT",
        "Then remove local segments beyond an age in log time, a size, or both (7d, 50GB, 7d,50GB).",
    ),
)
@with_kafka
def archive(
    settings: CliSettings,
    data: Path | None,
    kafka: InKafka | None,
    archive_url: str,
    roll: bool,
    segment_age: int,
    keep_local: str | None,
) -> None:
    """Bring what is new in the history into object storage.

    Closed segments and snapshots go there, are read back and proven. What is archived already is left as it is. Login
    and endpoint come from the environment (AWS_ACCESS_KEY_ID ...).

    With --keep-local the oldest segments that the archive has are removed here. What reads them reads the archive.

    \b
    Examples:
      rewindmq archive --data ./data --to s3://bucket/prefix
      rewindmq archive --data ./data --to /mnt/archive --roll
      rewindmq archive --data ./data --to s3://bucket/prefix --keep-local 7d,50GB
      rewindmq archive --kafka localhost:9092 --to s3://bucket/prefix
    """

    location = location_asked_for(data, kafka)
    if isinstance(location, InKafka) and keep_local is not None:
        raise CliError(USAGE, "--keep-local is for a data directory; on Kafka it is an option of `start`")
    try:
        limits = None if keep_local is None else local_limits(keep_local)
    except ValueError as error:
        raise CliError(USAGE, f"--keep-local: {error}") from None

    def archived() -> "ArchiveReport":
        if isinstance(location, InKafka):
            return archive_topics(settings, archive_url, location, roll, segment_age)
        return _archive_directory(settings, archive_url, location.data, roll)

    rows: list[dict[str, Value]] = [
        {
            "partition": each.partition,
            "archived_end": each.archived_end,
            "segments": each.segments,
            "records": each.records,
            "bytes": each.segment_bytes,
            "archived_bytes": each.archived_bytes,
            "snapshots": each.snapshots,
        }
        for each in done(archived).partitions
    ]
    if limits is not None and isinstance(location, InDirectory):
        rows = _with_local(settings, location.data, archive_url, limits, rows)
    settings.show(rows)
    if isinstance(location, InKafka) or is_quiet(settings) or any(row["segments"] for row in rows):
        return
    if done(lambda: _is_behind(location.data, rows)):
        click.echo(NOTHING_CLOSED, err=True)


def _with_local(
    settings: CliSettings, data: Path, archive_url: str, limits: "SpaceLimits", rows: list[dict[str, Value]]
) -> list[dict[str, Value]]:
    """Remove what is beyond the limits. Returns the rows, and what was removed. CliError."""

    try:
        report = done(lambda: keep_local(data, open_objects(archive_url), limits))
    except NewerHistory as error:
        raise CliError(DATA, str(error)) from None
    except OSError as error:
        raise CliError(UNAVAILABLE, f"{data}: local segments could not be removed: {error.strerror}") from None
    if not report.age_counts:
        settings.banner("Nothing was removed for its age: this run notes the log time from which the next one counts.")
    for each in report.partitions:
        if each.why:
            click.echo(f"{each.partition}: nothing was removed: {each.why}", err=True)
    known = {each.partition: each for each in report.partitions}
    return [
        row
        | {
            "local_start": known[name].start_offset if (name := str(row["partition"])) in known else 0,
            "freed_bytes": known[name].freed_bytes if name in known else 0,
        }
        for row in rows
    ]


def _archive_directory(settings: CliSettings, url: str, data: Path, roll: bool) -> "ArchiveReport":
    """Archive what is new in a data directory.

    Raises LogError."""

    objects = open_objects(url, make=True)
    if roll:
        close_segments(data)
    settings.banner(f"Archiving {data} to {objects.url} ...")
    archiver = Archiver(objects, data)
    report = with_bar(settings, lambda progress: archiver.run(progress=progress))
    with suppress(LogError):  # this user may have no right to write there
        if archive_of(data) is None:
            note_archive(data, objects.url)
    return report


@command(
    "archive_status",
    archive_option,
    option("--data", "Data directory: then the listing says how far the archive is behind it.", EXISTING_DIRECTORY),
    option("--format form", "text, or a JSON list for programs.", click.Choice(["text", "json"])),
)
@with_kafka
def archive_status(
    settings: CliSettings, archive_url: str, data: Path | None, kafka: InKafka | None, form: str | None
) -> None:
    """Show how far each partition is archived.

    `floor`: the oldest offset; what was below it was trimmed. `bytes`: of the segments as they were; `archived_bytes`:
    of the objects that hold them and the snapshots. `lag`: records in the data directory, or in the Kafka, that are not
    archived; `lag_bytes`: of their segments; `waiting_since`: the time of the oldest of them. `kafka_start`: where
    Kafka begins; `lost`: offsets that Kafka removed before they were archived.

    \b
    Examples:
      rewindmq archive_status --archive s3://bucket/prefix --data ./data
      rewindmq archive_status --archive s3://bucket/prefix --kafka localhost:9092
    """

    def listed() -> list[dict[str, Value]]:
        objects = open_objects(archive_url)
        names = _partitions(objects, data)
        topics = topics_by_name(objects, kafka) if kafka is not None and is_kafka_asked_for() else {}
        return [_status_row(Manifest.load(objects, name), data, topics.get(name)) for name in topics or names]

    if form == "json":
        settings.formatter = "json"
    settings.show(done(listed))


def _partitions(objects: "Objects", data: Path | None) -> list[str]:
    """Return the partitions of an archive, which must be that of `data`. LogError."""

    identity = read_identity(objects)
    if identity is None:
        raise ArchiveError(f"{objects.url}: there is no archive")
    if data is not None and identity.log == "kafka":
        raise OtherHistory(f"{objects.url}: the archive of a log in Kafka: name that one with --kafka")
    if data is not None:
        here = identity_of(data)
        if not identity.is_of(here):
            raise OtherHistory(f"{objects.url}: the archive of another history than the one in {data}")
        identity = here  # it may have partitions that the archive has not begun yet
    return [METADATA, *map(queue_partition, range(identity.queue_partitions))]


def _status_row(manifest: "Manifest", data: Path | None, topic: "KafkaPartition | None") -> dict[str, Value]:

    lag = lag_bytes = waiting_since_ms = kafka_start = None
    if topic is not None:
        kafka_start = topic.start_offset
        lag, waiting_since_ms = topic_lag(topic, manifest.end)
    if data is not None:
        directory = partition_directory(data, manifest.partition)
        behind = segments_behind(directory, manifest)
        lag = PartitionReader(directory).next_offset - manifest.end
        lag_bytes = sum(path.stat().st_size for path in behind) if lag else 0
        waiting_since_ms = first_waiting_ms(directory, manifest.end)
    segments = manifest.segments
    return {
        "partition": manifest.partition,
        "floor": manifest.floor if segments or manifest.trims else None,
        "archived_end": manifest.end,
        "archived_until": format_time(segments[-1].max_timestamp_ms) if segments else None,
        "segments": len(segments),
        "snapshots": len(manifest.snapshots),
        "bytes": sum(each.size_bytes for each in segments),
        "archived_bytes": manifest.archived_bytes,
        "lag": lag,
        "lag_bytes": lag_bytes,
        "waiting_since": None if waiting_since_ms is None else format_time(waiting_since_ms),
        "kafka_start": kafka_start,
        "lost": None if kafka_start is None else max(0, kafka_start - manifest.end),
    }


def _is_behind(data: Path, rows: list[dict[str, Value]]) -> bool:
    """Return True if any partition has records that are not archived. Raises LogError."""

    ends = [(partition_directory(data, str(row["partition"])), int(str(row["archived_end"]))) for row in rows]
    return any(first_waiting_ms(directory, end) is not None for directory, end in ends)


@command("archive_verify", archive_option)
def archive_verify(settings: CliSettings, archive_url: str) -> None:
    """Read the whole archive, and prove every block of it.

    Each object must be the one in the manifest, and all segments of a partition must make one hash chain. Exit code 1:
    something is damaged; each place is named.

    \b
    Example:
      rewindmq archive_verify --archive s3://bucket/prefix
    """

    damages: list[str] = []

    def verified() -> list[dict[str, Value]]:
        objects = open_objects(archive_url)
        rows: list[dict[str, Value]] = []
        for name in _partitions(objects, None):
            segments = snapshots = records = damaged = 0
            chain = None
            for entry, error in verify(objects, name):
                if isinstance(entry, SegmentEntry):
                    segments += 1
                    records += entry.next_offset - entry.base_offset
                    chain = entry.chain.hex()
                elif isinstance(entry, SnapshotEntry):
                    snapshots += 1
                if error is not None:
                    damaged += 1
                    damages.append(str(error))
            result = f"damaged in {damaged} places" if damaged else "whole"
            rows.append(
                {
                    "partition": name,
                    "segments": segments,
                    "events": records,
                    "snapshots": snapshots,
                    "result": result,
                    "chain": chain,
                }
            )
        return rows

    settings.banner(f"Verifying {archive_url} ...")
    rows = done(verified)
    settings.show(rows)
    for damage in damages[1:]:
        click.echo(damage, err=True)
    if damages:
        more = f" (and {len(damages) - 1} more, above)" if len(damages) > 1 else ""
        raise CliError(DIFFERENT, damages[0] + more)


COMMANDS = (archive, archive_status, archive_verify)
