"""Relocation: a queue moves to another partition, and takes its messages along (decision 0076).

    QueueDeclared.moved_from    the queue is made in its new partition, with what it has to remember
    QueueDrained                messages leave the old one: reason `relocated`, and into the outbox, as dead letters
    Published                   they come into the new one, with an origin of this reason (publish.py)
    DeadLettersForwarded        the outbox forgets them

    ready      leaves, in the order of delivery
    delayed    leaves after them, and is ready in the new partition at once
    unacked    stays: a client may be at work on it

A message keeps its delivery count, its redelivered flag and the time that it has left to live. None of this is a death,
or counts towards a limit of the old queue. In the new one the message is never refused, and no id makes it a duplicate:
it was in the queue. Consumers were detached before, so that nothing is delivered in between.

`why_it_stays` names the queues that do not move. The broker asks it before it appends the first of these events.
"""

from typing import Final

from rewindmq.projections.machine.data.effects import Effect, Forget
from rewindmq.projections.machine.data.message_order import Stretch
from rewindmq.projections.machine.data.message_word import is_redelivered
from rewindmq.projections.machine.data.outbox import Carried
from rewindmq.projections.machine.data.queue import Queue
from rewindmq.projections.machine.data.reasons import DELAYED, RELOCATED
from rewindmq.projections.machine.rules.dead_letters import relocate
from rewindmq.projections.machine.rules.expiry import expire_heads
from rewindmq.projections.machine.rules.limits import enforce
from rewindmq.projections.machine.state import STREAM, State, is_locked, quarantine
from rewindmq.schemas.events import QueueDrained
from rewindmq.schemas.values import Actor, MovedFrom, SeenLetters, SeenRestored

MOST_DRAINED: Final = 1_000  # messages that one event may let leave


def on_drained(state: State, offset: int, actor: Actor, event: QueueDrained, effects: list[Effect]) -> None:
    """Let the first messages of a queue leave for its new partition; leave those that a consumer holds.

    Quarantined: of a stream or a hidden queue, and with a count that cannot be. Nothing happens if the queue is gone,
    or is another one."""
    if not 1 <= event.count <= MOST_DRAINED:
        quarantine(state, event, f"{event.count} messages: 1 to {MOST_DRAINED} leave at once", effects)
        return
    queue = state.by_name.get((event.vhost, event.queue))
    if queue is None or queue.queue_id != event.queue_id or is_locked(state, queue, actor, event, effects):
        return
    if queue.has_own_publish:
        quarantine(state, event, f"{queue.type} {event.queue!r} does not move", effects)
        return
    leaving = _take_out(queue, event.count)
    if not leaving.ids:
        return
    state.touch(queue)
    queue.relocated += len(leaving.ids)
    effects.append(Forget(queue, leaving.ids, RELOCATED, 0, ""))
    carried: list[Carried] = []
    for message_id, word, expiry in leaving.rows():
        delivery_count, acquired_count = queue.counts(word)
        redelivered = is_redelivered(word) or message_id < queue.crash_offset
        carried.append(Carried(delivery_count, acquired_count, redelivered, expiry))
    relocate(queue, leaving.ids, leaving.words, carried, effects)
    expire_heads(state, queue, effects)  # another message may be the first
    enforce(state, queue, effects)


def _take_out(queue: Queue, count: int) -> Stretch:
    """Take the first messages out of the orders."""
    leaving = queue.take_first(count)
    if queue.delayed is not None:
        delayed = queue.delayed.take_first(count - len(leaving.ids))
        queue.messages_delayed -= len(delayed.ids)
        queue.message_bytes_delayed -= delayed.message_bytes
        delayed.expiries = queue.take_expiries(delayed.ids)
        leaving.extend(delayed)
    return leaving


def problem_of(moved: MovedFrom, machine_version: int) -> str:
    """Return the first fault of `moved` for a queue of this machine version, in words for people; "" if it has none."""
    if not 1 <= moved.version <= machine_version:
        return f"a queue of machine version {moved.version} is not known"
    for restored in moved.restored:
        end = -1
        for first, last in restored.messages:
            if not end < first <= last:
                return f"restored messages {first} to {last} behind {end}"
            end = last + 1  # the next range does not touch this one
    return ""


def bring_along(queue: Queue, moved: MovedFrom) -> None:
    """Give a new queue what it remembers from its old partition."""
    for letters in moved.letters:
        source = letters.vhost, letters.queue, letters.queue_id, letters.partition, letters.relocated
        queue.letters_seen[source] = letters.sequence
    for restored in moved.restored:
        restoration = restored.restore, restored.vhost, restored.queue, restored.queue_id
        queue.restored[restoration] = [[first, last] for first, last in restored.messages]
    queue.paused = moved.paused
    queue.update_serving()


def moved_from(partition: int, queue: Queue) -> MovedFrom:
    """Return the state that a queue takes along when it moves out of the partition with this number."""
    return MovedFrom(
        partition,
        queue.queue_id,
        queue.version,
        queue.paused,
        tuple(
            SeenLetters(vhost, name, queue_id, sequence, source, relocated)
            for (vhost, name, queue_id, source, relocated), sequence in sorted(queue.letters_seen.items())
        ),
        tuple(
            SeenRestored(restore, vhost, name, queue_id, tuple((first, last) for first, last in ranges))
            for (restore, vhost, name, queue_id), ranges in sorted(queue.restored.items())
        ),
    )


def why_it_stays(queue: Queue) -> str:
    """Why a queue does not move to another partition, for people; "" if it can."""
    if queue.stream:
        return f"it is a {STREAM}"
    if queue.type == DELAYED:
        return "it is the hidden queue of a delayed exchange"
    if queue.exclusive:
        return "it is exclusive"
    if queue.auto_delete:
        return "it is auto-delete"
    if not queue.durable:
        return "it is not durable"
    if queue.settings.expires_ms is not None:
        return "it expires when it is unused (x-expires)"
    if queue.deduplicates or any(ids.messages for ids in queue.remembered.values()):
        return "it remembers ids of messages, to drop duplicates"
    return ""
