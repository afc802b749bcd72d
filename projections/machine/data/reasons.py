"""The reasons why messages and queues end, in RabbitMQ's words."""

from typing import Final, Literal

# The reasons why a message dies, in RabbitMQ's words, and all reasons why it leaves its queue. They are Literal types,
# not an Enum, because events, digests and rows contain the texts, and nothing should be looked up for each message.
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
RELOCATED: Final = "relocated"  # its queue moves to another partition with this message
TRANSIENT: Final = "transient"  # not persistent, and the broker restarted

# A message returned from its consumer's lookahead: no client has seen it. It does not leave its queue.
UNSENT: Final = "unsent"
