"""The reasons for which messages and queues go, in RabbitMQ's words."""

from typing import Final, Literal

# The reasons for which a message dies, RabbitMQ's words; and all for which it leaves its queue. They are Literal types
# and not an Enum: the texts stand in events, digests and rows as they are, and nothing is looked up for each message.
DeathReason = Literal["expired", "rejected", "maxlen", "delivery_limit"]
LeaveReason = (
    DeathReason
    | Literal["acked", "delivered", "purged", "deleted", "delayed", "transient", "removed", "moved", "relocated"]
)
LetterReason = DeathReason | Literal["delayed", "moved", "relocated"]  # why a message is in its queue's outbox
GoneReason = Literal["deleted", "expired", "auto_delete", "exclusive_owner_gone", "transient"]

EXPIRED: Final = "expired"
REJECTED: Final = "rejected"  # nacked or rejected without requeue
MAXLEN: Final = "maxlen"  # dropped from the head, or refused at the door, by a length limit
DELIVERY_LIMIT: Final = "delivery_limit"
ACKED: Final = "acked"
DELIVERED: Final = "delivered"  # to a no_ack consumer or get: gone as soon as sent
PURGED: Final = "purged"
DELETED: Final = "deleted"  # the queue was deleted
DELAYED: Final = "delayed"  # its delay is over: it leaves the delayed exchange's queue, and the exchange routes it
REMOVED: Final = "removed"  # an operator deleted this message
MOVED: Final = "moved"  # an operator moved this message to another queue
RELOCATED: Final = "relocated"  # its queue moves to another partition, and takes this message along
TRANSIENT: Final = "transient"  # not persistent, and the broker restarted

# A message came back that was in its consumer's lookahead: no client has seen it. It does not leave its queue.
UNSENT: Final = "unsent"
