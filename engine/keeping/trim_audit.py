"""Audits the stretch of a partition that is to be trimmed, and computes the state at its end.

    audited = audit(PartitionReader(directory), snapshots, floor)    # audited.machine, audited.findings

It checks everything possible without Spark: each block and record, the hash chain, the absence of quarantined records,
the broker's claims (`Checkpointed`), and conservation: every message that entered a queue has left it by an event or is
there at the end, along with no other message.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rewindmq.engine.keeping.tiers import TieredPartition
from rewindmq.engine.log.contract import CorruptLog
from rewindmq.engine.log.embedded.reader import PartitionReader
from rewindmq.engine.log.embedded.segments import base_offset_of, segment_files
from rewindmq.engine.log.embedded.verify import follow_on, verify_segment
from rewindmq.projections.claims import Claims
from rewindmq.projections.machine.data.effects import Effect, Keep, QueueGone, Refuse, endings
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import PartitionLog, RecordGroup, beginning, decoder_for, drive, groups_of
from rewindmq.projections.rewind import At, state_at
from rewindmq.projections.store.quarantine import QuarantineReport
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.events import CheckpointAsked, Checkpointed, Event
from rewindmq.schemas.values import Actor

if TYPE_CHECKING:
    from rewindmq.engine.keeping.archive.reader import ArchivedPartition

MOST_FINDINGS = 20  # are listed one by one; the rest is counted


@dataclass(slots=True)
class Audited:
    """The state at the end of the stretch, and the faults of the stretch, in words."""

    machine: Machine
    findings: list[str] = field(default_factory=list)


def audit(
    log: "PartitionReader | TieredPartition | ArchivedPartition",
    snapshots: Snapshots | None,
    end: int,
    between: Callable[[], object] = lambda: None,
) -> Audited:
    """Audit the stretch from the start of the log up to offset `end`, the base offset of a segment.

    `between` is called between two segments, and between two groups of records. Records that only the archive has are
    proven as they are read. If the stretch is damaged, the state is taken from a snapshot after the damage. Raises
    CorruptLog if there is none, LogError, NewerHistory, NoAnswer."""
    local = log.local if isinstance(log, TieredPartition) else log
    findings = _damage(local.directory, end, between) if isinstance(local, PartitionReader) else []
    try:
        machine = _folded(log, end, findings, between)
    except CorruptLog as error:
        if str(error) not in findings:
            findings.append(str(error))
        machine = state_at(log, snapshots, At(offset=end))
    if len(findings) > MOST_FINDINGS:
        findings[MOST_FINDINGS:] = [f"and {len(findings) - MOST_FINDINGS} more findings"]
    return Audited(machine, findings)


def _damage(directory: Path, end: int, between: Callable[[], object]) -> list[str]:
    """Return the first place in the segments below `end` where a byte was changed."""
    files = [path for path in segment_files(directory) if base_offset_of(path) < end]
    try:
        for _ in follow_on(verify_segment(path, False) for path in files):
            between()
    except CorruptLog as error:
        return [str(error)]
    return []


def _folded(log: PartitionLog, end: int, findings: list[str], between: Callable[[], object]) -> Machine:
    """Return the state at `end`, folded event by event from the start of the log. Adds to `findings`."""
    machine, decoder, quarantined = beginning(log), decoder_for(log), QuarantineReport()
    held, claims = Held(machine), Claims()
    claims.begin(machine)

    def claimed(offset: int, _timestamp_ms: int, event: Checkpointed) -> None:
        wrong = claims.compare(machine, event)
        if wrong is not None:
            findings.append(f"offset {offset}: {wrong}")

    def after(offset: int, _timestamp_ms: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        quarantined.note(effects)
        held.see(effects)
        if type(event) is CheckpointAsked:
            claims.claim_requested(offset, machine)

    def groups() -> Iterator[RecordGroup]:
        for group in groups_of(log, machine.next_offset, end):
            between()
            yield group

    note = quarantined.note_undecodable
    drive(machine, groups(), decoder, end, before={Checkpointed: claimed}, after=after, undecodable=note)
    if quarantined.count:
        newest = quarantined.newest()[-1]
        findings.append(f"{quarantined.count} records are quarantined, the last one at offset {newest.offset}")
    findings.extend(held.differences(machine))
    return machine


class Held:
    """The messages in queues, counted only from effects."""

    def __init__(self, machine: Machine) -> None:
        self._queues = {queue_id: _ids(machine, queue_id) for queue_id in machine.by_id}

    def see(self, effects: list[Effect]) -> None:
        """Count the effects of an event."""
        for effect in effects:
            if isinstance(effect, Keep):
                self._queues.setdefault(effect.queue.queue_id, set()).update(effect.message_ids)
        for effect in effects:
            if isinstance(effect, Refuse):  # its body may be kept for a dead letter; it was never in the queue
                self._queues.get(effect.queue.queue_id, set()).discard(effect.message_id)
        for queue, message_id, _, _ in endings(effects):
            held = self._queues.get(queue.queue_id)
            if held is not None:
                held.discard(message_id)
        for effect in effects:
            if isinstance(effect, QueueGone):
                self._queues.pop(effect.queue.queue_id, None)

    def differences(self, machine: Machine) -> list[str]:
        """Return the differences between the machine's queues and the counted messages, one text per queue."""
        found = []
        for queue_id in sorted(self._queues.keys() | machine.by_id.keys()):
            counted = self._queues.get(queue_id, set())
            there = _ids(machine, queue_id) if queue_id in machine.by_id else set()
            if counted != there:
                gone, new = len(counted - there), len(there - counted)
                queue = machine.by_id.get(queue_id)
                name = f"queue {queue_id}" if queue is None else f"queue '{queue.name}' in vhost '{queue.vhost}'"
                found.append(f"{name}: {gone} messages are gone without an event, {new} exist that never arrived")
        return found


def _ids(machine: Machine, queue_id: int) -> set[int]:
    return {view.message_id for view in machine.by_id[queue_id].messages()}
