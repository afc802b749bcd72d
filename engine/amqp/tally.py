"""What the channels of one connection count, gathered in plain numbers and added to the broker's counters per read.

Names as RabbitMQ's Prometheus metrics; deliveries and acks are counted by the partitions.
"""


class Tally:
    def __init__(self, counters: dict[str, int]) -> None:
        self.counters = counters
        self.received = 0
        self.received_confirm = 0
        self.routed = 0  # counts queues
        self.unroutable_dropped = 0
        self.unroutable_returned = 0
        self.confirmed = 0

    def settle(self) -> None:
        """Move what gathered into the broker's counters."""
        counters = self.counters
        if self.received:
            counters["global_messages_received_total"] += self.received
            counters["global_messages_received_confirm_total"] += self.received_confirm
            counters["global_messages_routed_total"] += self.routed
            counters["global_messages_unroutable_dropped_total"] += self.unroutable_dropped
            counters["global_messages_unroutable_returned_total"] += self.unroutable_returned
            self.received = self.received_confirm = self.routed = 0
            self.unroutable_dropped = self.unroutable_returned = 0
        if self.confirmed:
            counters["global_messages_confirmed_total"] += self.confirmed
            self.confirmed = 0
