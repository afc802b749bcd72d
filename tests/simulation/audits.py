"""Audits of a simulated history, with the conservation law counted by queue besides."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from rewindmq.engine.log.simulated.embedded import MemoryLog
from rewindmq.projections.history.outcomes import targets
from rewindmq.projections.machine.data.effects import DeadLetter, Duplicate, Effect, Quarantine, Refuse, endings
from rewindmq.projections.machine.data.reasons import DELAYED
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.state import NODE_LOST
from rewindmq.projections.replay import PartitionLog
from rewindmq.projections.rules.partition_hash import number_of
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Checkpointed, Event, Published
from rewindmq.schemas.values import Actor
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.dead_letter_join import SORTED_BY, LetterRows, check_arrivals
from rewindmq.spark_replay.audit.fold import AuditProduct
from rewindmq.spark_replay.audit.publishes import PublishTally, counts_in, publish_findings
from rewindmq.spark_replay.location.ranges import OffsetRange
from tests.simulation.clients import DEAD

Records = Iterator[tuple[int, int, Actor, Event | None]]  # None: it cannot be decoded


class Law:
    """By queue, whatever its incarnation. `checked`: at how many offsets, of how many queues each."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.asked: Counter[tuple[str, str]] = Counter()
        self.kept_out: Counter[tuple[str, str]] = Counter()
        self.entered: Counter[tuple[str, str]] = Counter()
        self.ends: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.checked = 0

    def event(self, offset: int, actor: Actor, event: Event, effects: list[Effect]) -> None:
        lost = any(isinstance(each, Quarantine) and each.reason.startswith(NODE_LOST) for each in effects)
        letters = [each for each in effects if isinstance(each, DeadLetter) and each.reason != DELAYED]
        dead = {(each.queue.queue_id, message_id) for each in letters for message_id in each.message_ids}
        for queue, message_id, reason, _ in endings(effects):
            died = (queue.queue_id, message_id) in dead
            self.ends[queue.vhost, queue.name]["dead-lettered" if died else reason] += 1
        out = [e.queue.queue_id for e in effects if isinstance(e, Refuse | Duplicate) and e.message_id == offset]
        if isinstance(event, Published) and not lost:
            for key in targets(actor, event):
                queue_there = self.machine.queue(*key)
                if queue_there is not None:
                    self.asked[key] += 1
                    (self.kept_out if queue_there.queue_id in out else self.entered)[key] += 1
        self.check(offset)

    def check(self, offset: int) -> None:
        for key, entered in self.entered.items():
            queue = self.machine.queue(*key)
            there = 0 if queue is None else queue.messages_ready + queue.messages_unacked + queue.messages_delayed
            ended = self.ends[key]
            assert entered == there + ended.total(), f"{key} at {offset}: {entered} came, {there} there, {ended}"
            assert self.asked[key] == entered + self.kept_out[key]
            self.checked += 1


def audited(partitions: list[tuple[str, Records]]) -> Counter[str]:
    """Audit the partitions and return how often each case occurred. Raises AssertionError for any finding."""
    met: Counter[str] = Counter()
    letters: list[Any] = []
    for name, records in partitions:
        machine, post = Machine(name), LetterRows(name, 1 << 62)
        product, law = AuditProduct(name, post), Law(machine)
        product.begin(machine)
        for offset, timestamp_ms, actor, event in records:
            if event is None:
                machine.skip(offset)
                continue
            if isinstance(event, Checkpointed):
                product.before(offset, timestamp_ms, event)
            effects: list[Effect] = []
            machine.apply(offset, timestamp_ms, actor, event, effects)
            product.event(offset, timestamp_ms, actor, event, effects)
            law.event(offset, actor, event, effects)
        letters += [SimpleNamespace(**dict(zip(columns.LETTERS.names, row, strict=True))) for row in post.rows]
        for _ in product.take(True):
            pass
        assert not any(product.failures.values()), product.failures
        met.update(sum(law.ends.values(), Counter()))
        met.update(checked=law.checked, refused=law.kept_out.total(), letters=post.count)
    letters.sort(key=lambda row: [getattr(row, name) for name in SORTED_BY])
    assert list(check_arrivals(letters, owed)) == []
    return met


def counted(metadata: PartitionLog, partitions: list[tuple[str, Records]]) -> Counter[str]:
    """Compare what the brokers said about their sessions' publishes with the log. Raises AssertionError."""
    counts, pieces, ranges = counts_in(metadata), {}, []
    for name, records in partitions:
        tally, end = PublishTally(counts.marks(number_of(name)), 0), 0
        for offset, _, actor, event in records:
            end = offset + 1
            if event is not None:
                tally.see(offset, actor, event)
        pieces[name] = tally.end(end)
        ranges.append(OffsetRange(name, 0, end))
    (finding,) = publish_findings(counts, metadata.name, pieces, ranges)
    assert finding.ok, finding
    numbers = [int(word) for word in finding.detail.split() if word.isdigit()]
    return Counter(dict(zip(("sessions counted", "publishes counted", "not counted"), numbers, strict=True)))


def owed(sent: Any, arrived: set[str]) -> list[str]:
    """One queue takes every letter of these exchanges."""
    return [DEAD] if sent.exchange in ("dlx", "later") and f"//{DEAD}" not in arrived else []


def of_memory(log: MemoryLog) -> list[tuple[str, Records]]:
    """Return the names and the records of a log's queue partitions."""
    decoder = Decoder()

    def records(partition: Any) -> Records:
        for block in partition.read():
            for at, record in enumerate(block.records):
                yield (block.first_offset + at, *decoder.decode(record))

    return [(partition.name, records(partition)) for partition in log.queues]
