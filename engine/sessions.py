"""A client connection as the broker sees it, and what it left in the partitions."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.partition import Partition
from schemas.events import Actor


@dataclass(slots=True)
class ChannelStatus:
    """What listings show of an open channel (its consumers and what they hold are in the machine)."""

    number: int
    confirm: bool = False
    prefetch: int = 0
    global_prefetch: int = 0


@dataclass(slots=True, eq=False)
class Session:
    """`session_id` is unique in the whole history: (the broker's epoch << 24) | count."""

    session_id: int
    user: str
    vhost: str
    peer: str
    actor: Actor
    client_properties: dict[str, object] = field(default_factory=dict)
    connected_at_ms: int = 0
    channels: dict[int, ChannelStatus] = field(default_factory=dict)  # open ones, by number; kept by the connection
    close: Callable[[str], None] | None = None  # set by the connection: close it, 320 CONNECTION_FORCED and this reason

    # kept by the broker: where this session's end must be told, because it has consumers, holders or queues there
    attached: dict[int, dict[Partition, list[int]]] = field(default_factory=dict)  # channel -> ... -> consumer ids
    holders: dict[tuple[int, int, int], int] = field(default_factory=dict)  # channel, partition, queue_id
    owns_queues_in: dict[Partition, None] = field(default_factory=dict)

    def note(self, channel: int, partition: Partition, consumer_id: int) -> None:
        self.attached.setdefault(channel, {}).setdefault(partition, []).append(consumer_id)

    def forget(self, partition: Partition, consumer_id: int) -> None:
        """The consumer was cancelled. What it holds is still there, so the partition stays concerned."""
        for attached in self.attached.values():
            if consumer_id in attached.get(partition, ()):
                attached[partition].remove(consumer_id)
