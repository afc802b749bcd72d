"""Compares an account with the machine: the gauges after every event, and all of it at the end."""

from rewindmq.spark_replay.audit.checks import CONSERVATION, CONSUMERS, LIMITS, TTL
from rewindmq.spark_replay.audit.ledger import Account


def compare(account: Account, offset: int) -> None:
    """Compare after the event at `offset`."""
    queue, limits = account.queue, account.limits
    unacked, waiting = len(account.out), len(account.waiting)
    ready = len(account.sizes) - unacked - waiting
    if (
        ready != queue.messages_ready
        or unacked != queue.messages_unacked
        or waiting != queue.messages_delayed
        or account.bytes_ready != queue.message_bytes_ready
        or account.bytes_out != queue.message_bytes_unacked
        or account.bytes_waiting != queue.message_bytes_delayed
    ):
        _gauges_differ(account)
    if limits.max_length is None and limits.max_length_bytes is None:
        return
    if ready <= (1 if account.stream else 0) or not account.is_over(0, 0):  # a stream keeps its newest message
        return
    entered = account.sizes.get(offset)  # the size of the message, if the event was a publish that the queue took
    if limits.drops_head:
        account.fail(LIMITS, None, f"{account.ready} ready, {account.bytes_ready} bytes: {limits}")
    elif (
        entered is not None and offset != account.relocated_at and (not account.quorum or account.is_over(-1, -entered))
    ):  # quorum: one over is taken (S-026)
        detail = f"took a publish with {account.ready} ready, {account.bytes_ready} bytes after it: {limits}"
        account.fail(LIMITS, None, detail)


def _gauges_differ(account: Account) -> None:
    queue = account.queue
    mine = (
        account.ready,
        len(account.out),
        len(account.waiting),
        account.bytes_ready,
        account.bytes_out,
        account.bytes_waiting,
    )
    shown = (
        queue.messages_ready,
        queue.messages_unacked,
        queue.messages_delayed,
        queue.message_bytes_ready,
        queue.message_bytes_unacked,
        queue.message_bytes_delayed,
    )
    detail = f"ready, unacked, waiting and their bytes are {mine} by the history, {shown} by the fold"
    account.fail(CONSERVATION, None, detail)


def compare_in_full(account: Account, now_ms: int) -> None:
    """Compare at the end: message by message, and the counters."""
    views = {view.message_id: view for view in account.queue.messages()}
    for message_id in account.sizes.keys() ^ views.keys():
        where = "by the history" if message_id in account.sizes else "by the fold"
        account.fail(CONSERVATION, message_id, f"in the queue only {where}")
    for message_id in account.sizes.keys() & views.keys():
        view = views[message_id]
        due = account.due_of(message_id, view.expires_ms)
        mine = (account.sizes[message_id], account.out.get(message_id, 0), due)
        if mine != (view.size, view.consumer, view.expires_ms):
            shown = (view.size, view.consumer, view.expires_ms)
            account.fail(CONSERVATION, message_id, f"size, holder, expiry {mine} by the history, {shown} by the fold")
    for name, value in account.counters.items():
        counted = account.queue.counters.get(name, 0)
        if counted != value:
            account.fail(CONSERVATION, None, f"{name}: {value} by the history, {counted} by the fold")
    if account.paused != account.queue.paused:
        account.fail(CONSUMERS, None, f"paused is {account.paused} by the history, {account.queue.paused} by the fold")
    head = next(account.queue.ready_ids(), None)
    due = None if head not in account.sizes else account.due_of(head, views[head].expires_ms)
    if due is not None and due <= now_ms:
        account.fail(TTL, head, f"still at the head at {now_ms}, due {due}")
