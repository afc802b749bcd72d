"""Our own command: make a data directory, or topics on a Kafka, from an archive. It asks no broker."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from rewindmq.engine.cli.commands.archive import archive_option, done
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.kafka import is_kafka_asked_for, with_kafka
from rewindmq.engine.cli.kafka_archive import recover_to_kafka, with_bar
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.times import A_MOMENT
from rewindmq.engine.cli.usage import DIRECTORY, EXISTING_DIRECTORY, command, option
from rewindmq.engine.cli.values import Value
from rewindmq.engine.erasure.key_copies import copy_keys, keys_of
from rewindmq.engine.erasure.key_store import NO_KEYS, KeyStore
from rewindmq.engine.keeping.archive.objects import open_objects
from rewindmq.engine.keeping.archive.recovery import RecoveredPartition
from rewindmq.engine.keeping.archive.recovery import recover as recover_to
from rewindmq.engine.keeping.location import InKafka
from rewindmq.projections.rewind import RewindError, UnreadableTime, format_time


@command(
    "recover",
    archive_option,
    option("--data", "The data directory to make. It must have no log.", DIRECTORY),
    option("--at TIME", f"Only what had happened by then: {A_MOMENT}. The result is a fork."),
    option(
        "--keys",
        "The former broker's directory of keys: those that the recovered history needs are copied to DATA/keys.",
        EXISTING_DIRECTORY,
    ),
    option(
        "--kafka-replication replication N",
        "With --kafka: replicas of the topics (default: 3, or as many as Kafka has brokers).",
        click.IntRange(min=1),
    ),
)
@with_kafka
def recover(
    settings: CliSettings,
    archive_url: str,
    data: Path | None,
    at: str | None,
    keys: Path | None,
    kafka: InKafka | None,
    replication: int | None,
) -> None:
    """Make a data directory from an archive alone; with --kafka, topics on a Kafka.

    The segments come back byte for byte, and each block is proven. `archived_until`: the time of the last record that
    came back; what came later is not in the archive. If the command was killed, run it again: it goes on. Then start a
    broker on the directory.

    With --at it is a separate history, which branches from the archived one at that moment. Archive it to a URL of
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
    if kafka is not None and is_kafka_asked_for():
        if at is not None:
            raise CliError(USAGE, "--at makes a data directory, and no topics: leave --kafka out")
        if keys is not None:
            raise CliError(USAGE, "--keys: nodes on a Kafka share a directory of keys: name it when you start them")
        _recover_topics(settings, archive_url, data, kafka, replication)
        return
    if data is None:
        raise CliError(USAGE, "say where to recover to: --data DIR, or --kafka HOST:PORT")
    _recover_directory(settings, archive_url, data, at, keys)


def _recover_directory(settings: CliSettings, url: str, data: Path, at: str | None, keys: Path | None) -> None:
    """Make the data directory, show what came back, and say on stderr what is missing. CliError."""

    told: list[str] = []

    def recovered() -> list[RecoveredPartition]:
        objects = open_objects(url)
        settings.banner(f"Recovering {objects.url} to {data} ...")
        try:
            return with_bar(settings, lambda progress: recover_to(objects, data, progress, at, told.append))
        except UnreadableTime as error:
            raise CliError(USAGE, str(error)) from None
        except RewindError as error:
            raise CliError(DATA, str(error)) from None
        except OSError as error:
            raise CliError(UNAVAILABLE, f"{data}: it cannot be written: {error.strerror}") from None

    found = done(recovered)
    lines = [*told, *_lacking(found), *done(lambda: _bring_keys(data, keys))]
    if not settings.quiet:
        for line in lines:
            click.echo(line, err=True)
    rows: list[dict[str, Value]] = [
        {
            "partition": each.partition,
            "begins": each.start_offset,
            "next_offset": each.next_offset,
            "archived_until": None if each.until_ms is None else format_time(each.until_ms),
            "segments": each.segments,
            "bytes": each.segment_bytes,
            "snapshots": each.snapshots,
        }
        for each in found
    ]
    settings.show(rows)


def _lacking(found: "Sequence[RecoveredPartition]") -> Iterator[str]:
    """Yield what a fork may lack, since the archive ends before the moment: a line, or one for each partition."""
    if all(each.ends_early for each in found):
        until_ms = max(each.until_ms or 0 for each in found)
        what = f"the archive ends with the record of {format_time(until_ms)}, and the fork with it"
        yield f"{what}: any event between there and the moment is not in the fork"
        return
    for each in found:
        if each.ends_early:
            what = f"{each.partition} is archived only up to offset {each.next_offset}"
            yield f"{what}: any event between there and the moment is not in the fork"


def _bring_keys(data: Path, source: Path | None) -> list[str]:
    """Copy the keys that the history needs. Returns a line if some are missing."""

    needed, own = keys_of(data), data / "keys"
    try:
        missing = copy_keys(needed, KeyStore(NO_KEYS if source is None else source), KeyStore(own))
    except OSError as error:
        raise CliError(UNAVAILABLE, f"{own}: keys cannot be copied: {error.strerror}") from None
    if missing and source is None:
        what = f"bodies are encrypted under {len(missing)} keys, and no archive has keys"
        return [f"{what}: copy the former broker's directory of keys to {own} (`cp -a DIR/keys {own}`)"]
    if missing:
        return [
            f"{source} lacks {len(missing)} of {len(needed)} keys: their bodies are delivered empty, with x-unreadable"
        ]
    return []


def _recover_topics(
    settings: CliSettings, url: str, data: Path | None, topics: InKafka, replication: int | None
) -> None:
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
        for each in done(lambda: recover_to_kafka(settings, url, topics, replication))
    ]
    settings.show(rows)


COMMANDS = (recover,)
