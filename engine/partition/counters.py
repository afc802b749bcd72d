"""Counters since the broker's start, for /metrics and for the message_stats of the management API.

- Their names are those of RabbitMQ's Prometheus metrics without `rabbitmq_`. Ours begin with `rewindmq_`.
- A channel counts publishes in its own `Tally`, in plain numbers. When it closes, its numbers move to the broker's.
  `counts` adds both, so that a publish changes only the numbers of its channel.
- Sizes of messages come in runs: a run of equal sizes is counted at its end.
- The partition counts deliveries, in runs for one queue (`Served`).
- A dead letter is counted by the type of its queue and by its strategy, as RabbitMQ labels them; `disabled` is the
  strategy of a queue without a dead-letter exchange.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, Literal

from rewindmq.projections.machine.data.reasons import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED

FIREHOSE_COPIES_DROPPED: Final = "rewindmq_firehose_copies_dropped_total"
EVENTS_PUBLISHED: Final = "rewindmq_events_published_total"
EVENTS_DROPPED: Final = "rewindmq_events_dropped_total"
LOGINS_BRAKED: Final = "rewindmq_logins_braked_total"
LOGINS_REFUSED: Final = "rewindmq_logins_refused_total"
COUNTERS: Final = (
    "connections_opened_total",
    "connections_closed_total",
    "channels_opened_total",
    "channels_closed_total",
    "queues_declared_total",
    "queues_created_total",
    "queues_deleted_total",
    FIREHOSE_COPIES_DROPPED,
    EVENTS_PUBLISHED,
    EVENTS_DROPPED,
    LOGINS_BRAKED,
    LOGINS_REFUSED,
    "global_messages_received_total",
    "global_messages_received_confirm_total",
    "global_messages_confirmed_total",
    "global_messages_routed_total",
    "global_messages_unroutable_dropped_total",
    "global_messages_unroutable_returned_total",
    "global_messages_delivered_total",
    "global_messages_delivered_consume_auto_ack_total",
    "global_messages_delivered_consume_manual_ack_total",
    "global_messages_delivered_get_auto_ack_total",
    "global_messages_delivered_get_manual_ack_total",
    "global_messages_get_empty_total",
    "global_messages_redelivered_total",
    "global_messages_acknowledged_total",
)

# RabbitMQ's bounds (rabbit_msg_size_metrics.erl), in bytes; one more counter is for sizes above the last.
SIZE_BOUNDS: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
SIZES: Final = tuple(f"message_sizes_up_to_{bound}" for bound in (*SIZE_BOUNDS, "infinity"))
SIZES_SUM: Final = "message_sizes_sum"

DEATHS: Final = frozenset((EXPIRED, REJECTED, MAXLEN, DELIVERY_LIMIT))
Strategy = Literal["at_most_once", "at_least_once", "disabled"]
AT_MOST_ONCE: Final = "at_most_once"
AT_LEAST_ONCE: Final = "at_least_once"
DISABLED: Final = "disabled"


def dead_lettered(what: str, queue_type: str, strategy: Strategy) -> str:
    """Return the name of a counter of dead letters.

    `what`: the reason, or `confirmed`."""
    labels = f'queue_type="rabbit_{queue_type}_queue",dead_letter_strategy="{strategy}"'
    return f"global_messages_dead_lettered_{what}_total{{{labels}}}"


def all_counters() -> dict[str, int]:
    """Return all counters at 0, with the labels that RabbitMQ has."""
    labels: tuple[tuple[str, tuple[Strategy, ...], tuple[str, ...]], ...] = (
        ("classic", (AT_MOST_ONCE, DISABLED), (EXPIRED, MAXLEN, REJECTED)),
        ("quorum", (AT_MOST_ONCE, DISABLED), (EXPIRED, MAXLEN, REJECTED, DELIVERY_LIMIT)),
        ("quorum", (AT_LEAST_ONCE,), ("confirmed", EXPIRED, REJECTED, DELIVERY_LIMIT)),
    )
    deaths = [
        dead_lettered(reason, queue_type, strategy)
        for queue_type, strategies, reasons in labels
        for reason in reasons
        for strategy in strategies
    ]
    return dict.fromkeys((*COUNTERS, *deaths, *SIZES, SIZES_SUM), 0)


class Tally:
    """Counts the publishes of one channel since it was opened."""

    def __init__(self) -> None:
        self.received = 0
        self.received_confirm = 0
        self.routed = 0  # counts queues
        self.unroutable_dropped = 0
        self.unroutable_returned = 0
        self.confirmed = 0
        self.refused = 0  # publishes that basic.nack answered
        self.size = -1  # of each message in this run
        self.run_began = 0  # `received` when the run began
        self.sizes = [0] * len(SIZES)
        self.bytes = 0

    @property
    def unconfirmed(self) -> int:
        """The number of publishes that still wait for their confirm."""
        return self.received_confirm - self.confirmed - self.refused

    def another_size(self, size: int) -> None:
        """End the run: the next message has this size. Call it before the message counts as received."""
        run = self.received - self.run_began
        if run:
            self.sizes[bisect_left(SIZE_BOUNDS, self.size)] += run
            self.bytes += run * self.size
        self.size = size
        self.run_began = self.received

    def named(self) -> Iterable[tuple[str, int]]:
        """Yield the counters under the broker's names."""
        self.another_size(self.size)
        yield "global_messages_received_total", self.received
        yield "global_messages_received_confirm_total", self.received_confirm
        yield "global_messages_routed_total", self.routed
        yield "global_messages_unroutable_dropped_total", self.unroutable_dropped
        yield "global_messages_unroutable_returned_total", self.unroutable_returned
        yield "global_messages_confirmed_total", self.confirmed
        yield from zip(SIZES, self.sizes, strict=True)
        yield SIZES_SUM, self.bytes

    def merge_into(self, counters: dict[str, int]) -> None:
        """Move the closed channel's numbers to the broker's counters."""
        for name, value in self.named():
            if value:
                counters[name] += value
        self.__init__()  # type: ignore[misc]


class Served:
    """Counts the deliveries of one queue since the broker's start, to consumers of all nodes.

    The waits are samples of this node's deliveries: their number, and their sum in ms (waits.py)."""

    __slots__ = (
        *("deliver", "deliver_no_ack", "get", "get_empty", "get_no_ack", "redeliver"),
        *("ack_wait_ms", "ack_waits", "delivery_wait_ms", "delivery_waits"),
    )

    def __init__(self) -> None:
        self.deliver = 0
        self.deliver_no_ack = 0
        self.get = 0
        self.get_no_ack = 0
        self.get_empty = 0
        self.redeliver = 0
        self.delivery_waits = self.delivery_wait_ms = self.ack_waits = self.ack_wait_ms = 0
