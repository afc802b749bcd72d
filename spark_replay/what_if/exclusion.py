"""Folds a history as if something had not happened: a message, a user, a session, a span of time (B-11).

    --without message=queues-0:123
    --without user=eve
    --without user=deploy,from=2026-11-21T09:00:00Z,to=2026-11-21T09:10:00Z      events to which all of these apply
    --without session=33554439
    --without from=mark:before-deploy,to=mark:after-deploy

Every event that a rule fits is left out, of whatever kind: publishes, acks, purges, policies, consumers. So are the
messages that came of its messages in other queues, also in other partitions: their dead letters, delayed and restored
copies, and messages that came of these in turn (`closed`). Rules by user, session and time apply to requests of
clients, never to the broker's own events (time that passed, starts, forwards).

Events of other users stay as recorded. Acks of messages that are left out are left out with them. A message that a
left-out event settled counts as acked by the consumer that gets it instead (alternative.py).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rewindmq.engine.keeping.location import HistoryReader, Location
from rewindmq.engine.log.embedded.directory import queue_partition
from rewindmq.projections.marks import Marks, name_in, positions, topology_of
from rewindmq.projections.replay import decoder_for, events_of
from rewindmq.projections.rewind import parse_time
from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.topology.placement import Placement
from rewindmq.projections.what_if.exclusion import Exclusion, Rule
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.events import Published, QueueDeclared
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.fold import FoldInput, fold_log
from rewindmq.spark_replay.history.outcomes import batch_of
from rewindmq.spark_replay.lineage import lineage
from rewindmq.spark_replay.location.log import groups_in
from rewindmq.spark_replay.location.ranges import BACKWARDS, BadRequest, OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

LEFT, CAME, DECLARED, USER = range(4)  # kinds of rows of LEFT_OUT
_KEYS = ("message", "user", "session", "from", "to")


def parse_rule(text: str) -> Rule:
    """Return the rule in a text of `--without`.

    Raises BadRequest."""
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if key not in _KEYS or not equals or not value or key in given:
            raise BadRequest(f"--without {text!r}: it is one or more of {', '.join(f'{each}=...' for each in _KEYS)}")
        given[key] = value
    if "message" in given and len(given) > 1:
        raise BadRequest(f"--without {text!r}: give either a message, or a user, a session and times")
    partition, _, number = given.get("message", "").rpartition(":")
    if "message" in given and not (partition and number.isascii() and number.isdigit()):
        raise BadRequest(f"--without {text!r}: a message is partition:offset of its publish, such as queues-0:123")
    session = given.get("session")
    if session is not None and not (session.isascii() and session.isdigit()):
        raise BadRequest(f"--without {text!r}: a session is a number")
    times = {key: _bound(given[key]) if key in given else None for key in ("from", "to")}
    return Rule(
        (partition, int(number)) if "message" in given else None,
        given.get("user"),
        None if session is None else int(session),
        times["from"],
        times["to"],
    )


def _bound(text: str) -> int | str:
    return parse_time(text) if (name := name_in(text)) is None else name


def resolved(location: Location, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return the rules with offsets in the place of marks. Needs no Spark.

    Raises BadRequest when a message is not in the history, or a rule's end lies before its start; NoSuchMark."""
    log = location.open()
    marks: Marks = {}
    if any(isinstance(bound, str) for rule in rules for bound in (rule.start, rule.end)):
        marks = log.topology().marks
    found = []
    for rule in rules:
        if rule.message is not None and not _is_published(log, *rule.message):
            raise BadRequest(f"no message {rule.message[0]}:{rule.message[1]} in the history")
        start, end = (positions(marks, at) if isinstance(at, str) else at for at in (rule.start, rule.end))
        if start is not None and end is not None and _backwards(log, start, end):
            raise BadRequest(f"--without from=...,to=...: {BACKWARDS}")
        found.append(replace(rule, start=start, end=end))
    return tuple(found)


def _backwards(log: HistoryReader, start: int | Mapping[str, int], end: int | Mapping[str, int]) -> bool:
    if isinstance(start, int) and isinstance(end, int):
        return start > end
    begins = {each.name: each.offset_at(start - 1) for each in log.queues} if isinstance(start, int) else start
    ends = {each.name: each.offset_at(end) for each in log.queues} if isinstance(end, int) else end
    return any(at > ends.get(name, 0) for name, at in begins.items())


def _is_published(log: HistoryReader, partition: str, offset: int) -> bool:
    found = next((each for each in log.queues if each.name == partition), None)
    if found is None or not found.start_offset <= offset < found.next_offset:
        return False
    decoder = decoder_for(found)
    for _, records, _ in groups_in(found, offset, offset + 1, 1, 1):
        try:
            return isinstance(decoder.decode(records[0], False)[2], Published)
        except UndecodableRecord:
            return False
    return False


def with_descendants(
    spark: "SparkSession", location: Location, without: Exclusion, ranges: Sequence[OffsetRange]
) -> Exclusion:
    """Return the exclusion, with the messages that came of left-out messages.

    The driver holds the letters of the whole history, some 100 bytes each. Raises BadRequest when the history does not
    know the message or the user."""
    without = replace(without, rules=resolved(location, without.rules))
    whole = [OffsetRange(offset_range.partition, 0, offset_range.end) for offset_range in ranges]
    frame = fold_log(spark, location, whole, find_left_out, columns.LEFT_OUT, without=without).persist()
    users = frame.where(frame.kind == USER).select("user").distinct()
    _require_users(location, without, {row.user for row in users.collect()})
    placement = location.open().topology().placement
    homes = homes_of(frame.where(frame.kind == DECLARED).collect(), placement)
    of_letters = frame.where(frame.kind == CAME)
    left = frame.where(frame.kind == LEFT).select("partition", "offset")
    # a message with this id is left out of some source; the loop below shows whether it is the same source
    maybe = {
        (row.partition, row.offset)
        for row in left.join(of_letters.selectExpr("message_id as offset").distinct(), "offset", "left_semi").collect()
    }
    letters = [
        (row.partition, row.offset, home, row.message_id, (home, row.message_id) in maybe)
        for row in of_letters.collect()
        for home in homes(row.source, row.source_id, row.source_home)
    ]
    frame.unpersist()
    return replace(without, also=descendants_of(letters))


def homes_of(declared: Iterable[Any], placement: Placement) -> Callable[[str, int, int], Sequence[str]]:
    """A function that names the partitions in which a queue (with its id, and its home as `Origin` names it) lay.

    `declared`: rows of the declarations. The number of partitions does not tell it: a topic may have grown since. Only
    where somebody repartitioned the log is it known by which number queues were placed first."""
    of_id: dict[tuple[str, int], str] = {}
    of_name: dict[str, dict[str, None]] = {}
    for row in declared:
        of_id[row.source, row.offset] = row.partition
        of_name.setdefault(row.source, {})[row.partition] = None

    def homes(queue: str, queue_id: int, number: int) -> Sequence[str]:
        if number >= 0:
            return (queue_partition(number),)
        if placement.made_with:
            vhost, _, name = queue.partition("/")  # wherever it is cut, the place is the same
            return (queue_partition(partition_of(vhost, name, placement.made_with)),)
        home = of_id.get((queue, queue_id))
        return tuple(of_name.get(queue, ())) if home is None else (home,)

    return homes


def _require_users(location: Location, without: Exclusion, seen: set[str]) -> None:
    """Raise BadRequest when the history does not know a rule's user.

    `seen`: the users that acted on queues. Users with other actions, or with none, are looked up in the metadata
    log."""
    missing = {rule.user for rule in without.rules if rule.user is not None} - seen
    if missing:
        log = location.open().metadata
        lineage.read([OffsetRange(log.name, 0, log.next_offset)])
        missing -= {actor.user for _, _, actor, _ in events_of(log)} | topology_of(log).users.keys()
    if missing:
        raise BadRequest(f"the history has no user {min(missing)!r}")


def descendants_of(letters: Sequence[tuple[str, int, str, int, bool]]) -> dict[str, frozenset[int]]:
    """Return the ids of the letters that must go, by partition.

    `letters`: (partition, id, source's partition, id of the source's message, whether that message is left out)."""
    of_message: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for partition, offset, source, message_id, _ in letters:
        of_message.setdefault((source, message_id), []).append((partition, offset))
    found: dict[str, set[int]] = {}
    todo = [(source, message_id) for _, _, source, message_id, left in letters if left]
    while todo:
        for partition, offset in of_message.pop(todo.pop(), ()):
            found.setdefault(partition, set()).add(offset)
            todo.append((partition, offset))
    return {partition: frozenset(ids) for partition, ids in found.items()}


def find_left_out(fold_input: FoldInput, without: Exclusion) -> "Iterator[pa.RecordBatch]":
    """Yield rows of LEFT_OUT, in a Spark task.

    There is a row for each message that a rule leaves out, each message that came of another, each declaration, and
    each user of a rule that acted."""
    partition, decode = fold_input.offset_range.partition, fold_input.decoder.decode
    unseen = {rule.user for rule in without.rules if rule.user is not None}
    rows: list[tuple[Any, ...]] = []
    for offsets, records, times in fold_input.groups:
        for index, offset in enumerate(offsets):
            try:
                timestamp_ms, actor, event = decode(records[index], False)
            except UndecodableRecord:
                continue
            if actor.user in unseen:
                unseen.remove(actor.user)
                rows.append((USER, partition, None, None, None, None, None, actor.user))
            if isinstance(event, QueueDeclared):
                rows.append((DECLARED, partition, offset, f"{event.vhost}/{event.queue}", None, None, None, None))
            if not isinstance(event, Published):
                continue
            if without.leaves_out(partition, offset, timestamp_ms if times is None else times[index], actor):
                rows.append((LEFT, partition, offset, None, None, None, None, None))
            origin = event.origin
            if origin is not None:
                source = f"{origin.vhost}/{origin.queue}"
                ids = origin.queue_id, origin.partition, origin.message_id
                rows.append((CAME, partition, offset, source, *ids, None))
        if rows:
            yield batch_of(rows, columns.LEFT_OUT)
            rows = []
