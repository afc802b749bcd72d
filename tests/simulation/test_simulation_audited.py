"""Simulated histories pass the audit, and keep the law of conservation at every offset (B-18): for each queue

    asked for = entered + refused + seen before
    entered   = ready + unacked + waiting + acked + delivered + expired + dropped + rejected + dead-lettered + purged
                + deleted + ...

by plain counting over events and outcomes; the machine is asked only for its gauges. A queue and its ends are counted
together, so nothing is lost with it. Dead letters are joined across partitions."""

from collections import Counter
from typing import Any

from rewindmq.engine.log.simulated.embedded import MemoryLog
from rewindmq.engine.log.simulated.shared import SimulatedPartition
from rewindmq.schemas.codec import UndecodableRecord
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import BROKER
from tests.simulation import history, nodes_history
from tests.simulation.audits import Records, audited, counted, of_memory

ENDS = ("acked", "delivered", "expired", "maxlen", "rejected", "dead-lettered", "purged", "deleted")
EMBEDDED = range(30_000, 30_012)
NODES = range(30_000, 30_004)


def of_shared(partitions: list[SimulatedPartition]) -> list[tuple[str, Records]]:
    decoder = SharedDecoder()

    def records(partition: SimulatedPartition) -> Records:
        for offset, at_ms, value in zip(partition.offsets, partition.timestamps_ms, partition.values, strict=True):
            try:
                yield (offset, at_ms, *decoder.decode(value)[1:])
            except UndecodableRecord:
                yield offset, at_ms, BROKER, None

    return [(partition.name, records(partition)) for partition in partitions]


def test_b18_simulated_histories_balance_at_every_offset() -> None:
    met: Counter[str] = Counter()

    def look(log: MemoryLog) -> None:
        met.update(audited(of_memory(log)))
        met.update(counted(log.metadata, of_memory(log)))

    for seed in EMBEDDED:
        history.run(seed, history.history_of(seed, history.STEPS), validate=False, look=look)
    assert [what for what in (*ENDS, "refused", "letters") if not met[what]] == []
    assert met["checked"] > 4_000
    assert min(met["publishes counted"], met["not counted"]) > 100


def test_b18_histories_of_several_nodes_balance_at_every_offset() -> None:
    met: Counter[str] = Counter()

    def look(shared: Any) -> None:
        met.update(audited(of_shared(shared.queues)))
        met.update(counted(shared.metadata, of_shared(shared.queues)))

    for seed in NODES:
        nodes_history.run(seed, nodes_history.history_of(seed, nodes_history.STEPS), look=look)
    wanted = ("acked", "delivered", "dead-lettered", "deleted", "checked", "publishes counted", "not counted")
    assert [what for what in wanted if not met[what]] == []
