"""Logs what became of each session's publishes: `SessionCounted`, at its end and at the checkpoints of an embedded log.

The event is logged when the publishes that it counts are durable. Where nodes share a log, an append position is no
offset, so a session that goes on is not counted: only behind its end no publish of it follows.
"""

from collections.abc import Callable, Iterable

from rewindmq.engine.host.eager import begin
from rewindmq.engine.host.slices import in_slices
from rewindmq.engine.partition.lifecycle import Nodes
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session
from rewindmq.projections.machine.rules.versions import UNROUTED
from rewindmq.schemas.access_events import SessionCounted
from rewindmq.schemas.values import Actor


class SessionCounts:
    """`when_durable`, `end_turn`: as of the broker's turns."""

    def __init__(
        self,
        metadata: Metadata,
        nodes: Nodes,
        when_durable: Callable[[Callable[[], None]], None],
        end_turn: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._nodes = nodes
        self._when_durable = when_durable
        self._end_turn = end_turn

    @property
    def _counts(self) -> bool:
        return self._nodes.joined and self._metadata.topology.machine_version >= UNROUTED

    def ended(self, session: Session) -> None:
        """Log the last count of a session that published anything."""
        counts = session.publishes
        if counts.steps > counts.counted and self._counts:
            self._when_durable(lambda: self._log(session.actor, counts.of(session.session_id, _end_of)))

    def checkpoint(self, sessions: Iterable[Session]) -> None:
        """Log a count of each session that has published since its last one: this node alone writes the log."""
        if self._counts:
            begin(self._count(list(sessions)))

    async def _count(self, sessions: list[Session]) -> None:
        async for session in in_slices(sessions):
            counts = session.publishes
            if session.in_history and counts.steps > counts.counted:
                event = counts.of(session.session_id, _position_in)
                self._when_durable(lambda actor=session.actor, event=event: self._log(actor, event))  # type: ignore[misc]

    def _log(self, actor: Actor, event: SessionCounted) -> None:
        if self._counts:
            self._metadata.append(actor, event)
            self._end_turn()


def _end_of(partition: Partition) -> int:
    return partition.known_end


def _position_in(partition: Partition) -> int:
    return partition.append_position
