"""Our own commands: `rewind` shows a queue as it was, `verify` compares the stored state with the log."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from rewindmq.engine.cli.client import Refused
from rewindmq.engine.cli.commands.restore import restore
from rewindmq.engine.cli.exits import DATA, DIFFERENT, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.kafka import Kafka, with_kafka_and_archive
from rewindmq.engine.cli.settings import Settings, with_settings
from rewindmq.engine.cli.times import A_MOMENT, moment_from
from rewindmq.engine.cli.values import Value, json_line
from rewindmq.engine.erasure.key_store import NO_KEYS, KeyStore
from rewindmq.projections.marks import topology_of
from rewindmq.projections.rewind import At, OutsideHistory, RewindError, TrimmedMeanwhile
from rewindmq.schemas.json_values import compact_text

if TYPE_CHECKING:
    from rewindmq.engine.log.contract import LogError
    from rewindmq.engine.log.location import History, HistoryPartition
    from rewindmq.projections.metadata_verification import MetadataVerification
    from rewindmq.projections.topology.about_history import Fork

BODY_SHOWN = 64  # bytes of a body in a table; the other formatters show what the API gives
COLUMNS = (
    "position",
    "message_id",
    "state",
    "payload_bytes",
    "redelivered",
    "delivery_count",
    "published",
    "exchange",
    "routing_key",
    "properties",
    "payload",
)


@dataclass(frozen=True, slots=True)
class PastQuery:
    """A question about the past of a queue. Either `time` or `offset` is given. `incarnation`: a queue id, or None."""

    vhost: str
    queue: str
    time: str | None
    offset: int | None
    first: int
    count: int
    incarnation: int | None


@click.command("rewind")
@click.option(
    "--at",
    "time",
    metavar="TIME",
    help=f"The moment: {A_MOMENT}.",
)
@click.option("--offset", type=click.IntRange(min=0), help="An offset of the queue's partition, instead of a time.")
@click.option(
    "--incarnation",
    type=click.IntRange(min=0),
    metavar="ID",
    help="A queue id: of several queues that had this name one after the other, show this one only.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read this data directory, and no broker. With --kafka: only its snapshots.",
)
@click.option(
    "--keys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the subjects' keys, with --data or --kafka (default: keys in the data directory).",
)
@with_kafka_and_archive
@click.option(
    "--first", type=click.IntRange(min=0), default=0, show_default=True, help="Position of the first message shown."
)
@click.option(
    "--count", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Number of messages shown at most."
)
@click.argument("queue")
@with_settings
def rewind(
    settings: Settings,
    queue: str,
    time: str | None,
    offset: int | None,
    incarnation: int | None,
    data: Path | None,
    keys: Path | None,
    kafka: Kafka,
    first: int,
    count: int,
) -> None:
    """Show the messages of QUEUE at a moment of the past.

    Messages come in their order, with properties and the beginning of the body. `restore` brings them back.

    \b
    Examples:
      rewindmq rewind orders --at 10m
      rewindmq rewind orders --at 2026-11-21T03:04:05+00:00 --count 20
      rewindmq rewind orders --at mark:before-the-release --data ./data
    """
    if (time is None) == (offset is None):
        raise CliError(USAGE, "give either --at TIME or --offset N")
    time = None if time is None else moment_from(time)
    query = PastQuery(settings.vhost_name, queue, time, offset, first, count, incarnation)
    if data is not None or kafka.asked_for:
        keys = keys or (NO_KEYS if data is None else data / "keys")
        past = past_offline(kafka.history(data), keys, query)
    else:
        past = past_online(settings, query)
    moment = cast(dict[str, object], past["at"])
    messages = cast(list[dict[str, object]], past["message_details"])
    settings.banner(
        f"Queue '{queue}' in vhost '{settings.vhost_name}' at {moment['time']} ({moment['partition']}, offset"
        f" {moment['offset']}): {past['messages_ready']} ready, {past['messages_unacknowledged']} unacknowledged,"
        f" policy {past['policy'] or 'none'} ..."
    )
    settings.show(COLUMNS, [message_row(message, settings.formatter) for message in messages])
    beyond = cast(int, past["messages"]) - first - len(messages)
    if beyond > 0:
        settings.banner(f"... and {beyond} more (--first {first + len(messages)})")


def message_row(message: dict[str, object], formatter: str | None) -> dict[str, Value]:
    """A message as it is listed: for people the body is cut and printable, for programs it is whole."""
    row: dict[str, Value] = {name: message.get(name) for name in COLUMNS}
    if formatter == "json":
        return row
    properties = cast(dict[str, Value], message["properties"])
    row["payload"] = printable(str(message["payload"]), BODY_SHOWN)
    row["properties"] = json_line(properties) if properties else ""
    row["position"] = message["position"] if message["state"] == "ready" else None
    return row


def printable(text: str, most: int) -> str:
    """At most so many characters of a text, those that cannot be printed as Python writes them."""
    cut = text[:most] + ("..." if len(text) > most else "")
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in cut)


def past_online(settings: Settings, query: PastQuery) -> dict[str, object]:
    """The queue as the broker shows it. CliError."""
    asked = {"first": str(query.first), "count": str(query.count)}
    asked |= {"time": query.time} if query.time is not None else {"offset": str(query.offset)}
    if query.incarnation is not None:
        asked["incarnation"] = str(query.incarnation)
    try:
        return settings.client().get_one("queues", query.vhost, query.queue, "at", **asked)
    except Refused as refused:
        if refused.status in (400, 404):
            raise CliError(DATA, refused.reason) from None
        raise


def past_offline(history: "History", keys: Path, query: PastQuery) -> dict[str, object]:
    """The queue as this process folds it, without a broker. `keys`: the directory of the subjects' keys. CliError."""
    from rewindmq.engine.erasure.encryption import Subjects
    from rewindmq.engine.http.resources.past import MAX_BODY_SHOWN, MAX_SHOWN, Cut
    from rewindmq.engine.http.shapes.queues import PastQueueView
    from rewindmq.engine.log.contract import LogError
    from rewindmq.engine.rewind.queue_at import NoSuchQueue, histories_of, queue_at
    from rewindmq.projections.machine.machine import NewerHistory

    vhost, queue = query.vhost, query.queue
    refusal: Exception | None = None
    try:
        store = KeyStore.of(keys, topology_of(history.open().metadata, history.snapshots))
        cut = Cut(Subjects("", store, {}), MAX_BODY_SHOWN)
        for each in histories_of(history, vhost, queue):
            try:
                at = At(offset=query.offset) if query.time is None else moment_in(each, vhost, queue, query.time)
                past = queue_at(each, vhost, queue, at, query.first, query.count, query.incarnation, cut, MAX_SHOWN)
                found: dict[str, object] = json.loads(compact_text(PastQueueView.of(past, MAX_BODY_SHOWN)))
                return found
            except (NoSuchQueue, RewindError) as error:
                refusal = refusal or error  # of the partition where the queue would be if all partitions were there
    except NewerHistory as error:
        refusal = error
    except LogError as error:
        raise CliError(history_error_code(history, error), str(error)) from None
    raise CliError(DATA, str(refusal))


def moment_in(history: "History", vhost: str, queue: str, time: str) -> At:
    """The moment that a time or a mark means for a queue."""
    from rewindmq.engine.rewind import stays

    reader = history.open()
    topology = topology_of(reader.metadata, history.snapshots)
    return stays.moment_in(time, vhost, queue, topology, len(reader.queues))


@click.command("verify")
@click.option(
    "--data", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Data directory."
)
@click.option("--event-by-event", is_flag=True, help="Fold without the fast path for events that repeat each other.")
@with_kafka_and_archive
@with_settings
def verify(settings: Settings, data: Path, event_by_event: bool, kafka: Kafka) -> None:
    """Fold the log again and compare the result with the stored state.

    All queues, messages and bodies are compared, and each snapshot of the topology. `repeats` counts the events that
    the fold's fast path applied. Of a log in the data directory, the checksum of each block is checked first. Needs no
    broker, and may run beside one. Exit code 0: equal; 1: different; 65: a newer version wrote the history.

    \b
    Example:
      rewindmq verify --data ./data
    """
    from rewindmq.engine.log.contract import LogError
    from rewindmq.engine.log.location import begun_anew
    from rewindmq.projections import verify as projection
    from rewindmq.projections.machine.machine import NewerHistory
    from rewindmq.projections.metadata_verification import verify_metadata
    from rewindmq.projections.store.store import StoreError

    history = kafka.history(data)
    try:
        reader = history.open()
    except LogError as error:
        raise CliError(history_error_code(history, error), str(error)) from None
    settings.banner(f"Verifying {data} ...")
    try:
        rows = [] if kafka.servers is not None else log_rows(data, [log.name for log in reader.queues])
        reports = begun_anew(lambda: projection.verify(reader.queues, data / "state", event_by_event))
        metadata = verify_metadata(reader.metadata, history.snapshots)
        require_bases(history, reader.queues)
    except StoreError as error:
        raise CliError(DIFFERENT, str(error)) from None
    except NewerHistory as error:
        raise CliError(DATA, str(error)) from None
    except TrimmedMeanwhile as error:
        raise CliError(UNAVAILABLE, f"{error}: run it again") from None
    except OutsideHistory as error:
        raise CliError(UNAVAILABLE, f"{error}: name the archive that has it by --archive URL") from None
    except LogError as error:
        away = history_error_code(history, error) == UNAVAILABLE
        raise CliError(UNAVAILABLE if away else DIFFERENT, str(error)) from None
    rows += [metadata_row(metadata), *(state_row(report) for report in reports), *map(fork_row, metadata.forks)]
    settings.show(("partition", "check", "events", "queues", "messages", "result", "chain", "repeats"), rows)
    for offset, what in metadata.differences:
        click.echo(f"{metadata.partition}: the snapshot at offset {offset} {what}", err=True)
    report_differences(reports)
    if not metadata.equal:
        raise CliError(DIFFERENT, f"{len(metadata.differences)} snapshots of the topology differ from the log")


def require_bases(history: "History", queues: Sequence["HistoryPartition"]) -> None:
    """Compare the bases with which partitions begin with the trims in the metadata log. CliError, LogError."""
    from rewindmq.projections.floors import base_differs

    bases = [base for log in queues if (base := log.base()) is not None]
    floors = topology_of(history.open().metadata, history.snapshots).history.floors if bases else {}
    for base in bases:
        if (why := base_differs(base, floors)) is not None:
            raise CliError(DIFFERENT, why)


def log_rows(data: Path, queues: list[str]) -> list[dict[str, Value]]:
    """A row for each partition of the embedded log, whose checksums are checked. Raises CorruptLog."""
    from rewindmq.engine.log.embedded.directory import METADATA, partition_directory
    from rewindmq.engine.log.embedded.verify import verify_chain_in_parallel

    rows: list[dict[str, Value]] = []
    for name in (METADATA, *queues):
        segments = verify_chain_in_parallel(partition_directory(data, name))
        rows.append(
            {
                "partition": name,
                "check": "log",
                "events": sum(each.records for each in segments),
                "repeats": None,
                "queues": None,
                "messages": None,
                "result": "whole",
                "chain": segments[-1].chain.hex(),
            }
        )
    return rows


def history_error_code(history: "History", error: "LogError") -> int:
    """The exit code when a history cannot be opened or read."""
    from rewindmq.engine.log.contract import CorruptLog, NoAnswer
    from rewindmq.engine.log.location import OtherHistory

    if isinstance(error, NoAnswer):
        return UNAVAILABLE
    return DATA if history.kafka is None or isinstance(error, CorruptLog | OtherHistory) else UNAVAILABLE


def metadata_row(report: "MetadataVerification") -> dict[str, Value]:
    """The comparison of the topology's snapshots, as a row."""
    return {
        "partition": report.partition,
        "check": "snapshots",
        "events": report.end,
        "repeats": None,
        "queues": None,
        "messages": None,
        "result": report.result,
        "chain": None,
    }


def fork_row(fork: "Fork") -> dict[str, Value]:
    """A branch of the history, as a row."""
    return {
        "partition": "metadata-0",
        "check": "fork",
        "events": fork.at,
        "repeats": None,
        "queues": None,
        "messages": None,
        "result": str(fork),
        "chain": None,
    }


def state_row(report: "object") -> dict[str, Value]:
    """The comparison of one partition's state, as a row."""
    from rewindmq.projections.verify import Verification

    assert isinstance(report, Verification)
    return {
        "partition": report.partition,
        "check": "state",
        "events": report.offset,
        "repeats": report.repeats,
        "queues": report.queues,
        "messages": report.messages,
        "result": report.result,
        "chain": None,
    }


def report_differences(reports: Sequence["object"]) -> None:
    """Prints each difference. CliError when there is one."""
    from rewindmq.projections.verify import Verification

    total = 0
    for report in reports:
        assert isinstance(report, Verification)
        for behind in report.behind:
            click.echo(f"{report.partition}: {behind}", err=True)
        total += report.difference_count
        for difference in report.differences:
            where = difference.queue or report.partition
            click.echo(f"{where}: {difference.key}: {difference.what}")
    if total:
        raise CliError(
            DIFFERENT,
            f"the stored state differs from the log in {total} places: stop the broker and delete"
            " the directory state, then it is rebuilt from the log",
        )


COMMANDS = (rewind, restore, verify)
