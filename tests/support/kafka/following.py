"""Keeps the events that a log in Kafka hands over, for tests."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeVarTuple

from rewindmq.engine.log.kafka.log import KafkaLog
from rewindmq.engine.log.shared_contract import Arrived

SECONDS = 90
Given = TypeVarTuple("Given")


class Following:
    """Follows a log from the beginning (or from `offsets`) in the running loop."""

    def __init__(self, log: KafkaLog, offsets: Mapping[str, int] | None = None) -> None:
        self.log = log
        self.values: dict[str, list[bytes]] = defaultdict(list)
        self.offsets: dict[str, list[int]] = defaultdict(list)
        self.times: dict[str, list[int]] = defaultdict(list)
        self.delivered_at: dict[str, list[int]] = defaultdict(list)
        self.troubles: list[str | None] = []
        self.failures: list[Exception] = []
        self.owned: frozenset[str] = frozenset()
        self._happened = asyncio.Event()
        log.follow({log.metadata.name: 0, **{each.name: 0 for each in log.queues}, **(offsets or {})}, self)

    async def until(self, true: Callable[[*Given], bool], *given: *Given) -> None:
        async with asyncio.timeout(SECONDS):
            while not true(*given):
                await self._happened.wait()
                self._happened.clear()

    async def until_read(self, counts: Mapping[str, int]) -> None:
        await self.until(lambda: all(len(self.values[name]) >= count for name, count in counts.items()))

    def delivered(self, name: str, offsets: list[int]) -> None:
        self.delivered_at[name] += offsets
        self._happened.set()

    def arrived(self, batches: list[Arrived]) -> None:
        for batch in batches:
            assert len(batch.offsets) == len(batch.timestamps_ms) == len(batch.values) > 0
            self.values[batch.partition] += batch.values
            self.offsets[batch.partition] += batch.offsets
            self.times[batch.partition] += batch.timestamps_ms
        self._happened.set()

    def trouble(self, why: str | None) -> None:
        self.troubles.append(why)
        self._happened.set()

    def fail(self, error: Exception) -> None:
        self.failures.append(error)
        self._happened.set()

    def duties_changed(self, partitions: frozenset[str]) -> None:
        self.owned = partitions
        self._happened.set()
