"""Length limits of a queue. Ready messages count (S-005), and dead letters held for at-least-once (S-150).

    drop-head            over the limit: the next message to be delivered is dropped, until the queue is within its
                         limits (S-007); but a stream keeps its newest message
    reject-publish       classic: a publish that would go over is refused at the door (S-008)
                         quorum: the publish that goes over is still taken, then the queue is blocked and refuses all,
                         until it is at 80 % of every limit or below (S-026, S-027)
    reject-publish-dlx   classic: as reject-publish, and the refused message is dead-lettered (S-012)

RabbitMQ blocks each publishing channel of a quorum queue by a message to it. So a channel that opens while the queue is
between 80 % and 100 % may still publish there. Here the queue itself is blocked, as RabbitMQ's documentation says.
RabbitMQ also leaves channels blocked for ever when the limit or the strategy is taken away; here that unblocks. And
where several messages of a quorum queue are dropped at once, RabbitMQ dead-letters the last one first (drop_head puts
its effects in front); here they are dead-lettered in the order in which they are dropped.
"""

from rewindmq.projections.machine.data.effects import Effect, Forget
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import MAXLEN
from rewindmq.projections.machine.rules.dead_letters import bury
from rewindmq.projections.machine.rules.expiry import expire_heads
from rewindmq.projections.machine.rules.settings import DROP_HEAD, REJECT_PUBLISH
from rewindmq.projections.machine.state import State


def is_over(queue: Queue) -> bool:
    """Return True if the queue exceeds one of its limits."""
    return (
        queue.messages_ready + queue.messages_dlx + queue.messages_delayed > queue.max_length_or_never
        or queue.message_bytes_ready + queue.message_bytes_dlx + queue.message_bytes_delayed > queue.max_bytes_or_never
    )


def counted(queue: Queue) -> tuple[int, int]:
    """Messages and bytes that count towards the limits.

    These are ready messages, delayed ones, and dead letters that are held."""
    return (
        queue.messages_ready + queue.messages_dlx + queue.messages_delayed,
        queue.message_bytes_ready + queue.message_bytes_dlx + queue.message_bytes_delayed,
    )


def would_go_over(queue: Queue, size: int) -> bool:
    """Return True if one more message of `size` bytes would exceed a limit.

    Only for classic queues: they hold no dead letters."""
    return (
        queue.messages_ready + 1 > queue.max_length_or_never
        or queue.message_bytes_ready + size > queue.max_bytes_or_never
    )


def refuses(queue: Queue, size: int) -> bool:
    """Return True if the queue refuses a publish of `size` bytes: by reject-publish or reject-publish-dlx.

    With a size of 0: even the smallest one."""
    if queue.quorum:
        return queue.blocked
    return queue.settings.overflow != DROP_HEAD and would_go_over(queue, size)


def rule_broken(queue: Queue, messages: int, message_bytes: int) -> str:
    """Return the rule of the limit that `messages` and `message_bytes` break, for people."""
    if messages > queue.max_length_or_never:
        return queue.settings.max_length_rule
    if message_bytes > queue.max_bytes_or_never:
        return queue.settings.max_length_bytes_rule
    return queue.settings.max_length_rule or queue.settings.max_length_bytes_rule  # blocked, between 80 % and the limit


def enforce(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Make the limits hold again after a queue has changed."""
    overflow = queue.settings.overflow
    if overflow == DROP_HEAD:
        queue.blocked = False
        if queue.limited and is_over(queue):
            drop_heads(state, queue, effects)
    elif queue.quorum and overflow == REJECT_PUBLISH:
        if not queue.limited:
            queue.blocked = False
        elif is_over(queue):
            queue.blocked = True
        elif queue.blocked and _is_relieved(queue):
            queue.blocked = False


def drop_heads(state: State, queue: Queue, effects: list[Effect]) -> None:
    """Drop messages from the head until the queue is within its limits."""
    messages, message_bytes = counted(queue)
    if messages > queue.max_length_or_never:
        _drop(queue, messages - queue.max_length_or_never, queue.settings.max_length_rule, effects)
        message_bytes = counted(queue)[1]
    over = message_bytes - queue.max_bytes_or_never
    if over > 0:
        _drop(queue, queue.reaching(over), queue.settings.max_length_bytes_rule, effects)
    if queue.arrived.expiring or queue.returned.expiring:
        expire_heads(state, queue, effects)


def _drop(queue: Queue, count: int, rule: str, effects: list[Effect]) -> None:
    count = min(count, queue.messages_ready - queue.least_ready)
    if count > 0:
        dropped = queue.take_first(count)
        queue.maxlen += count
        effects.append(Forget(queue, dropped.ids, MAXLEN, 0, rule))
        bury(queue, dropped.ids, dropped.words, MAXLEN, effects)


def _is_relieved(queue: Queue) -> bool:
    """Return True if the queue is at or below 80 % of each limit, rounded down (LOW_LIMIT in rabbit_fifo.hrl)."""
    messages, message_bytes = counted(queue)
    return messages <= queue.max_length_or_never * 4 // 5 and message_bytes <= queue.max_bytes_or_never * 4 // 5
