"""The methods of a channel, one function each. Publishing and basic.ack are hot, and are in channel.py.

Replies to declarations, bindings, deletions and purges wait until what they report is durable; so does the reply to a
basic.cancel that ends an auto-delete queue. Errors, their codes and texts are RabbitMQ's: those about names and
permissions come from the broker, those about the channel from here.
"""

import base64
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rewindmq.engine.amqp import methods
from rewindmq.engine.amqp.basic_consume import BasicConsume
from rewindmq.engine.amqp.channel import Channel
from rewindmq.engine.amqp.consumer import AmqpConsumer, BasicGet
from rewindmq.engine.amqp.methods import Method
from rewindmq.engine.amqp.transactions import Transaction
from rewindmq.engine.broker.declarations import strip_cr_lf
from rewindmq.engine.broker.direct_reply import PSEUDO_QUEUE, check_declared, check_no_reply_queue, declare, new_name
from rewindmq.engine.errors import (
    AccessRefused,
    ChannelError,
    CommandInvalid,
    NotAllowed,
    NotFound,
    NotImplementedByBroker,
    PreconditionFailed,
)
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Subscription
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.rules.internal_queues import is_reply_queue

Work = Coroutine[Any, Any, None]

log = logging.getLogger("rewindmq.amqp")

# These make something that uses memory for as long as it exists.
USES_MEMORY: Final = ("Basic.Consume", "Exchange.Bind", "Exchange.Declare", "Queue.Bind", "Queue.Declare")
WITHOUT_A_REASON: Final = {"Exchange.Delete": "delete", "Queue.Delete": "delete", "Queue.Purge": "purge"}  # the acts
GATHERED: Final = ("Basic.Ack", "Basic.Nack", "Basic.Reject")  # these keep their order themselves (settlement.py)


def handle(channel: Channel, method: Method) -> Work | None:
    """Do a method. Returns work that has to be awaited before anything else of the connection is done; None: it is
    done."""
    handler = HANDLERS.get(method.name)
    if handler is None:
        raise CommandInvalid("unimplemented method")
    if method.name not in GATHERED:
        channel.settlement.flush()
    if method.name in USES_MEMORY:
        channel.broker.host.memory.check()
    if WITHOUT_A_REASON.get(method.name) in channel.broker.config.require_reason:
        how = "give one by the HTTP API or the command line (--reason)"
        raise AccessRefused(f"this broker wants a reason, which {method.name.lower()} cannot carry: {how}")
    if method.name not in NAMING:
        return handler(channel, method)
    broker = channel.broker
    return broker.certainty.assured(
        lambda: NAMING[method.name](channel, method), lambda: broker.sessions.read_to_end(channel.session)
    )


def reply(channel: Channel, name: str, **values: int | bool | str | bytes) -> None:
    """Send a method of the channel."""
    if not channel.closing:  # it may have closed while the answer was waited for
        channel.output.write(methods.encode(channel.number, name, **values))


def reply_when_durable(channel: Channel, name: str, **values: int | bool | str | bytes) -> None:
    """Send a method, and all that the channel sends after it, when everything that was done so far is durable."""
    if channel.broker.nodes.reads_back:
        reply(channel, name, **values)
    elif not channel.closing:
        channel.output.hold(methods.encode(channel.number, name, **values))
        channel.broker.turns.when_durable(channel.output.release)


def queue_name(channel: Channel, method: Method) -> str:
    """Return the queue that a method names. An empty name means the queue that the channel declared last."""
    name = method.text("queue") or channel.last_queue
    if not name:
        raise NotFound("no previously declared queue")
    check_no_reply_queue(channel.session.vhost, name)
    return name


def binding_key(channel: Channel, method: Method) -> str:
    """Return the routing key of a binding. With an empty queue name and an empty key it is the queue's name."""
    key = method.text("routing_key")
    return channel.last_queue if not key and not method.text("queue") else key


# -- channel ----------------------------------------------------------------------------------------------------------


def channel_open(channel: Channel, method: Method) -> None:
    """Refuse to open the channel twice."""
    raise ChannelError("second 'channel.open' seen")


def channel_flow(channel: Channel, method: Method) -> None:
    """channel.flow. NotImplementedByBroker (540) for active=false, as in RabbitMQ."""
    if not method.flag("active"):
        raise NotImplementedByBroker("active=false")
    reply(channel, "Channel.FlowOk", active=True)


def access_request(channel: Channel, method: Method) -> None:
    """access.request of old clients: any ticket will do."""
    reply(channel, "Access.RequestOk", ticket=1)


# -- exchanges --------------------------------------------------------------------------------------------------------


async def exchange_declare(channel: Channel, method: Method) -> None:
    """exchange.declare."""
    passive = method.flag("passive")
    await channel.broker.exchanges.declare(
        channel.session,
        method.text("exchange"),
        method.text("exchange_type"),
        passive,
        method.flag("durable"),
        method.flag("auto_delete"),
        method.flag("internal"),
        method.table("arguments"),
    )
    if method.flag("nowait"):
        return
    if passive:
        reply(channel, "Exchange.DeclareOk")
    else:
        reply_when_durable(channel, "Exchange.DeclareOk")


async def exchange_delete(channel: Channel, method: Method) -> None:
    """exchange.delete."""
    await channel.broker.exchanges.delete(channel.session, method.text("exchange"), method.flag("if_unused"))
    if not method.flag("nowait"):
        reply_when_durable(channel, "Exchange.DeleteOk")


async def exchange_bind(channel: Channel, method: Method) -> None:
    """exchange.bind."""
    await channel.broker.exchanges.bind(
        channel.session,
        method.text("source"),
        "exchange",
        method.text("destination"),
        method.text("routing_key"),
        method.table("arguments"),
    )
    if not method.flag("nowait"):
        reply_when_durable(channel, "Exchange.BindOk")


async def exchange_unbind(channel: Channel, method: Method) -> None:
    """exchange.unbind."""
    await channel.broker.exchanges.unbind(
        channel.session,
        method.text("source"),
        "exchange",
        method.text("destination"),
        method.text("routing_key"),
        method.table("arguments"),
    )
    if not method.flag("nowait"):
        reply_when_durable(channel, "Exchange.UnbindOk")


# -- queues -----------------------------------------------------------------------------------------------------------


async def queue_declare(channel: Channel, method: Method) -> None:
    """queue.declare."""
    if method.text("queue").startswith(PSEUDO_QUEUE):
        declare_reply_queue(channel, method)
        return
    passive = method.flag("passive")
    queue = await channel.broker.queues.declare(
        channel.session,
        method.text("queue"),
        passive,
        method.flag("durable"),
        method.flag("exclusive"),
        method.flag("auto_delete"),
        method.table("arguments"),
    )
    channel.last_queue = queue.name
    if method.flag("nowait"):
        return
    answer = reply if passive else reply_when_durable
    answer(
        channel,
        "Queue.DeclareOk",
        queue=queue.name,
        message_count=queue.messages_ready + queue.in_lookahead()[0],
        consumer_count=0 if queue.stream else queue.consumer_count(),  # as RabbitMQ answers for streams
    )


def declare_reply_queue(channel: Channel, method: Method) -> None:
    """queue.declare of a queue for direct replies. Always passive; such a queue has one consumer."""
    name, broker, vhost = strip_cr_lf(method.text("queue")), channel.broker, channel.session.vhost
    check_declared(broker.queues.get(vhost, name), vhost, name)
    channel.last_queue = name
    if not method.flag("nowait"):
        reply(channel, "Queue.DeclareOk", queue=name, message_count=0, consumer_count=1)


async def queue_delete(channel: Channel, method: Method) -> None:
    """queue.delete."""
    name = method.text("queue") or queue_name(channel, method)
    count = 0
    cancels: list[bytes] = []  # sent after delete-ok, as RabbitMQ does: py-amqp raises at one that comes before
    channel.output.cancels = cancels
    try:
        if not is_reply_queue(name):  # clients do not see it, and deleting a queue that does not exist is not an error
            count = await channel.broker.queues.delete(
                channel.session, name, method.flag("if_unused"), method.flag("if_empty")
            )
    finally:
        channel.output.cancels = None
    if not method.flag("nowait"):
        reply_when_durable(channel, "Queue.DeleteOk", message_count=count)
    for frame in cancels:
        channel.output.write(frame)


async def queue_purge(channel: Channel, method: Method) -> None:
    """queue.purge."""
    count = await channel.broker.queues.purge(channel.session, queue_name(channel, method))
    if not method.flag("nowait"):
        reply_when_durable(channel, "Queue.PurgeOk", message_count=count)


async def queue_bind(channel: Channel, method: Method) -> None:
    """queue.bind."""
    await channel.broker.exchanges.bind(
        channel.session,
        method.text("exchange"),
        "queue",
        queue_name(channel, method),
        binding_key(channel, method),
        method.table("arguments"),
    )
    if not method.flag("nowait"):
        reply_when_durable(channel, "Queue.BindOk")


async def queue_unbind(channel: Channel, method: Method) -> None:
    """queue.unbind."""
    await channel.broker.exchanges.unbind(
        channel.session,
        method.text("exchange"),
        "queue",
        queue_name(channel, method),
        binding_key(channel, method),
        method.table("arguments"),
    )
    reply_when_durable(channel, "Queue.UnbindOk")


# -- consuming --------------------------------------------------------------------------------------------------------


def basic_qos(channel: Channel, method: Method) -> None:
    """basic.qos."""
    size, count = method.number("prefetch_size"), method.number("prefetch_count")
    if size:
        raise NotImplementedByBroker(f"prefetch_size!=0 ({size})")
    shared = count
    if not method.flag("global_"):  # for the consumers to come; and it lifts the channel's limit (rabbit_channel.erl)
        channel.prefetch = channel.status.prefetch = count
        shared = 0
    if shared != channel.global_prefetch:
        channel.global_prefetch = channel.status.global_prefetch = shared
        channel.broker.consumers.set_global_prefetch(channel.session, channel.number, shared)
    reply(channel, "Basic.QosOk")


async def basic_consume(channel: Channel, method: Method) -> None:
    """basic.consume."""
    channel.forget_gone()
    tag = method.text("consumer_tag")
    if tag in channel.consumers:
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    if (method.text("queue") or channel.last_queue) == PSEUDO_QUEUE:
        await consume_replies(channel, method, tag or generated("amq.ctag"))
        return
    name = queue_name(channel, method)
    tag = tag or generated("amq.ctag")
    asked = BasicConsume(channel, method, tag, channel.prefetch, replies=not method.flag("nowait"))
    await channel.broker.consumers.consume(name, asked.subscription, asked.target, asked.attached)


async def consume_replies(channel: Channel, method: Method, tag: str) -> None:
    """basic.consume of amq.rabbitmq.reply-to, the pseudo queue for direct replies."""
    if not method.flag("no_ack"):
        raise PreconditionFailed("reply consumer cannot acknowledge")
    if channel.reply_queue:
        raise PreconditionFailed("reply consumer already set")
    broker, session, shared = channel.broker, channel.session, channel.shared
    name = new_name()
    consumer = AmqpConsumer(
        channel.output, channel.settlement, tag, True, 0, shared.cancel_notify, channel.gone, shared.creditors
    )

    def attached(partition: Partition, queue: Queue, consumer_id: int) -> None:
        consumer.attached(partition, queue, consumer_id)
        channel.consumers[tag] = consumer
        channel.reply_to(name, tag)
        if not method.flag("nowait"):
            reply(channel, "Basic.ConsumeOk", consumer_tag=tag)

    await declare(session, await broker.queues.entered(session, name), name)
    subscription = Subscription(session, channel.number, tag, no_ack=True)
    await broker.consumers.consume(name, subscription, consumer, attached)


async def basic_cancel(channel: Channel, method: Method) -> None:
    """basic.cancel."""
    channel.forget_gone()
    tag = method.text("consumer_tag")
    await channel.broker.consumers.at_rest(channel.session, channel.number, tag)
    consumer = channel.consumers.pop(tag, None)
    answer = reply
    if channel.reply_queue and tag == channel.reply_tag:
        channel.reply_to("", "")
    if consumer is not None and consumer.partition is not None and consumer.queue is not None:
        consumer.detached = True
        # deliveries that are on their way are sent first, before cancel-ok
        await channel.broker.consumers.cancel(channel.session, consumer.partition, consumer.queue, consumer.consumer_id)
        consumer.give_back()
        if consumer.queue.gone:  # an auto-delete queue, and its bindings
            answer = reply_when_durable
    if not method.flag("nowait"):
        answer(channel, "Basic.CancelOk", consumer_tag=tag)


async def basic_get(channel: Channel, method: Method) -> None:
    """basic.get. Large bodies are read one in a turn of the loop."""
    await channel.output.connection.room()
    get = BasicGet(channel.output, channel.settlement)
    name, no_ack = queue_name(channel, method), method.flag("no_ack")
    if channel.broker.consumers.is_next_large(channel.session, name):
        await channel.broker.host.loop_share.turn()
        if channel.closing:
            return
    partition, queue, holder_id = await channel.broker.consumers.fetch(
        channel.session, channel.number, get, name, no_ack
    )
    get.attached(partition, queue, holder_id)
    channel.broker.turns.end()  # sends the answer now, before those to the methods that came after this one


def basic_ack(channel: Channel, method: Method) -> None:
    """basic.ack that frames.py has not given to the channel itself."""
    channel.settle(method.number("delivery_tag"), method.flag("multiple"), None)


def basic_reject(channel: Channel, method: Method) -> None:
    """basic.reject."""
    channel.settle(method.number("delivery_tag"), False, ("reject", method.flag("requeue")))


def basic_nack(channel: Channel, method: Method) -> None:
    """basic.nack."""
    channel.settle(method.number("delivery_tag"), method.flag("multiple"), ("nack", method.flag("requeue")))


def basic_recover_async(channel: Channel, method: Method) -> None:
    """basic.recover-async: requeue all unacked deliveries of the channel."""
    if not method.flag("requeue"):
        raise NotImplementedByBroker("requeue=false")
    channel.settlement.settle(0, True, ("recover", True))  # at once, also in a transaction
    channel.settlement.flush()


def basic_recover(channel: Channel, method: Method) -> None:
    """basic.recover."""
    basic_recover_async(channel, method)
    reply(channel, "Basic.RecoverOk")


def confirm_select(channel: Channel, method: Method) -> None:
    """confirm.select."""
    if channel.transaction is not None:
        raise PreconditionFailed("cannot switch from tx to confirm mode")
    channel.confirming = channel.status.confirm = True
    if not method.flag("nowait"):
        reply(channel, "Confirm.SelectOk")


# -- transactions -----------------------------------------------------------------------------------------------------


def tx_select(channel: Channel, method: Method) -> None:
    """tx.select."""
    if channel.confirming:
        raise PreconditionFailed("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        if channel.broker.nodes.reads_back:
            log.warning(
                "%s: channel %d is transactional: when this node dies during a commit, a part of it may be there, also"
                " within a queue (an embedded log writes all or nothing of it to a queue)",
                channel.session.peer,
                channel.number,
            )
        channel.transaction = Transaction(channel)
        channel.status.transactional = True
        channel.ready = False
    reply(channel, "Tx.SelectOk")


def transaction_of(channel: Channel) -> Transaction:
    """Return the channel's transaction. PreconditionFailed: it has none."""
    if channel.transaction is None:
        raise PreconditionFailed("channel is not transactional")
    return channel.transaction


async def tx_commit(channel: Channel, method: Method) -> None:
    """tx.commit."""
    await transaction_of(channel).commit()
    reply(channel, "Tx.CommitOk")


def tx_rollback(channel: Channel, method: Method) -> None:
    """tx.rollback."""
    transaction_of(channel).rollback()
    reply(channel, "Tx.RollbackOk")


def generated(prefix: str) -> str:
    """Return a name that nobody else has."""
    return prefix + "-" + base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")


# Methods that name exchanges and queues. A node refuses them only when it has read to the end of the log. A refused one
# has done nothing, so it may be tried again.
NAMING: Final[dict[str, Callable[[Channel, Method], Work]]] = {
    "Exchange.Declare": exchange_declare,
    "Exchange.Delete": exchange_delete,
    "Exchange.Bind": exchange_bind,
    "Exchange.Unbind": exchange_unbind,
    "Queue.Declare": queue_declare,
    "Queue.Delete": queue_delete,
    "Queue.Purge": queue_purge,
    "Queue.Bind": queue_bind,
    "Queue.Unbind": queue_unbind,
    "Basic.Consume": basic_consume,
    "Basic.Get": basic_get,
}
HANDLERS: Final[dict[str, Callable[[Channel, Method], Work | None]]] = {
    **NAMING,
    "Channel.Open": channel_open,
    "Channel.Flow": channel_flow,
    "Access.Request": access_request,
    "Basic.Qos": basic_qos,
    "Basic.Cancel": basic_cancel,
    "Basic.Reject": basic_reject,
    "Basic.Nack": basic_nack,
    "Basic.RecoverAsync": basic_recover_async,
    "Basic.Recover": basic_recover,
    "Confirm.Select": confirm_select,
    "Tx.Select": tx_select,
    "Tx.Commit": tx_commit,
    "Tx.Rollback": tx_rollback,
    "Basic.Ack": basic_ack,
}
