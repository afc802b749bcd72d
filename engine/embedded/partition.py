"""A queue partition of the embedded log. Only this broker appends, so it knows an event's offset and folds it at once.

    append(event) -> log (in memory) -> machine           on_durable() once the group commit has landed

An append position is the event's offset. The partition's time is the broker's (partition/log_clock.py), in ms, but
never behind the machine's time: history does not run backwards, unless an administrator sets the clock (`set_clock`).
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from rewindmq.engine.log.contract import BelowStart, LogPartition
from rewindmq.engine.partition.partition import Confirms, Partition
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.rules.versions import schema_of
from rewindmq.projections.store.store import Projector
from rewindmq.schemas.clock_events import ClockSet
from rewindmq.schemas.events import Checkpointed, Event, MachineUpgraded, Published
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.values import BROKER, Actor


class SoleWriterPartition(Partition):
    """A queue partition that only this broker appends to."""

    def __init__(
        self,
        index: int,
        log: LogPartition,
        machine: Machine,
        projector: Projector,
        clock: Callable[[], int],
    ) -> None:
        schema = schema_of(machine.machine_version)
        super().__init__(index, log, machine, projector, encoder_under(schema), clock)
        log.write_under(schema)
        self.log = log
        self._held_above: int | None = None
        # publishes of this turn whose confirms need not wait for the disk
        self._folded: list[tuple[int, Confirms, int]] = []

    @property
    def durable_position(self) -> int:
        durable, held = self.log.durable_offset, self._held_above
        return durable if held is None or held > durable else held

    def hold_above(self, offset: int | None) -> None:
        """Let clients wait for records from this offset on, even if synced; None: no further wait.

        Followers have acknowledged all earlier ones (engine/broker/followers.py)."""
        self._held_above = offset

    @property
    def next_offset(self) -> int:
        return self.log.next_offset

    @property
    def durable_offset(self) -> int:
        return self.log.durable_offset

    def now_ms(self) -> int:
        now = self._clock()
        if now > self._now_ms:
            self._now_ms = now
        return self._now_ms + self.machine.ahead_ms

    def set_clock(self, first_ms: int, actor: Actor, event: ClockSet) -> None:
        """Continue the timestamps from another time; `first_ms` is the timestamp of the event itself."""
        if first_ms < self._now_ms:
            self.log.begin_time_anew()
        self._now_ms = first_ms
        self._renew_prefix(first_ms, actor)
        offset = self.log.append(first_ms, self.encoder.encode(self._prefix, event))
        self.machine.apply(offset, first_ms, actor, event, self.effects)

    def upgrade(self, version: int) -> None:
        """Let the partition follow this machine version from here on, and write under its schema."""
        if self.machine.machine_version >= version:
            return
        if self.next_offset > 0:  # otherwise all of it is under the newer schema, unknown to older programs
            self.append(BROKER, MachineUpgraded(version))
        self._write_under(schema_of(version))
        if self.next_offset == 0:
            self.append(BROKER, MachineUpgraded(version))

    def _write_under(self, schema: str) -> None:
        self.log.write_under(schema)
        self.encoder = encoder_under(schema)
        self._prefix_ms = -1

    def append(self, actor: Actor, event: Event) -> int:
        now = self._clock()
        if now > self._now_ms:
            self._now_ms = now
        else:
            now = self._now_ms
        if now != self._prefix_ms or actor is not self._prefix_actor:
            self._renew_prefix(now, actor)
        offset = self.log.append(now, self.encoder.encode(self._prefix, event))
        if self.tap is None:
            self.machine.apply(offset, now, actor, event, self.effects)
        else:
            before = len(self.effects)
            self.machine.apply(offset, now, actor, event, self.effects)
            self.tap.folded(self, offset, now, actor, event, self.effects, before)
        return offset

    def publish(self, actor: Actor, message: Published) -> int:
        now = self._clock()
        if now > self._now_ms:
            self._now_ms = now
        else:
            now = self._now_ms
        if now != self._prefix_ms or actor is not self._prefix_actor:
            self._renew_prefix(now, actor)
        offset = self.log.append(now, self.encoder.encode(self._prefix, message))
        self.fresh[offset] = message
        if self.tap is None:
            self.machine.apply(offset, now, actor, message, self.effects)
        else:
            before = len(self.effects)
            self.machine.apply(offset, now, actor, message, self.effects)
            self.tap.folded(self, offset, now, actor, message, self.effects, before)
        return offset

    @property
    def takes_runs(self) -> bool:
        return self.tap is None

    def publish_run(self, actor: Actor, messages: Sequence[Published]) -> int:
        now = self._clock()
        if now > self._now_ms:
            self._now_ms = now
        else:
            now = self._now_ms
        if now != self._prefix_ms or actor is not self._prefix_actor:
            self._renew_prefix(now, actor)
        first = self.log.append_all(now, self.encoder.encode_run(self._prefix, messages))
        self._apply_run(first, now, actor, messages)
        return first + len(messages) - 1

    async def ask(self, actor: Actor, event: Event, folded: Callable[[], None] | None = None) -> list[Effect]:
        before = len(self.effects)
        offset = self.append(actor, event)
        if isinstance(event, Published):
            self.fresh[offset] = event
        effects = self.effects[before:]
        if folded is not None:
            folded()
        return effects

    def _record(self, offset: int) -> bytes | None:
        record = None
        if offset >= self.log.start_offset:
            with suppress(BelowStart):
                record = super()._record(offset)
        return self.log.kept_record(offset) if record is None else record  # it may have been cut off in the meantime

    def await_folded(self, position: int, confirms: Confirms, sequence: int) -> None:
        self._folded.append((position, confirms, sequence))

    def carry_out(self) -> None:
        super().carry_out()
        if self._folded:
            folded, self._folded = self._folded, []
            for offset, confirms, sequence in folded:
                confirms.confirm(sequence, offset in self.refused)

    def checkpoint(self, final: bool = False) -> None:
        """Append this broker's claim, the digest of the state after all events so far.

        `final`: it is the broker's last word, and no event before it is lost."""
        if self.machine.next_offset > 0:
            self.append(BROKER, Checkpointed(self.machine.next_offset - 1, self.machine.digest(), final=final))
