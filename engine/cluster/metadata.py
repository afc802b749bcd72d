"""The metadata log that many nodes share: a node folds only the records that it reads back (own_records.py)."""

import asyncio
from collections.abc import Callable
from functools import partial

from rewindmq.engine.cluster.own_records import OwnRecords
from rewindmq.engine.log.shared_contract import Arrived, SharedPartition
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.rules.versions import schema_of
from rewindmq.projections.store.metadata_snapshots import mark_by
from rewindmq.schemas.codec import Encoder, UndecodableRecord
from rewindmq.schemas.events import Event, MetadataEvent, NodeLost
from rewindmq.schemas.metadata_events import NodeJoined
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.schemas.values import Actor


class ReadBackMetadata(Metadata):
    """The metadata log that many nodes share.

    It calls `nodes_changed` when a node joined or was lost."""

    def __init__(self, log: SharedPartition, clock: Callable[[], int], nodes_changed: Callable[[], None]) -> None:
        super().__init__(log, clock)
        self._nodes_changed = nodes_changed
        self._encoders: dict[str, Encoder] = {}  # by schema; one or two
        self._decoder = SharedDecoder()
        self._own_records = OwnRecords(log)

    def history_mark(self) -> Callable[[], str]:
        return partial(mark_by, self.state.last_record)

    @property
    def append_position(self) -> int:
        return self._own_records.append_position

    @property
    def durable_position(self) -> int:
        return self._own_records.durable_position

    def append(self, actor: Actor, event: MetadataEvent) -> None:
        self._own_records.send(b"", self.encoded(actor, event), actor, event)

    async def ask(self, actor: Actor, event: MetadataEvent) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answered(_position: int, offset: int, _effects: list[Effect]) -> None:
            if not answer.done():  # the caller may be gone
                answer.set_result(offset)

        self._own_records.send(b"", self.encoded(actor, event), actor, event, answered)
        return await answer

    async def until_unbound(self, actor: Actor, queue: Queue) -> None:
        # If this node owned the partition when the queue ended, it has removed the bindings. Otherwise the owner does
        # so some time later, or there is no owner.
        await self._own_records.folded()
        await self.unbind_queue(actor, queue)
        await self._own_records.folded()

    def encoded(self, actor: Actor, event: Event) -> bytes:
        """Return the event as a record, under the schema of the history's machine version."""
        schema = schema_of(self.topology.machine_version)
        encoder = self._encoders.get(schema)
        if encoder is None:
            encoder = self._encoders[schema] = encoder_under(schema)
        return encoder.encode(encoder.prefix(self._clock(), actor), event)

    def read_back(self, arrived: Arrived) -> None:
        """Fold the records that were read back from the log."""
        for index, value in enumerate(arrived.values):
            offset, timestamp_ms = arrived.offsets[index], arrived.timestamps_ms[index]
            self.state.last_record = value
            own = self._own_records.take(arrived.values, index)
            try:
                _, actor, event = self._decoder.decode(value)
            except UndecodableRecord as error:
                self.state.skip(offset, str(error))
                self._skipped(offset, str(error))
                continue
            self._fold(offset, timestamp_ms, actor, event, own is not None)
            if isinstance(event, NodeJoined | NodeLost):
                self._nodes_changed()
            if own is not None and (answered := own[2]) is not None:
                answered(self._own_records.durable_position - 1, offset, [])
        self._own_records.tell_waiters()
