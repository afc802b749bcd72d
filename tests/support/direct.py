"""A broker on an embedded log, called without awaiting: there nothing that it is asked ever has to wait."""

import inspect
from typing import Any

from rewindmq.engine.broker.broker import Broker, Partition, Session
from rewindmq.engine.rewind.reader import ReadingConsumer
from rewindmq.engine.runtime.eager import at_once
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.values import Argument

Attached = tuple[Partition, Queue, int]


class Direct:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._broker, name)
        if inspect.iscoroutinefunction(found):
            return lambda *positional, **named: at_once(found(*positional, **named))
        return found

    def consume(
        self,
        session: Session,
        channel: int,
        consumer: ReadingConsumer,
        queue: str,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        shared: int,
        arguments: tuple[Argument, ...],
    ) -> Attached:
        made: list[Attached] = []
        limits = (no_ack, exclusive, prefetch, shared)
        at_once(
            self._broker.consume(
                session, channel, consumer, queue, tag, *limits, arguments, lambda *given: made.append(given)
            )
        )
        return made[0]
