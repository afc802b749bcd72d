"""The parts of `archive`, `archive_status` and `recover` that are about a log in Kafka."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from rewindmq.engine.cli.formatters import MACHINE_READABLE
from rewindmq.engine.cli.settings import CliSettings

if TYPE_CHECKING:
    from rewindmq.engine.keeping.archive.archiver import ArchiveReport
    from rewindmq.engine.keeping.archive.objects import Objects
    from rewindmq.engine.keeping.archive.topic_recovery import RecoveredTopic
    from rewindmq.engine.keeping.location import InKafka
    from rewindmq.engine.log.kafka.reader import KafkaLogReader, KafkaPartition

T = TypeVar("T")


def archive_topics(settings: CliSettings, url: str, topics: "InKafka", roll: bool, age_ms: int) -> "ArchiveReport":
    """Archive what is new in the topics, and the snapshots in the node's directory, if one is named.

    Raises LogError."""
    from rewindmq.engine.keeping.archive.objects import open_objects
    from rewindmq.engine.keeping.archive.topic_archiver import TopicArchiver

    objects = open_objects(url, make=True)
    log = reader_of(topics)
    snapshots = None if topics.data is None else topics.data / "snapshots"
    settings.banner(f"Archiving {topics.name} to {objects.url} ...")
    archiver = TopicArchiver(objects, log, snapshots=snapshots, age_ms=age_ms)
    try:
        return with_bar(settings, lambda progress: archiver.run(roll, progress=progress))
    finally:
        archiver.close()


def reader_of(topics: "InKafka") -> "KafkaLogReader":
    """Open the topics for reading, and check that the directory, if one is named, is that of a node on them.

    Raises LogError, NoAnswer, OtherHistory, KafkaNotInstalled."""
    from rewindmq.engine.keeping.location import FIRST_ANSWER_SECONDS

    log = topics.connect()
    log.clients.require_answer(FIRST_ANSWER_SECONDS)
    if topics.data is not None:
        topics.open()
    return log


def topics_by_name(objects: "Objects", topics: "InKafka") -> "dict[str, KafkaPartition]":
    """Return the partitions of the history in the archived topics, also those that the archive has not begun yet.

    Raises OtherHistory, LogError, NoAnswer."""
    from rewindmq.engine.keeping.archive.topic_archiver import AddedPartitions, archived_topics

    log = reader_of(topics)
    count = AddedPartitions(log).now(archived_topics(objects, log).queue_partitions)
    return {each.name: each for each in (log.metadata, *log.queues[:count])}


def topic_lag(partition: "KafkaPartition", archived_end: int) -> tuple[int, int | None]:
    """Return the number of records in Kafka that are not archived, and the time of the first of them.

    Raises LogError, NoAnswer."""
    from rewindmq.engine.keeping.archive.topic_archiver import first_waiting_ms

    start = max(archived_end, partition.start_offset)
    return partition.next_offset - start, first_waiting_ms(partition, start)


def recover_to_kafka(
    settings: CliSettings, url: str, topics: "InKafka", replication: int | None
) -> "list[RecoveredTopic]":
    """Make topics from an archive.

    Raises LogError."""
    from rewindmq.engine.keeping.archive.objects import open_objects
    from rewindmq.engine.keeping.archive.topic_recovery import recover_topics

    objects = open_objects(url)
    clients = topics.connect().clients
    settings.banner(f"Recovering {objects.url} to {topics.name} ...")

    def tell(text: str) -> None:
        if not settings.quiet:
            click.echo(text, err=True)

    return with_bar(
        settings, lambda progress: recover_topics(objects, clients, topics.prefix, replication, progress, tell)
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
