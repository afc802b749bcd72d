"""Our own commands: `rewind` shows a queue as it was, `verify` compares the stored state with the log."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from rewindmq.engine.cli.columns import fields
from rewindmq.engine.cli.commands.restore import restore
from rewindmq.engine.cli.exits import DATA, DIFFERENT, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.formatters import beginning
from rewindmq.engine.cli.kafka import is_kafka_asked_for, location_of, with_kafka_and_archive
from rewindmq.engine.cli.lookups import unanswered
from rewindmq.engine.cli.rows import Asked, Row
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.times import A_MOMENT, MOMENT
from rewindmq.engine.cli.usage import EXISTING_DIRECTORY, command, flag, option
from rewindmq.engine.cli.values import Value, json_line
from rewindmq.engine.erasure.key_store import NO_KEYS, KeyStore
from rewindmq.projections.rewind import At, OutsideHistory, RewindError, TrimmedMeanwhile
from rewindmq.schemas.json_values import compact_text

if TYPE_CHECKING:
    from rewindmq.engine.keeping.location import HistoryPartition, InKafka, Location
    from rewindmq.engine.log.contract import LogError
    from rewindmq.projections.verify import Verification

COLUMNS = fields(
    "position message_id state payload_bytes redelivered delivery_count published exchange routing_key properties"
    " payload"
)
VERIFIED = fields("partition check events queues messages result chain in_runs")
ASKED = (
    option("--at time TIME", f"The moment: {A_MOMENT}.", MOMENT),
    option("--offset", "An offset of the queue's partition, instead of a time.", click.IntRange(min=0)),
    option(
        "--incarnation ID",
        "A queue id: of several queues that had this name one after the other, show this one only.",
        click.IntRange(min=0),
    ),
    option("--first", "Position of the first message shown.", click.IntRange(min=0), 0, show_default=True),
    option("--count", "Number of messages shown at most.", click.IntRange(1, 10_000), 100),
)
ONLINE = Row(
    "rewind QUEUE",
    "Show the messages of QUEUE at a moment of the past, which the broker looks up.",
    "",
    "GET queues/{vhost}/{queue}/at?time&offset&first&count&incarnation",
    refused=unanswered,
    params=ASKED,
)


@command(
    "rewind QUEUE",
    *ASKED,
    option("--data", "Read this data directory, and no broker. With --kafka: only its snapshots.", EXISTING_DIRECTORY),
    option(
        "--keys",
        "Directory of the subjects' keys, with --data or --kafka (default: keys in the data directory).",
        EXISTING_DIRECTORY,
    ),
)
@with_kafka_and_archive
def rewind(
    settings: CliSettings, queue: str, data: Path | None, keys: Path | None, kafka: "InKafka | None", **query: Any
) -> None:
    """Show the messages of QUEUE at a moment of the past.

    Messages come in their order, with properties and the beginning of the body. `restore` brings them back.

    \b
    Examples:
      rewindmq rewind orders --at 10m
      rewindmq rewind orders --at 2026-11-21T03:04:05+00:00 --count 20
      rewindmq rewind orders --at mark:before-the-release --data ./data
    """
    if (query["time"] is None) == (query["offset"] is None):
        raise CliError(USAGE, "give either --at TIME or --offset N")
    if data is not None or is_kafka_asked_for():
        keys = keys or (NO_KEYS if data is None else data / "keys")
        past = past_offline(location_of(data, kafka), keys, settings.vhost_name, queue, **query)
    else:
        past = ONLINE.send(Asked(settings, {"queue": queue, **query}))
    moment = cast(dict[str, object], past["at"])
    messages = cast(list[dict[str, object]], past["message_details"])
    settings.banner(
        f"Queue '{queue}' in vhost '{settings.vhost_name}' at {moment['time']} ({moment['partition']}, offset"
        f" {moment['offset']}): {past['messages_ready']} ready, {past['messages_unacknowledged']} unacknowledged,"
        f" policy {past['policy'] or 'none'} ..."
    )
    settings.list_for_people([message_row(message, settings.formatter) for message in messages])
    shown = query["first"] + len(messages)
    if past["messages"] > shown:
        settings.banner(f"... and {past['messages'] - shown} more (--first {shown})")


def message_row(message: dict[str, object], formatter: str | None) -> dict[str, Value]:
    """Return a message as it is listed: for people the body is cut and printable, for programs it is whole."""
    row: dict[str, Value] = {name: message.get(name) for name in COLUMNS}
    if formatter == "json":
        return row
    properties = cast(dict[str, Value], message["properties"])
    row["payload"] = beginning(str(message["payload"]))
    row["properties"] = json_line(properties) if properties else ""
    row["position"] = message["position"] if message["state"] == "ready" else None
    return row


def past_offline(
    history: "Location",
    keys: Path,
    vhost: str,
    queue: str,
    time: str | None,
    offset: int | None,
    first: int,
    count: int,
    incarnation: int | None,
) -> dict[str, Any]:
    """Return the queue as this process folds it, without a broker. `keys`: the directory of the subjects' keys.
    CliError."""
    from rewindmq.engine.erasure.encryption import Subjects
    from rewindmq.engine.http.resources.past import MAX_BODY_SHOWN, MAX_SHOWN, BodyCut
    from rewindmq.engine.http.shapes.queues import PastQueueView
    from rewindmq.engine.log.contract import LogError
    from rewindmq.engine.rewind.masks import NOTHING
    from rewindmq.engine.rewind.queue_at import NoSuchQueue, histories_of, queue_at
    from rewindmq.projections.machine.machine import NewerHistory

    refusal: Exception | None = None
    try:
        store = KeyStore.of(keys, history.open().topology())
        cut = BodyCut(Subjects("", store, {}), MAX_BODY_SHOWN, NOTHING, queue)
        for each in histories_of(history, vhost, queue):
            try:
                at = At(offset=offset) if time is None else moment_in(each, vhost, queue, time)
                past = queue_at(each, vhost, queue, at, first, count, incarnation, cut, MAX_SHOWN)
                found: dict[str, object] = json.loads(compact_text(PastQueueView.of(past, MAX_BODY_SHOWN)))
                return found
            except (NoSuchQueue, RewindError) as error:
                refusal = refusal or error  # of the partition where the queue would be if all partitions were there
    except NewerHistory as error:
        refusal = error
    except LogError as error:
        raise CliError(history_error_code(history, error), str(error)) from None
    raise CliError(DATA, str(refusal))


def moment_in(history: "Location", vhost: str, queue: str, time: str) -> At:
    """Return the moment that a time or a mark means for a queue."""
    from rewindmq.engine.rewind import partition_visits

    reader = history.open()
    topology = reader.topology()
    return partition_visits.moment_in(time, vhost, queue, topology, len(reader.queues))


@command(
    "verify",
    option("--data", "Data directory.", EXISTING_DIRECTORY, required=True),
    flag("--event-by-event", "Apply each event by itself, also publishes that differ in their bodies alone."),
)
@with_kafka_and_archive
def verify(settings: CliSettings, data: Path, event_by_event: bool, kafka: "InKafka | None") -> None:
    """Fold the log again and compare the result with the stored state.

    All queues, messages and bodies are compared, and each snapshot of the topology. `in_runs` counts the publishes that
    the fold applied together, because they differ in their bodies alone. In a data directory, the checksum of each
    block of the log is checked first. Needs no broker, and may run beside one. Exit code 0: equal; 1: different; 65: a
    newer version wrote the history.

    \b
    Example:
      rewindmq verify --data ./data
    """
    from rewindmq.engine.keeping.location import retry_if_trimmed
    from rewindmq.engine.log.contract import LogError
    from rewindmq.projections import verify as projection
    from rewindmq.projections.machine.machine import NewerHistory
    from rewindmq.projections.metadata_verification import verify_metadata
    from rewindmq.projections.store.store import StoreError

    history = location_of(data, kafka)
    try:
        reader = history.open()
    except LogError as error:
        raise CliError(history_error_code(history, error), str(error)) from None
    settings.banner(f"Verifying {data} ...")
    try:
        rows = [] if kafka is not None else log_rows(data, [log.name for log in reader.queues])
        reports = retry_if_trimmed(lambda: projection.verify(reader.queues, data / "state", event_by_event))
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
    rows.append(verified(metadata.partition, "snapshots", metadata.end, metadata.result))
    rows += [
        verified(each.partition, "state", each.offset, each.result)
        | {"queues": each.queues, "messages": each.messages, "in_runs": each.in_runs}
        for each in reports
    ]
    rows += [verified("metadata-0", "fork", fork.at, str(fork)) for fork in metadata.forks]
    settings.show(rows)
    for offset, what in metadata.differences:
        click.echo(f"{metadata.partition}: the snapshot at offset {offset} {what}", err=True)
    report_differences(reports)
    if not metadata.equal:
        raise CliError(DIFFERENT, f"{len(metadata.differences)} snapshots of the topology differ from the log")


def require_bases(history: "Location", queues: Sequence["HistoryPartition"]) -> None:
    """Compare the bases with which partitions begin with the trims in the metadata log. CliError, LogError."""
    from rewindmq.projections.floors import base_differs

    bases = [base for log in queues if (base := log.base()) is not None]
    floors = history.open().topology().history.floors if bases else {}
    for base in bases:
        if (why := base_differs(base, floors)) is not None:
            raise CliError(DIFFERENT, why)


def log_rows(data: Path, queues: list[str]) -> list[dict[str, Value]]:
    """Return a row for each partition of the embedded log, whose checksums are checked. Raises CorruptLog."""
    from rewindmq.engine.log.embedded.directory import METADATA, partition_directory
    from rewindmq.engine.log.embedded.verify import verify_chain_in_parallel

    rows = []
    for name in (METADATA, *queues):
        segments = verify_chain_in_parallel(partition_directory(data, name))
        row = verified(name, "log", sum(each.records for each in segments), "whole")
        rows.append(row | {"chain": segments[-1].chain.hex()})
    return rows


def verified(partition: str, check: str, events: int, result: str) -> dict[str, Value]:
    """Return a comparison as a row."""
    known = {"partition": partition, "check": check, "events": events, "result": result}
    return dict.fromkeys(VERIFIED) | known


def history_error_code(history: "Location", error: "LogError") -> int:
    """Return the exit code when a history cannot be opened or read."""
    from rewindmq.engine.keeping.location import HistoryMismatch
    from rewindmq.engine.log.contract import CorruptLog, NoAnswer

    if isinstance(error, NoAnswer):
        return UNAVAILABLE
    return UNAVAILABLE if history.may_answer_later and not isinstance(error, CorruptLog | HistoryMismatch) else DATA


def report_differences(reports: "Sequence[Verification]") -> None:
    """Print each difference. CliError when there is one."""
    total = 0
    for report in reports:
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
            " the directory state; the next start rebuilds it from the log",
        )


COMMANDS = (rewind, restore, verify)
