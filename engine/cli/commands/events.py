"""`rewindmq events` prints the log, one event a line, and with --effects the effects of each event.

    queues-0:412  2026-11-21T03:04:05.678+00:00  guest/16777217  Acked queue=orders consumer=16777218 messages=3-7,9
        [orders] acked by 16777218: 3-7 9

Rules
- No broker is asked. The command reads the log as any other reader does, also beside a running broker, up to where it
  ends when the command begins.
- The partitions are merged by time. Within a partition the order is that of the offsets.
- `--from` and `--to` take an offset of each partition, or a moment. The event at `--to` is not shown.
- --effects folds from the nearest snapshot at or before the first event shown, or from the beginning.
- Memory: a block of each partition, and with --effects the state of its queues.
"""

import heapq
import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click

from rewindmq.engine.cli.commands.history import history_error_code
from rewindmq.engine.cli.exits import DATA, USAGE, CliError
from rewindmq.engine.cli.kafka import location_of, with_kafka_and_archive
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.shapes import EventLine
from rewindmq.engine.cli.times import A_MOMENT
from rewindmq.engine.cli.usage import EXISTING_DIRECTORY, command, flag, option
from rewindmq.engine.keeping.location import HistoryReader, InKafka, Location
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.machine import describe
from rewindmq.projections.machine.data.effects import Effect, Quarantine
from rewindmq.projections.machine.machine import Machine, NewerHistory
from rewindmq.projections.marks import Marks, marks_of, moment
from rewindmq.projections.replay import PartitionLog, decoder_for, drive, groups_of
from rewindmq.projections.rewind import At, OutsideHistory, RewindError, absolute, format_time, state_at
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Event
from rewindmq.schemas.json_values import json_text
from rewindmq.schemas.values import Actor

METADATA = "metadata-0"
FIRST_LOOK_BACK = 1_000  # offsets before the end, in search of a queue's last events; then twice as many, and so on

NOBODY = Actor("", 0)

QueueName = tuple[str, str]


@dataclass(slots=True)
class PrintedEvent:
    """A record as it is printed. `event`: None where the record cannot be decoded; `problem` says why."""

    partition: str
    offset: int
    time_ms: int
    actor: Actor
    event: Event | None
    problem: str = ""
    effects: list[Effect] = field(default_factory=list)


@command(
    "events",
    option("--data", "Data directory. With --kafka: only its snapshots.", EXISTING_DIRECTORY),
    option("--partition NAME", "Only this partition, such as queues-0 or metadata-0 (default: all)."),
    option("--from start N|TIME", f"The first event: an offset, or a moment: {A_MOMENT}. -20 is --tail 20."),
    option("--to end N|TIME", "The end, exclusive: as --from."),
    option("--tail N", "Only the last N events.", click.IntRange(0)),
    option("--queue QUEUE", "Only events that name this queue, and with --effects also those that change it."),
    flag("--effects with_effects", "Show the effects of each event, indented below it."),
    option("--format form", "text, or json: one object a line.", click.Choice(["text", "json"])),
)
@with_kafka_and_archive
def events(
    settings: CliSettings,
    data: Path | None,
    kafka: InKafka | None,
    partition: str | None,
    start: str | None,
    end: str | None,
    tail: int | None,
    queue: str | None,
    with_effects: bool,
    form: str | None,
) -> None:
    """Print the log, one event a line.

    A line has the offset, time, user and fields of an event, and the sizes of bodies. Needs no broker, and may run
    beside one.

    \b
    Examples:
      rewindmq events --data ./data --tail 20
      rewindmq events --data ./data --queue orders --from 10m --effects
      rewindmq events --kafka kafka-1:9092 --partition metadata-0 --format json
    """

    history = location_of(data, kafka)
    if start is not None and start.startswith("-") and start[1:].isdecimal():
        tail = int(start[1:]) if tail is None else tail
        start = None
    wanted = None if queue is None else (settings.vhost_name, queue)
    shown = as_json if form == "json" or (form is None and settings.formatter in ("json", "json_stream")) else as_text
    try:
        reader = history.open()
        logs = partitions_of(reader, partition)
        begin, behind = (None if each is None else absolute(each) for each in (start, end))
        marks = partial(marks_of, reader.metadata, history.snapshots)
        ranges = [range_of(log, marks, begin, behind) for log in logs]
        if tail is not None:
            ranges = last_ones(logs, ranges, tail, wanted)
        found = [
            lines_of(history, log, first, last, wanted, with_effects)
            for log, (first, last) in zip(logs, ranges, strict=True)
        ]
        write(heapq.merge(*found, key=lambda line: line.time_ms), shown)
    except (RewindError, NewerHistory) as error:
        raise CliError(DATA, str(error)) from None
    except LogError as error:
        raise CliError(history_error_code(history, error), str(error)) from None


def partitions_of(reader: "HistoryReader", name: str | None) -> "list[PartitionLog]":
    """Return the partition with this name, or all. CliError."""
    every: list[PartitionLog] = [reader.metadata, *reader.queues]
    if name is None:
        return every
    found = [log for log in every if log.name == name]
    if not found:
        raise CliError(USAGE, f"there is no partition {name}; there are {', '.join(log.name for log in every)}")
    return found


def range_of(log: "PartitionLog", marks: Callable[[], Marks], start: str | None, end: str | None) -> tuple[int, int]:
    """Return the offsets to show of a partition: the first, and the end (exclusive)."""
    first = log.start_offset if start is None else max(log.start_offset, offset_of(log, marks, start, -1))
    behind = log.next_offset if end is None else min(log.next_offset, offset_of(log, marks, end, 0))
    return min(first, behind), behind


def offset_of(log: "PartitionLog", marks: Callable[[], Marks], text: str, shift_ms: int) -> int:
    """Return the offset that an offset, a time or a mark means.

    `shift_ms`: -1 where the events of the very millisecond come after the offset. UnreadableTime, NoSuchMark."""
    if text.isdecimal():
        return int(text)
    at = moment(text, log.name, marks)
    return log.offset_at(at.time_ms + shift_ms) if at.time_ms is not None else at.offset or 0


def last_ones(
    logs: "list[PartitionLog]", ranges: list[tuple[int, int]], count: int, wanted: QueueName | None
) -> list[tuple[int, int]]:
    """Shorten the ranges to the last `count` events of all partitions together."""
    last: list[tuple[int, int, int]] = []  # time, number of the partition, offset
    for number, (log, (first, behind)) in enumerate(zip(logs, ranges, strict=True)):
        last += [(line.time_ms, number, line.offset) for line in look_back(log, first, behind, count, wanted)]
    last = sorted(last)[max(0, len(last) - count) :]
    begins = {}
    for _, number, offset in reversed(last):
        begins[number] = offset
    return [(begins.get(number, behind), behind) for number, (_, behind) in enumerate(ranges)]


def look_back(
    log: "PartitionLog", first: int, behind: int, count: int, wanted: QueueName | None
) -> "deque[PrintedEvent]":
    """Return the last `count` lines of the partition, or all if it has fewer."""
    back = max(count, FIRST_LOOK_BACK if wanted else 0)
    while True:
        begin = max(first, behind - back)
        found = deque(
            (line for line in read(log, begin, behind) if wanted is None or names_queue(line, wanted)), maxlen=count
        )
        if begin == first or len(found) == count:
            return found
        back *= 2


def read(log: "PartitionLog", first: int, behind: int) -> Iterator[PrintedEvent]:
    """Decode the records of a range. CorruptLog, LogError."""

    if first >= behind:
        return
    decode = decoder_for(log).decode
    time_ms = 0  # of the event before, for a record that does not say it
    for offsets, records, timestamps_ms in groups_of(log, first, behind):
        for index in range(bisect_left(offsets, first), bisect_left(offsets, behind)):
            try:
                own_ms, actor, event = decode(records[index], False)
                problem = ""
            except UndecodableRecord as error:
                own_ms, actor, event, problem = time_ms, NOBODY, None, str(error)
            time_ms = own_ms if timestamps_ms is None else timestamps_ms[index]
            yield PrintedEvent(log.name, offsets[index], time_ms, actor, event, problem)


def fold(machine: "Machine", log: "PartitionLog", behind: int) -> Iterator[PrintedEvent]:
    """Yield the lines from where the machine stands, each with its effects. Yields a block's lines when it is folded.

    NewerHistory, CorruptLog, LogError."""

    decoder = decoder_for(log)
    lines: list[PrintedEvent] = []
    time_ms = 0  # of the event before, for a record that does not say it

    def after(offset: int, timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        nonlocal time_ms
        time_ms = timestamp_ms
        lines.append(PrintedEvent(log.name, offset, timestamp_ms, actor, event, effects=effects.copy()))

    def undecodable(offset: int, problem: str) -> None:
        at_ms = time_ms if timestamps_ms is None else timestamps_ms[bisect_left(offsets, offset)]
        lines.append(PrintedEvent(log.name, offset, at_ms, NOBODY, None, problem, [Quarantine(offset, "", problem)]))

    for group in groups_of(log, machine.next_offset, behind):
        offsets, _, timestamps_ms = group
        try:
            drive(machine, (group,), decoder, behind, after=after, undecodable=undecodable)
        except NewerHistory:
            yield from lines
            raise
        yield from lines
        lines.clear()


def lines_of(
    history: "Location", log: "PartitionLog", first: int, behind: int, wanted: QueueName | None, with_effects: bool
) -> Iterator[PrintedEvent]:
    """Yield the lines of a range that are shown, with effects if wanted. NewerHistory, CorruptLog, LogError."""
    if with_effects and log.name != METADATA and first < behind:
        lines = fold(machine_before(history, log, first), log, behind)
    else:
        lines = read(log, first, behind)
    for line in lines:
        if wanted is None:
            yield line
            continue
        named = names_queue(line, wanted)
        line.effects = [effect for effect in line.effects if concerns(effect, wanted, named)]
        if named or line.effects:
            yield line


def machine_before(history: "Location", log: "PartitionLog", first: int) -> "Machine":
    """Return the partition's machine before the event at `first`."""
    try:
        return state_at(log, history.snapshots, At(offset=first))
    except OutsideHistory as error:
        raise OutsideHistory(f"{error}. Leave out --effects to see the events alone") from None


def names_queue(line: PrintedEvent, wanted: QueueName) -> bool:
    """Return True if the event names the queue."""
    return line.event is not None and wanted in describe.queues_of(line.event)


def concerns(effect: Effect, wanted: QueueName, named: bool) -> bool:
    """Return True if an effect belongs to a queue. `named`: the event names the queue; decides for a quarantine."""
    return named if isinstance(effect, Quarantine) else (effect.queue.vhost, effect.queue.name) == wanted


def write(lines: Iterator[PrintedEvent], shown: Callable[[PrintedEvent], str]) -> None:
    """Print the lines. click.echo would flush each line, so this writes to sys.stdout itself."""
    for line in lines:
        sys.stdout.write(shown(line))


class _Times(describe.Names):
    def time(self, time_ms: int) -> str:
        return format_time(time_ms)


NAMES = _Times()


def as_text(line: PrintedEvent) -> str:
    """Return a line for people, with a line for each effect below it."""
    event = f"no event: {line.problem}" if line.event is None else describe.event(line.event)
    head = f"{line.partition}:{line.offset}  {format_time(line.time_ms)}  {describe.actor(line.actor)}  {event}\n"
    return head + "".join(f"    {describe.effect(effect, NAMES)}\n" for effect in line.effects)


def as_json(line: PrintedEvent) -> str:
    """Return a JSON object on one line."""
    found: EventLine = {
        "partition": line.partition,
        "offset": line.offset,
        "time": format_time(line.time_ms),
        "user": line.actor.user,
        "session": line.actor.session,
        "event": None if line.event is None else type(line.event).__name__,
    }
    if line.actor.reason:
        found["why"] = line.actor.reason
    if line.event is None:
        found["problem"] = line.problem
    else:
        found["fields"] = describe.event_fields(line.event)
    if line.effects:
        found["effects"] = [describe.effect_fields(effect) for effect in line.effects]
    return json_text(found, ensure_ascii=False) + "\n"


COMMANDS = (events,)
