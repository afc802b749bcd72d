"""The parts of `archive`, `archive_status` and `recover` that are about a log in Kafka."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from rewindmq.engine.cli.exits import USAGE, CliError
from rewindmq.engine.cli.formatters import MACHINE_READABLE
from rewindmq.engine.cli.kafka import Kafka
from rewindmq.engine.cli.settings import CliSettings

if TYPE_CHECKING:
    from rewindmq.engine.keeping.archive.archiver import Report
    from rewindmq.engine.keeping.archive.objects import Objects
    from rewindmq.engine.keeping.archive.topic_recovery import RecoveredTopic
    from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition

T = TypeVar("T")


def wants_kafka(data: Path | None, kafka: Kafka) -> bool:
    """Return True if the command is about topics, because an option names them or no directory is named.

    Raises CliError."""
    if data is None and kafka.servers is None:
        raise CliError(USAGE, "say where the history is: --data DIR, or --kafka HOST:PORT")
    return data is None or kafka.asked_for


def archive_topics(
    settings: CliSettings, url: str, kafka: Kafka, data: Path | None, roll: bool, age_ms: int
) -> "Report":
    """Archive what is new in the topics. `data`: a node's directory, with snapshots of this history.

    Raises LogError."""
    from rewindmq.engine.keeping.archive.objects import open_objects
    from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver

    objects = open_objects(url, make=True)
    log = topics_of(kafka, data)
    snapshots = None if data is None else data / "snapshots"
    settings.banner(f"Archiving {kafka.prefix}.* at {kafka.servers} to {objects.url} ...")
    archiver = TopicArchiver(objects, log, snapshots=snapshots, age_ms=age_ms)
    try:
        return with_bar(settings, lambda progress: archiver.run(roll, progress=progress))
    finally:
        archiver.close()


def topics_of(kafka: Kafka, data: Path | None) -> "KafkaLogReader":
    """Return the topics, to read. `data`: a node's directory, which must be that of a node on them.

    Raises LogError, NoAnswer, OtherHistory, KafkaNotInstalled."""
    from rewindmq.engine.keeping.location import FIRST_ANSWER_SECONDS
    from rewindmq.engine.log.kafka.reader import KafkaLogReader

    assert kafka.servers is not None
    log = KafkaLogReader(kafka.servers, kafka.prefix, dict(kafka.settings))
    log.clients.require_answer(FIRST_ANSWER_SECONDS)
    if data is not None:
        kafka.history(data).open()
    return log


def topics_by_name(objects: "Objects", kafka: Kafka) -> "dict[str, KafkaPartition]":
    """Return the partitions of the history in the archived topics, also those that the archive has not begun yet.

    Raises OtherHistory, LogError, NoAnswer."""
    from rewindmq.engine.keeping.archive.topic_archiver import AddedPartitions, archived_topics

    log = topics_of(kafka, None)
    count = AddedPartitions(log).now(archived_topics(objects, log).queue_partitions)
    return {each.name: each for each in (log.metadata, *log.queues[:count])}


def topic_lag(partition: "KafkaPartition", archived_end: int) -> tuple[int, int | None]:
    """Return the number of records in Kafka that are not archived, and the time of the first of them.

    Raises LogError, NoAnswer."""
    from rewindmq.engine.keeping.archive.topic_archiver import first_waiting_ms

    start = max(archived_end, partition.start_offset)
    return partition.next_offset - start, first_waiting_ms(partition, start)


def recover_to_kafka(settings: CliSettings, url: str, kafka: Kafka, replication: int | None) -> "list[RecoveredTopic]":
    """Make topics from an archive.

    Raises LogError."""
    from rewindmq.engine.keeping.archive.objects import open_objects
    from rewindmq.engine.keeping.archive.topic_recovery import recover_topics
    from rewindmq.engine.log.kafka.clients import KafkaClients

    assert kafka.servers is not None
    objects = open_objects(url)
    clients = KafkaClients(kafka.servers, dict(kafka.settings))
    settings.banner(f"Recovering {objects.url} to {kafka.prefix}.* at {kafka.servers} ...")

    def tell(text: str) -> None:
        if not settings.quiet:
            click.echo(text, err=True)

    return with_bar(
        settings, lambda progress: recover_topics(objects, clients, kafka.prefix, replication, progress, tell)
    )


def is_quiet(settings: CliSettings) -> bool:
    """Return True if only the result is to be printed."""
    return bool(settings.quiet or settings.silent or settings.formatter in MACHINE_READABLE)


def with_bar(settings: CliSettings, work: Callable[[Callable[[int, int], None]], T]) -> T:
    """Return the result of `work(progress)`, with a bar for people who watch."""
    with click.progressbar(length=1, file=sys.stderr, hidden=is_quiet(settings) or not sys.stderr.isatty()) as bar:

        def progress(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        return work(progress)
