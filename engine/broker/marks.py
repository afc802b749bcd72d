"""Marks: names that operators give to moments of the history."""

from collections.abc import Sequence

from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.reading import PartitionReading
from rewindmq.schemas.metadata_events import MarkDeleted, MarkSet
from rewindmq.schemas.values import Actor


class Marks:
    def __init__(self, metadata: Metadata, partitions: Sequence[PartitionReading]) -> None:
        self._metadata = metadata
        self._partitions = partitions

    async def positions(self) -> tuple[tuple[str, int], ...]:
        """This moment: each partition's name and the offset that its next event gets.

        A partition that is not folded here ends where the log said a moment before. LogError: the log does not say."""
        ends = {each.name: await each.end_in_log() for each in self._partitions if not each.current}
        return tuple(
            (each.name, each.machine.next_offset if each.current else ends.get(each.name, each.machine.next_offset))
            for each in self._partitions
        )

    async def set(self, actor: Actor, mark: MarkSet) -> None:
        """Set a mark. Everything below its positions has to be durable."""
        await self._metadata.ask(actor, mark)

    async def clear(self, actor: Actor, name: str) -> None:
        await self._metadata.ask(actor, MarkDeleted(name))
