"""A broker on an embedded log, called without awaiting: there nothing that it is asked ever has to wait."""

import inspect
from typing import Any

from rewindmq.engine.broker.broker import Broker, Partition
from rewindmq.engine.runtime.eager import at_once
from rewindmq.projections.machine.data.queue import Queue


class Direct:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._broker, name)
        if inspect.iscoroutinefunction(found):
            return lambda *positional, **named: at_once(found(*positional, **named))
        return found

    def consume(self, *asked: Any) -> tuple[Partition, Queue, int]:
        attached: list[tuple[Partition, Queue, int]] = []
        at_once(self._broker.consume(*asked, lambda *given: attached.append(given)))
        return attached[0]
