"""A client's connection as the broker sees it, and its consumers and queues in the partitions."""

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from rewindmq.engine.identity.grants import Grant
from rewindmq.engine.runtime.counters import Tally
from rewindmq.engine.runtime.partition import Partition
from rewindmq.engine.tls import TlsPeer
from rewindmq.schemas.values import Actor

if TYPE_CHECKING:
    from rewindmq.engine.runtime.subscription import Attachment


class Deliveries(Protocol):
    """The numbers of a channel's deliveries for listings (engine/amqp/settlement.py).

    `last_tag` is the number of deliveries so far."""

    last_tag: int
    delivered_no_ack: int
    redelivered: int
    fetched: int
    fetched_no_ack: int
    fetched_empty: int
    acked: int

    @property
    def unacked(self) -> Sized: ...


@dataclass(slots=True)
class ChannelStatus:
    """The data of an open channel for listings. The machine has its consumers and their messages."""

    number: int
    tally: Tally
    settlement: Deliveries
    confirm: bool = False
    prefetch: int = 0
    global_prefetch: int = 0
    transactional: bool = False
    messages_uncommitted: int = 0
    acks_uncommitted: int = 0


@dataclass(slots=True)
class Link:
    """A client's connection: the negotiated values, and the traffic so far (octets, socket reads and writes)."""

    tls: TlsPeer | None = None
    auth_mechanism: str = ""
    channel_max: int = 0
    frame_max: int = 0
    heartbeat_seconds: int = 0
    blocked: bool = False  # an alarm holds its publishes back, or a message of it waits for room on the disk
    in_flow: bool = False  # it publishes, and waits for its turn (engine/runtime/flow_control.py)
    received_octets: int = 0
    received_count: int = 0
    sent_octets: int = 0
    sent_count: int = 0

    @property
    def state(self) -> Literal["running", "flow", "blocked"]:
        """The connection's state in the words of RabbitMQ's listings."""
        return "blocked" if self.blocked else "flow" if self.in_flow else "running"


@dataclass(slots=True, eq=False)
class Session:
    """A connection or an HTTP user, as the log knows it.

    `session_id` is unique in the whole history: (the broker's epoch << 24) | count."""

    session_id: int
    user: str
    vhost: str
    peer: str
    actor: Actor
    client_properties: dict[str, object] = field(default_factory=dict)
    connected_at_ms: int = 0
    channels: dict[int, ChannelStatus] = field(default_factory=dict)  # open ones, by number; kept by the connection
    link: Link | None = None  # None: the session has no connection of its own, as that of an HTTP request
    close: Callable[[str], None] | None = None  # closes the connection: 320 CONNECTION_FORCED, and this reason
    channel: int = 0  # of an HTTP call: its channel in the session of `actor` (engine/broker/callers.py); 0: it is none
    grant: Grant | None = None  # of a token; None: the user's permissions are its rights
    in_history: bool = False  # its SessionOpened is; its end belongs there, too (engine/broker/access_log.py)

    # The broker keeps these: the partitions with consumers, holders or queues of this session must learn of its end.
    attached: dict[int, dict[Partition, dict[int, None]]] = field(default_factory=dict)  # channel -> ... -> ids
    channel_of: dict[int, int] = field(default_factory=dict)  # those of consumers and holders -> channel
    holders: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict)  # channel -> (partition, queue_id) ->
    owns_queues_in: dict[Partition, None] = field(default_factory=dict)
    attachments: "dict[int, Attachment]" = field(default_factory=dict)  # live consumers, by id

    def note(self, channel: int, partition: Partition, consumer_id: int) -> None:
        """Note a consumer of this session in a partition."""
        self.attached.setdefault(channel, {}).setdefault(partition, {})[consumer_id] = None
        self.channel_of[consumer_id] = channel

    def forget(self, partition: Partition, consumer_id: int) -> None:
        """Forget a cancelled consumer.

        The partition stays on the list, because the consumer's unacked messages are still there."""
        self.attachments.pop(consumer_id, None)
        channel = self.channel_of.pop(consumer_id, 0)
        if channel in self.attached:
            self.attached[channel].get(partition, {}).pop(consumer_id, None)


def counts(counters: dict[str, int], sessions: Iterable[Session]) -> dict[str, int]:
    """Return all counters as of now: the broker's own plus those of the open channels of `sessions`."""
    found = dict(counters)
    for session in sessions:
        for channel in session.channels.values():
            for name, value in channel.tally.named():
                found[name] += value
    return found
