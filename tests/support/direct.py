"""A broker on an embedded log, called without awaiting: its calls never have to wait there."""

import inspect
from typing import Any

from rewindmq.engine.broker.broker import AccessParts, Broker, HistoryParts
from rewindmq.engine.broker.consumers import Consumers
from rewindmq.engine.broker.exchanges import Exchanges
from rewindmq.engine.broker.marks import Marks
from rewindmq.engine.broker.parameters import Parameters
from rewindmq.engine.broker.policies import EffectivePolicies, Policies
from rewindmq.engine.broker.queues import Queues
from rewindmq.engine.broker.removals import Removals
from rewindmq.engine.broker.users import Users
from rewindmq.engine.broker.vhosts import Vhosts
from rewindmq.engine.erasure.erasures import Erasures
from rewindmq.engine.host.eager import at_once
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Subscription
from rewindmq.engine.rewind.reader import ReadingConsumer
from rewindmq.projections.machine.data.queue import Queue

Attached = tuple[Partition, Queue, int]

PARTS = (EffectivePolicies, Erasures, Exchanges, Marks, Parameters, Policies, Queues, Users, Vhosts, Removals)


class DirectPart:
    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if inspect.iscoroutinefunction(found):
            return lambda *positional, **named: at_once(found(*positional, **named))
        return found


class DirectConsumers(DirectPart):
    def consume(self, queue: str, subscription: Subscription, consumer: ReadingConsumer) -> Attached:
        attached: list[Attached] = []
        at_once(self._part.consume(queue, subscription, consumer, lambda *given: attached.append(given)))
        return attached[0]


class Direct:
    def __init__(self, broker: Broker | AccessParts | HistoryParts) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._broker, name)
        if isinstance(found, AccessParts | HistoryParts):
            return Direct(found)
        if isinstance(found, Consumers):
            return DirectConsumers(found)
        return DirectPart(found) if isinstance(found, PARTS) else found
