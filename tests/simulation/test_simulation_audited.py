"""Simulated histories pass the audit, and keep the law of conservation at every offset (B-18): for each queue

    asked for = entered + refused + seen before
    entered   = ready + unacked + waiting + acked + delivered + expired + dropped + rejected + dead-lettered + purged
                + deleted + ...

by plain counting over events and outcomes; the machine is asked only for its gauges. A queue and its ends are counted
together, so nothing is lost with it. Dead letters are joined across partitions."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from rewindmq.engine.log.simulated.embedded import MemoryLog
from rewindmq.engine.log.simulated.shared import HistoryPartition
from rewindmq.projections.history.outcomes import targets
from rewindmq.projections.machine.data.effects import DeadLetter, Duplicate, Effect, Quarantine, Refuse, endings
from rewindmq.projections.machine.data.reasons import DELAYED
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.machine.state import NODE_LOST
from rewindmq.schemas.codec import Decoder, UndecodableRecord
from rewindmq.schemas.events import Checkpointed, Event, Published
from rewindmq.schemas.single_object import FramedDecoder
from rewindmq.schemas.values import BROKER, Actor
from rewindmq.spark_replay import columns
from rewindmq.spark_replay.audit.dead_letter_join import SORTED_BY, LetterRows, check_arrivals
from rewindmq.spark_replay.audit.fold import AuditProduct
from tests.simulation import history, nodes_history
from tests.simulation.clients import DEAD

Records = Iterator[tuple[int, int, Actor, Event | None]]  # None: it cannot be decoded
ENDS = ("acked", "delivered", "expired", "maxlen", "rejected", "dead-lettered", "purged", "deleted")
EMBEDDED = range(30_000, 30_012)
NODES = range(30_000, 30_004)


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


def owed(sent: Any, arrived: set[str]) -> list[str]:
    """One queue takes every letter of these exchanges."""
    return [DEAD] if sent.exchange in ("dlx", "later") and f"//{DEAD}" not in arrived else []


def of_memory(log: MemoryLog) -> list[tuple[str, Records]]:
    decoder = Decoder()

    def records(partition: Any) -> Records:
        for block in partition.read():
            for at, record in enumerate(block.records):
                yield (block.first_offset + at, *decoder.decode(record))

    return [(partition.name, records(partition)) for partition in log.queues]


def of_shared(partitions: list[HistoryPartition]) -> list[tuple[str, Records]]:
    decoder = FramedDecoder()

    def records(partition: HistoryPartition) -> Records:
        for offset, at_ms, value in zip(partition.offsets, partition.timestamps_ms, partition.values, strict=True):
            try:
                yield (offset, at_ms, *decoder.decode(value)[1:])
            except UndecodableRecord:
                yield offset, at_ms, BROKER, None

    return [(partition.name, records(partition)) for partition in partitions]


def test_b18_simulated_histories_balance_at_every_offset() -> None:
    met: Counter[str] = Counter()
    for seed in EMBEDDED:
        steps = history.history_of(seed, history.STEPS)
        history.run(seed, steps, validate=False, look=lambda log: met.update(audited(of_memory(log))))
    assert [what for what in (*ENDS, "refused", "letters") if not met[what]] == []
    assert met["checked"] > 4_000


def test_b18_histories_of_several_nodes_balance_at_every_offset() -> None:
    met: Counter[str] = Counter()
    for seed in NODES:
        steps = nodes_history.history_of(seed, nodes_history.STEPS)
        nodes_history.run(seed, steps, look=lambda partitions: met.update(audited(of_shared(partitions))))
    assert [what for what in ("acked", "delivered", "dead-lettered", "deleted", "checked") if not met[what]] == []
