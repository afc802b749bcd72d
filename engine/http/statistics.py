"""message_stats and the rates beside counts (`messages_details`), with RabbitMQ's names.

- Counts are exact, and begin with the broker's start, as RabbitMQ's do. A queue's `publish` and `ack` are the
  machine's, which began with the queue: their values at the broker's start are subtracted.
- A rate is the difference of two samples. Each read of a count takes a sample (at most one a second), so a count costs
  nothing while it is not read. The node's own counts are sampled every few seconds, so a first read finds a rate, too.
- Counts of a queue are the same at every node that shares the log. Counts of a channel or a node are the node's own.
- Of a queue that this node does not fold, the counts of deliveries began with the owner's start, and a rate is the
  difference of the last two counters that the owner has published.

Not counted, so not shown: messages of each exchange, and of each pair of channel and queue.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from rewindmq.engine.partition.queue_counters import QueueCounters
from rewindmq.engine.partition.sessions import counts

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.partition.queue_counters import Listed
    from rewindmq.engine.partition.reading import PartitionReading
    from rewindmq.engine.partition.sessions import ChannelStatus

Item = dict[str, object]
Numbers = dict[str, int]

WINDOW_SECONDS = 5.0  # RabbitMQ's collect_statistics_interval: a rate covers at least so long, where there are samples
APART_SECONDS = 1.0  # samples are not nearer to each other
FORGET_SECONDS = 120.0  # samples that were not read for so long are forgotten

# message_stats of the overview <- the broker's counters
OVERVIEW = {
    "publish": "received",
    "confirm": "confirmed",
    "return_unroutable": "unroutable_returned",
    "drop_unroutable": "unroutable_dropped",
    "ack": "acknowledged",
    "deliver_get": "delivered",
    "deliver": "delivered_consume_manual_ack",
    "deliver_no_ack": "delivered_consume_auto_ack",
    "get": "delivered_get_manual_ack",
    "get_no_ack": "delivered_get_auto_ack",
    "get_empty": "get_empty",
    "redeliver": "redelivered",
}
DEPTH = ("messages", "messages_ready", "messages_unacknowledged")
DELIVERIES = ("ack", "deliver_get", "deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver")
AT_ONCE = 512  # queues that are counted before other work has its turn
CHURN = {
    "connection_created": "connections_opened_total",
    "connection_closed": "connections_closed_total",
    "channel_created": "channels_opened_total",
    "channel_closed": "channels_closed_total",
    "queue_declared": "queues_declared_total",
    "queue_created": "queues_created_total",
    "queue_deleted": "queues_deleted_total",
}


def depth_of(queues: "Iterable[Listed]") -> Numbers:
    """Return the number of messages in these queues.

    Delayed messages are neither ready nor unacknowledged. Those in a consumer's lookahead are ready."""
    ready = unacked = waiting = ahead = 0
    for queue in queues:
        ready += queue.messages_ready
        unacked += queue.messages_unacked
        ahead += queue.in_lookahead()[0]
        waiting += queue.messages_delayed
    return {
        "messages": ready + unacked + waiting,
        "messages_ready": ready + ahead,
        "messages_unacknowledged": unacked - ahead,
    }


class Rates:
    """Samples of numbers, by key: a queue, a channel, the node ... with the kind of its numbers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.samples: dict[object, deque[tuple[float, Numbers]]] = {}
        self.pruned_at = clock()

    def note(self, key: object, numbers: Numbers) -> tuple[float, Numbers] | None:
        """Add a sample, and return an earlier one to compare with: (seconds ago, numbers).

        It is the latest one that is older than the window, or the oldest. None if no sample is old enough."""
        now = self.clock()
        self.prune(now)
        kept = self.samples.setdefault(key, deque())
        if not kept or now - kept[-1][0] >= APART_SECONDS:
            kept.append((now, dict(numbers)))
        while len(kept) > 1 and now - kept[1][0] >= WINDOW_SECONDS:
            kept.popleft()
        began, before = kept[0]
        return (now - began, before) if now - began >= APART_SECONDS else None

    def shown(self, key: object, numbers: Numbers) -> Item:
        """Return each number, and its rate in `..._details`."""
        seconds, before = self.note(key, numbers) or (1.0, numbers)
        return with_rates(numbers, before, seconds)

    def prune(self, now: float) -> None:
        if now - self.pruned_at > FORGET_SECONDS:
            self.pruned_at = now
            self.samples = {key: kept for key, kept in self.samples.items() if now - kept[-1][0] <= FORGET_SECONDS}


def with_rates(numbers: Numbers, before: Numbers, seconds: float) -> Item:
    """Return each number, and its rate in `..._details`. `before`: the numbers `seconds` ago."""
    item: Item = {}
    for name, value in numbers.items():
        item[name] = value
        item[f"{name}_details"] = {"rate": round((value - before.get(name, 0)) / seconds, 3)}
    return item


class Statistics:
    """The statistics of one broker. They are made in its loop, when its HTTP API begins."""

    def __init__(self, broker: "Broker") -> None:
        self.rates = Rates()
        self.broker = ref(broker)
        self.sample()
        # The counts of the queues that there were, by partition and queue id: no queue comes to have the id of another.
        self.began: dict[tuple[int, int], tuple[int, int]] = {}
        for partition in broker.partitions:
            for queue in partition.machine.queues():
                self.began[partition.index, queue.queue_id] = (published(queue), queue.acked)

    # -- numbers ----------------------------------------------------------------------------------------------------
    def of_queue(self, partition: "PartitionReading", queue: "Listed") -> Numbers:
        return self.of_queues(((partition, queue),))

    def of_queues(self, pairs: "Iterable[tuple[PartitionReading, Listed]]") -> Numbers:
        """Return the message_stats of some queues together."""
        publish = ack = deliver = no_ack = get = get_no_ack = get_empty = redeliver = 0
        for partition, queue in pairs:
            publishes, acks = self.began.get((partition.index, queue.queue_id), (0, 0))
            publish += max(0, published(queue) - publishes)  # counters of an owner may be older than this node's start
            ack += max(0, queue.acked - acks)
            served = queue if isinstance(queue, QueueCounters) else partition.served.get(queue)
            if served is not None:
                deliver += served.deliver
                no_ack += served.deliver_no_ack
                get += served.get
                get_no_ack += served.get_no_ack
                get_empty += served.get_empty
                redeliver += served.redeliver
        return {
            "publish": publish,
            "ack": ack,
            "deliver_get": deliver + no_ack + get + get_no_ack,
            "deliver": deliver,
            "deliver_no_ack": no_ack,
            "get": get,
            "get_no_ack": get_no_ack,
            "get_empty": get_empty,
            "redeliver": redeliver,
        }

    def never_less(self, pairs: "Iterable[tuple[PartitionReading, Listed]]") -> Numbers:
        """Return the message_stats of some queues together, as counters that never go back, for metrics.

        A queue that is not folded here has the deliveries of when it was. They go on when it is folded again: the fold
        counts what came meanwhile. The owner's would begin elsewhere."""
        folded: list[tuple[PartitionReading, Listed]] = []
        found: list[Numbers] = []
        for partition, queue in pairs:
            if not isinstance(queue, QueueCounters):
                folded.append((partition, queue))
                continue
            stood = partition.machine.by_id.get(queue.queue_id)
            before = self.of_queues(() if stood is None else ((partition, stood),))
            now = self.of_queue(partition, queue)
            found.append(before | {name: max(before[name], now[name]) for name in ("publish", "ack")})
        return summed((self.of_queues(folded), *found))

    def sample(self) -> None:
        """Samples the counts of the whole node every few seconds, as long as the loop runs."""
        broker = self.broker()
        if broker is not None:
            messages, churn = of_node(broker)
            self.rates.note(("node", "message_stats"), messages)
            self.rates.note(("node", "churn"), churn)
            asyncio.get_running_loop().call_later(WINDOW_SECONDS, self.sample)

    # -- as shown -----------------------------------------------------------------------------------------------------
    def queue_shown(self, partition: "PartitionReading", queue: "Listed") -> Item:
        """Return the depth and the message_stats of a queue, with rates."""
        depth, served = depth_of([queue]), self.of_queue(partition, queue)
        if not isinstance(queue, QueueCounters):
            key = partition.index, queue.queue_id
            return self.rates.shown((key, "depth"), depth) | self.message_stats(key, served)
        before, seconds = (queue, 1.0) if queue.before is None else (queue.before, queue.covers_ms / 1_000)
        item = with_rates(depth, depth_of([before]), seconds)
        if any(served.values()):
            item["message_stats"] = with_rates(served, self.of_queue(partition, before), seconds)
        return item

    def message_stats(self, key: object, numbers: Numbers) -> Item:
        """{"message_stats": ...}; nothing before the first count, as in RabbitMQ."""
        if not any(numbers.values()):
            return {}
        return {"message_stats": self.rates.shown((key, "message_stats"), numbers)}


def published(queue: "Listed") -> int:
    """Return the number of publishes that the queue took or refused."""
    return queue.published + queue.refused


def of_channel(channel: "ChannelStatus") -> Numbers:
    """Return the counts of a channel."""
    tally, settlement = channel.tally, channel.settlement
    fetched = settlement.fetched + settlement.fetched_no_ack
    return {
        "publish": tally.received,
        "confirm": tally.confirmed,
        "return_unroutable": tally.unroutable_returned,
        "drop_unroutable": tally.unroutable_dropped,
        "ack": settlement.acked,
        "deliver_get": settlement.last_tag,
        "deliver": settlement.last_tag - fetched - settlement.delivered_no_ack,
        "deliver_no_ack": settlement.delivered_no_ack,
        "get": settlement.fetched,
        "get_no_ack": settlement.fetched_no_ack,
        "get_empty": settlement.fetched_empty,
        "redeliver": settlement.redelivered,
    }


def of_node(broker: "Broker") -> tuple[Numbers, Numbers]:
    """Return the fields message_stats and churn_rates of the node."""
    now = counts(broker.counters, broker.sessions.by_id.values())
    return (
        {name: now[f"global_messages_{counter}_total"] for name, counter in OVERVIEW.items()},
        {name: now[counter] for name, counter in CHURN.items()},
    )


def summed(all_numbers: Iterable[Numbers]) -> Numbers:
    """Return the sums of counts."""
    total: Numbers = {}
    for numbers in all_numbers:
        for name, value in numbers.items():
            total[name] = total.get(name, 0) + value
    return total


_statistics: WeakKeyDictionary["Broker", Statistics] = WeakKeyDictionary()


def statistics(broker: "Broker") -> Statistics:
    """Return the statistics of a broker, which exist once."""
    found = _statistics.get(broker)
    if found is None:
        found = _statistics[broker] = Statistics(broker)
    return found
