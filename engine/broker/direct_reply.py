"""Direct reply-to: a client that consumes from the pseudo queue `amq.rabbitmq.reply-to` gets a queue for replies, which
the broker declares.

    basic.consume amq.rabbitmq.reply-to     ->  a queue amq.rabbitmq.reply-to.<token>, exclusive and auto-delete
    publish with that reply_to              ->  the channel puts the name with the token in its place
    publish to that name, from any node     ->  an event as any other; the queue's only consumer is the requester

Rules of this file
- The queue goes with its consumer: with basic.cancel, the channel, the connection.
- For clients it is no queue: they can't consume, get, bind, purge or delete it (404), no listing shows it, and
  declaring it is always passive. It needs no permission, and no policy applies to it.
- A reply that is published as mandatory is returned, although it is delivered: RabbitMQ documents that a reply counts
  as not routed (rabbit_channel.erl, rabbit_exchange.erl `virtual_reply_queue/1`).
"""

import secrets
from typing import Final

from rewindmq.engine.errors import NotFound, resource
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.internal_queues import REPLY_TO, is_reply_queue
from rewindmq.schemas.events import QueueDeclared

PSEUDO_QUEUE: Final = REPLY_TO
PREFIX: Final = PSEUDO_QUEUE + "."
SEMANTICS: Final = "rabbitmq-3.13"  # a queue whose only consumer acks nothing is the same in all profiles


def check_no_reply_queue(vhost: str, name: str) -> None:
    """NotFound: the name is that of a direct reply queue, which does not exist for clients."""
    if is_reply_queue(name):
        raise NotFound(f"no {resource('queue', name, vhost)}")


def new_name() -> str:
    """A name for the queue of one requester, which cannot be guessed."""
    return PREFIX + secrets.token_urlsafe(24)


async def declare(session: Session, partition: Partition, name: str) -> None:
    """Declare the queue of a requester. The caller has to attach its consumer next."""
    session.owns_queues_in[partition] = None
    await partition.ask(
        session.actor,
        QueueDeclared(
            session.vhost,
            name,
            type="classic",
            durable=False,
            exclusive=True,
            auto_delete=True,
            owner=session.session_id,
            arguments=(),
            semantics=SEMANTICS,
        ),
    )


def check_declared(queue: Queue | None, vhost: str, name: str) -> None:
    """NotFound: queue.declare names a requester that is gone, or a name that no requester can have."""
    if name != PSEUDO_QUEUE and (queue is None or not name.startswith(PREFIX)):
        raise NotFound(f"no {resource('queue', name, vhost)}")
