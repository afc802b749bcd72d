"""Compares what the brokers say about their clients' publishes with the log: none came in vain.

    metadata log    SessionCounted: what came in a session, and how many events it has below which offset
    partitions      PublishTally counts the events of each session between these offsets, in the tasks of the audit
    driver          `publish_findings`: the sums of each session, and of each session in each partition

A session that published after its last count, or was never counted (its node was killed, or was of machine version 1),
is in part *not counted*: that is said with its number, and is no finding. Restored messages, dead letters and records
of services are no publishes of a session.
"""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rewindmq.projections.canonical_json import canonical_json
from rewindmq.projections.replay import PartitionLog, events_of
from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.schemas.access_events import SessionCounted
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.values import Actor
from rewindmq.spark_replay.audit.checks import PUBLISHES, Finding
from rewindmq.spark_replay.location.ranges import OffsetRange

PUBLISHED_BY: Final = "published by sessions"  # rows that a partition's task leaves for the driver; no findings
NEVER: Final = 1 << 62
_ROW: Final = 10_000  # sessions in a row

Count = tuple[int, int]  # an offset, and how many events the session has below it
Mark = tuple[int, int]  # an offset, and the session that was counted there
Piece = tuple[int, int, int]  # session, offset, events of the session below it that are in no piece before


class SessionCounts:
    """The `SessionCounted` events of a metadata log. `by_session`: the counts of each session, by partition.

    `wrong`: offsets and details of counts that do not add up."""

    def __init__(self, events: Iterable[tuple[int, SessionCounted]]) -> None:
        self.by_session: dict[int, dict[int, list[Count]]] = defaultdict(dict)
        self.received: dict[int, int] = {}
        self.wrong: list[tuple[int, str]] = []
        for offset, event in events:
            self._add(offset, event)

    def _add(self, offset: int, event: SessionCounted) -> None:
        logged = sum(each.events for each in event.partitions)
        gone = event.refused + event.unknown_exchange + event.after_error + event.unfinished + event.grouped
        if event.received + event.copies != gone + logged:
            came = f"session {event.session}: {event.received} publishes came"
            self.wrong.append((offset, f"{came}, {gone} were refused or not done, {logged - event.copies} were logged"))
        self.received[event.session] = event.received
        counts = self.by_session[event.session]
        for each in event.partitions:
            counts.setdefault(each.partition, []).append((each.below, each.events))

    def marks(self, partition: int) -> list[Mark]:
        """Return where sessions were counted in a partition, by offset."""
        return sorted(
            (below, session) for session, counts in self.by_session.items() for below, _ in counts.get(partition, ())
        )


def counts_in(metadata: PartitionLog) -> SessionCounts:
    """Read the counts of a metadata log."""
    events = events_of(metadata)
    return SessionCounts((offset, event) for offset, _, _, event in events if isinstance(event, SessionCounted))


class PublishTally:
    """Counts the publishes of each session in a range of a partition. `marks`: as of `SessionCounts.marks`."""

    def __init__(self, marks: Sequence[Mark], start: int) -> None:
        self.pieces: list[Piece] = []
        self._marks = marks
        self._at = bisect_left(marks, (start + 1, 0))
        self._next = marks[self._at][0] if self._at < len(marks) else NEVER
        self._since: dict[int, int] = {}  # events by session, since its last mark

    def see(self, offset: int, actor: Actor, event: Event) -> None:
        """Count an event."""
        if offset >= self._next:
            self.reach(offset)
        if type(event) is Published and actor.session and event.origin is None:
            self._since[actor.session] = self._since.get(actor.session, 0) + 1

    def reach(self, offset: int) -> None:
        """Add the pieces of sessions that were counted up to here."""
        while self._next <= offset:
            session = self._marks[self._at][1]
            count = self._since.pop(session, 0)
            if count:
                self.pieces.append((session, self._next, count))
            self._at += 1
            self._next = self._marks[self._at][0] if self._at < len(self._marks) else NEVER

    def end(self, offset: int) -> list[Piece]:
        """Return all pieces: the range ends before `offset`."""
        self.reach(offset)
        self.pieces += ((session, offset, count) for session, count in self._since.items())
        self._since.clear()
        return self.pieces

    def rows(self, partition: str, offset: int) -> list[tuple[Any, ...]]:
        """Return the pieces as rows of AUDIT."""
        pieces = self.end(offset)
        parts = [pieces[at : at + _ROW] for at in range(0, len(pieces), _ROW)]
        return [(PUBLISHED_BY, True, partition, offset, None, None, canonical_json(part)) for part in parts]


def pieces_in(rows: Iterable[Any]) -> dict[str, list[Piece]]:
    """Return the pieces in rows of AUDIT, by partition."""
    found: dict[str, list[Piece]] = defaultdict(list)
    for row in rows:
        found[row.partition] += (tuple(piece) for piece in json.loads(row.detail))
    return found


def publish_findings(
    counts: SessionCounts, metadata: str, pieces: Mapping[str, Sequence[Piece]], ranges: Sequence[OffsetRange]
) -> list[Finding]:
    """Compare the counts of the brokers, in the log named `metadata`, with those of the audit, of `ranges`."""
    found = [Finding(PUBLISHES, False, metadata, offset, None, None, detail) for offset, detail in counts.wrong]
    known = not_known = 0
    by_number = {number_of(each.partition): each for each in ranges}
    for number, each in by_number.items():
        of_partition = _Partition(counts, number, each)
        of_partition.take(pieces.get(each.partition, ()))
        found += of_partition.findings()
        known += of_partition.known
        not_known += of_partition.not_known
    for of_session in counts.by_session.values():
        not_known += sum(of_session[number][-1][1] for number in of_session if number not in by_number)
    if found:
        return found
    detail = f"{len(counts.received)} sessions, {known} publishes counted, {not_known} not counted"
    return [Finding(PUBLISHES, True, metadata, None, None, None, detail)]


class _Partition:
    """The publishes in one partition. `known`: those that a broker has counted; `not_known`: the others."""

    def __init__(self, counts: SessionCounts, number: int, audited: OffsetRange) -> None:
        self.audited = audited
        self.known = self.not_known = 0
        self.counts = {session: each[number] for session, each in counts.by_session.items() if number in each}
        self.events: dict[tuple[int, int], int] = defaultdict(int)  # by session, and number of its count

    def take(self, pieces: Iterable[Piece]) -> None:
        """Add each piece to the first count that has it."""
        for session, offset, events in pieces:
            at = bisect_left(self.counts.get(session, ()), (offset, -1))
            if at < len(self.counts.get(session, ())):
                self.events[session, at] += events
            else:
                self.not_known += events

    def findings(self) -> list[Finding]:
        """Return the counts that are not those of the log."""
        found = []
        for session, counts in self.counts.items():
            after = said_before = 0
            for at, (below, said) in enumerate(counts):
                events, expected = self.events.get((session, at), 0), said - said_before
                beyond = below > self.audited.end or (after < self.audited.start and events < expected)
                if beyond:
                    self.not_known += expected
                elif events != expected:
                    detail = f"session {session}: {events} publishes are between offsets {after} and {below}"
                    detail += f", the broker logged {expected}"
                    found.append(Finding(PUBLISHES, False, self.audited.partition, below, None, None, detail))
                else:
                    self.known += expected
                after, said_before = below, said
        return found
