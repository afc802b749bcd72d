"""A client's connection as the broker sees it: its channels, its consumers and its queues in the partitions."""

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rewindmq.engine.identity.grants import Grant
from rewindmq.engine.partition.counters import Tally
from rewindmq.engine.partition.partition import DeliveryTarget, Partition
from rewindmq.engine.partition.publish_counts import PublishCounts
from rewindmq.engine.tls import TlsPeer
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.schemas.values import Actor, Argument

Attached = Callable[[Partition, Queue, int], None]
Name = tuple[str, str]  # vhost and queue
Place = tuple[int, int, str]  # of a consumer: session id, channel and tag


class DeliveryNumbers(Protocol):
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
    settlement: DeliveryNumbers
    confirm: bool = False
    prefetch: int = 0
    global_prefetch: int = 0
    transactional: bool = False
    messages_uncommitted: int = 0
    acks_uncommitted: int = 0


@dataclass(slots=True)
class ConnectionStatus:
    """A client's connection: the negotiated values, and the traffic so far (octets, socket reads and writes)."""

    tls: TlsPeer | None = None
    auth_mechanism: str = ""
    channel_max: int = 0
    frame_max: int = 0
    heartbeat_seconds: int = 0
    blocked: bool = False  # an alarm holds its publishes back, or a message of it waits for room on the disk
    in_flow: bool = False  # it publishes, and waits for its turn (engine/partition/flow_control.py)
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
    link: ConnectionStatus | None = None  # None: the session has no connection of its own, as that of an HTTP request
    close: Callable[[str], None] | None = None  # closes the connection: 320 CONNECTION_FORCED, and this reason
    channel: int = 0  # of an HTTP call: its channel in the session of `actor` (engine/broker/callers.py); 0: it is none
    grant: Grant | None = None  # of a token; None: the user's permissions are its rights
    in_history: bool = False  # its SessionOpened is; its end belongs there, too (engine/broker/access_log.py)
    publishes: PublishCounts = field(default_factory=PublishCounts)  # an HTTP call has those of its client's session

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


class MovableConsumer(Protocol):
    """A consumer that can go on in another partition, as its channel has it (engine/amqp/basic_consume.py)."""

    @property
    def target(self) -> DeliveryTarget:
        """It gets the deliveries."""

    def attached(self, partition: Partition, queue: Queue, consumer_id: int) -> None:
        """It is attached, and gets its first delivery next."""

    def leave(self) -> None:
        """Ask its partition for nothing more."""

    def give_back(self) -> None:
        """Give back the messages that were not sent to the client."""

    def cancelled(self) -> None:
        """Tell the client that the broker has cancelled it."""

    def successor(self) -> "Subscription | None":
        """The subscription by which the client's consumer goes on; None: the client does not want it any more."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The settings of one basic.consume.

    `prefetch` is the consumer's, `global_prefetch` its whole channel's. 0: unlimited. `movable`: how the consumer goes
    on when its queue moves to another partition; None: it is cancelled then."""

    session: Session
    channel: int
    tag: str
    no_ack: bool = False
    exclusive: bool = False
    prefetch: int = 0
    global_prefetch: int = 0
    arguments: tuple[Argument, ...] = ()
    movable: MovableConsumer | None = None


@dataclass(eq=False, slots=True)
class Attachment:
    """A live consumer of a client of this node, in the partition in which it is attached.

    `stands_by`: another one is its queue's single active consumer, or was when the queue began to move."""

    partition: Partition
    queue: Queue
    subscription: Subscription
    consumer_id: int
    detached: bool = False
    stands_by: bool = False

    @property
    def name(self) -> Name:
        """Vhost and name of its queue."""
        return self.queue.vhost, self.queue.name

    @property
    def place(self) -> Place:
        """Where the client has it."""
        of = self.subscription
        return of.session.session_id, of.channel, of.tag


def counts(counters: dict[str, int], sessions: Iterable[Session]) -> dict[str, int]:
    """Return all counters as of now: the broker's own plus those of the open channels of `sessions`."""
    found = dict(counters)
    for session in sessions:
        for channel in session.channels.values():
            for name, value in channel.tally.named():
                found[name] += value
    return found
