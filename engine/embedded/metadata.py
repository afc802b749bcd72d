"""The metadata log of a broker that is its only writer: an event is folded when it is appended.

An append position is the event's offset."""

from collections.abc import Callable
from functools import partial

from rewindmq.engine.log.contract import LogPartition
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.rules.versions import schema_of
from rewindmq.projections.store.metadata_snapshots import history_mark
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.events import MachineUpgraded, MetadataEvent
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.values import Actor


class SoleWriterMetadata(Metadata):
    """The metadata log that only this broker appends to."""

    def __init__(self, log: LogPartition, clock: Callable[[], int]) -> None:
        super().__init__(log, clock)
        self._log = log
        self._encoder = encoder_under(log.schema)
        self._held_above: int | None = None

    def fold(self, snapshots: Snapshots) -> int:
        end = super().fold(snapshots)
        if end > 0:  # otherwise it begins with this program's version
            self._write_under()
        return end

    def _write_under(self) -> None:
        """Write under the schema of the history's machine version."""
        schema = schema_of(self.topology.machine_version)
        if schema != self._log.schema:
            self._log.write_under(schema)
            self._encoder = encoder_under(schema)

    def history_mark(self) -> Callable[[], str]:
        return partial(history_mark, self._log, self.state.next_offset)

    @property
    def append_position(self) -> int:
        return self._log.next_offset

    @property
    def durable_position(self) -> int:
        durable, held = self._log.durable_offset, self._held_above
        return durable if held is None or held > durable else held

    def hold_above(self, offset: int | None) -> None:
        """Let clients wait for records from this offset on, as SoleWriterPartition does."""
        self._held_above = offset

    @property
    def durable_offset(self) -> int:
        return self._log.durable_offset

    def append(self, actor: Actor, event: MetadataEvent) -> None:
        self.append_now(actor, event)

    async def ask(self, actor: Actor, event: MetadataEvent) -> int:
        return self.append_now(actor, event)

    async def until_unbound(self, actor: Actor, queue: Queue) -> None:
        """Return at once."""

    def set_clock(self, first_ms: int, actor: Actor, event: ClockSet) -> None:
        """Continue the timestamps from another time; `first_ms` is the timestamp of the event itself."""
        if first_ms < self.clock_ms:
            self._log.begin_time_anew()
        self._append_at(first_ms, actor, event)

    def append_now(self, actor: Actor, event: MetadataEvent) -> int:
        """Log and fold an event; return its offset."""
        return self._append_at(max(self.clock_ms, self._clock()), actor, event)

    def _append_at(self, now: int, actor: Actor, event: MetadataEvent) -> int:
        offset = self._log.append(now, self._encoder.encode(self._encoder.prefix(now, actor), event))
        self._fold(offset, now, actor, event)
        if isinstance(event, MachineUpgraded):
            self._write_under()
        return offset
