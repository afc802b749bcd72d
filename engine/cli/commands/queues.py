"""Purging, deleting and peeking; removing and moving single messages; pausing.

`rewindmq restore QUEUE --undo purge` brings purged messages back, and `--undo remove` removed ones."""

import json
from collections.abc import Iterator
from typing import cast

import click

from rewindmq.engine.cli.client import Refused, path
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.settings import Settings, with_settings
from rewindmq.engine.cli.values import Value
from rewindmq.projections.machine.events.removal import MOST_REMOVED


@click.command("purge_queue")
@click.argument("queue")
@with_settings
def purge_queue(settings: Settings, queue: str) -> None:
    """Remove all ready messages of a queue.

    `rewindmq restore QUEUE --undo purge` brings them back."""
    settings.banner(f"Purging queue '{queue}' in vhost '{settings.vhost_name}' ...")
    try:
        settings.client().delete("queues", settings.vhost_name, queue, "contents")
    except Refused as refused:
        if refused.status == 404:
            raise no_such_queue(settings, queue, UNAVAILABLE) from None
        raise


@click.command("delete_queue")
@click.option("-e", "--if-empty", is_flag=True, help="Only if it has no ready messages.")
@click.option("-u", "--if-unused", is_flag=True, help="Only if it has no consumers.")
@click.argument("queue")
@with_settings
def delete_queue(settings: Settings, queue: str, if_empty: bool, if_unused: bool) -> None:
    """Delete a queue with its messages.

    `rewindmq restore QUEUE --undo delete` brings them back."""
    conditions = [f"if queue is {word} " for word, asked in (("empty", if_empty), ("unused", if_unused)) if asked]
    if not queue:
        raise CliError(DATA, "(argument validation): Bad argument: queue name cannot be an empty string")
    settings.banner(f"Deleting queue '{queue}' on vhost '{settings.vhost_name}' {'and '.join(conditions)}...")
    asked = {"if-empty": str(if_empty).lower(), "if-unused": str(if_unused).lower()}
    try:
        answer = settings.client().delete("queues", settings.vhost_name, queue, **asked)
    except Refused as refused:
        if refused.status == 404:
            raise no_such_queue(settings, queue, USAGE) from None
        if "in use" in refused.reason:
            raise CliError(USAGE, "Queue is in use") from None
        if "not empty" in refused.reason:
            raise CliError(USAGE, "Queue is not empty") from None
        raise
    if not settings.silent:
        click.echo(f"Queue was successfully deleted with {answer.headers['x-messages-deleted']} ready messages")


def no_such_queue(settings: Settings, queue: str, code: int) -> CliError:
    """The error of a command whose queue does not exist."""
    return CliError(code, f"Queue not found: there is no queue '{queue}' in vhost '{settings.vhost_name}'")


@click.command("peek")
@click.argument("queue")
@click.argument("position", type=click.IntRange(min=1))
@with_settings
def peek(settings: Settings, queue: str, position: int) -> None:
    """Show a ready message and leave it in the queue.

    POSITION 1 is the next message. RabbitMQ peeks at quorum queues only."""
    settings.banner(f"Peeking at queue {queue} at position {position} ...")
    try:
        message = settings.client().get_one("queues", settings.vhost_name, queue, "peek", str(position))
    except Refused as refused:
        if refused.status == 404 and refused.reason == "Not Found":
            raise CliError(DATA, f"Target queue was not found in virtual host '{settings.vhost_name}'") from None
        raise CliError(UNAVAILABLE, refused.reason) from None
    properties = dict(cast(dict[str, Value], message["properties"]))
    headers = cast(dict[str, Value], properties.pop("headers", {}))
    shown: dict[str, Value] = {
        **dict(reversed(properties.items())),
        "routing_keys": message["routing_key"],
        "exchange": message["exchange"],
        "payload (max 64 bytes)": message["payload"],
        **{f"header.{name}": value for name, value in headers.items()},
        "header.x-delivery-count": message["delivery_count"],
    }
    if settings.formatter == "json":
        click.echo(json.dumps({"result": "ok", "message": shown}, ensure_ascii=False, allow_nan=False))
        return
    settings.update(formatter=settings.formatter or "pretty_table")
    settings.show(("keys", "values"), [{"keys": name, "values": value} for name, value in shown.items()])


MOST_NAMED = 1_000_000  # messages on one command line, with all ranges


Named = tuple[str, int, int]  # partition or "", the first id, the last


class Ids(click.ParamType[Named]):
    """Message ids: 17, or a range 17-29. Before them there may be the partition, as `find` shows it: queues-0:17."""

    name = "ids"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Named:
        """The partition or "", the first id and the last."""
        partition, _, ids = value.rpartition(":")
        first, _, last = ids.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            self.fail(f"{value!r} is no message id: give numbers such as 17, or ranges such as 17-29")
        return partition, int(first), int(last or first)


REASON = click.option("--reason", default="", metavar="TEXT", help="Why; the history shows it.")


@click.command("remove_message")
@REASON
@click.argument("queue")
@click.argument("ids", nargs=-1, required=True, type=Ids(), metavar="ID...")
@with_settings
def remove_message(settings: Settings, queue: str, ids: tuple[Named, ...], reason: str) -> None:
    """Delete single messages of QUEUE by their ids, or ranges of ids such as 17-29.

    A message that a consumer has stays. `rewindmq find` shows ids; one may be given with its partition, as queues-0:17.
    It has to be if the queue has moved to another partition.
    `rewindmq restore QUEUE --undo remove` brings messages back.

    \b
    Examples:
      rewindmq remove_message orders 4711 --reason "poison: no address"
      rewindmq remove_message orders 17-29 44
    """
    settings.banner(f"Removing messages of queue '{queue}' in vhost '{settings.vhost_name}' ...")
    take_out(settings, queue, ids, "remove", "removed", {"reason": reason})


@click.command("move_message")
@click.option("--to", metavar="QUEUE", help="The queue of the same virtual host to move them to.")
@click.option("--exchange", metavar="EXCHANGE", help="Instead of --to: the exchange to publish them to.")
@click.option("--routing-key", default="", metavar="KEY", help="With --exchange: the routing key.")
@REASON
@click.argument("queue")
@click.argument("ids", nargs=-1, required=True, type=Ids(), metavar="ID...")
@with_settings
def move_message(
    settings: Settings,
    queue: str,
    ids: tuple[Named, ...],
    to: str | None,
    exchange: str | None,
    routing_key: str,
    reason: str,
) -> None:
    """Move single messages of QUEUE to another queue, each exactly once.

    They go to the end of the other queue, in the order that they had. A message that a consumer has stays.

    \b
    Examples:
      rewindmq move_message orders 4711 --to orders.checked
      rewindmq move_message orders 17-29 --exchange retry --routing-key slow
    """
    if (to is None) == (exchange is None):
        raise CliError(USAGE, "give either --to QUEUE, or --exchange EXCHANGE with --routing-key KEY")
    way: dict[str, object] = {"to": to} if to is not None else {"exchange": exchange, "routing_key": routing_key}
    settings.banner(f"Moving messages of queue '{queue}' in vhost '{settings.vhost_name}' ...")
    take_out(settings, queue, ids, "move", "moved", way | {"reason": reason})


def take_out(
    settings: Settings, queue: str, ids: tuple[Named, ...], how: str, done: str, asked: dict[str, object]
) -> None:
    """Ask for the messages in portions, and show what became of them.

    Raises CliError if some stayed, or did not arrive."""
    if sum(last - first + 1 for _, first, last in ids) > MOST_NAMED:
        raise CliError(USAGE, f"at most {MOST_NAMED:,} messages at a time")
    named = {partition for partition, _, _ in ids if partition}
    check_partition(settings, queue, named)
    if named:
        asked = asked | {"partition": min(named)}  # the queue may move meanwhile
    client, where = settings.client(), path("queues", settings.vhost_name, queue, "messages", how)
    left, rows, arrived = 0, list[dict[str, Value]](), True
    for portion in portions(ids):
        try:
            answer = client.request("POST", where, json=asked | {"messages": portion}).json()
        except Refused as refused:
            if refused.status == 404 and refused.reason == "Not Found":
                raise no_such_queue(settings, queue, UNAVAILABLE) from None
            raise
        left += len(cast(list[int], answer[done]))
        arrived = arrived and answer.get("arrived") is not False
        rows += cast(list[dict[str, Value]], answer["stayed"])
    if not settings.silent:
        click.echo(f"{left} messages were {done}")
    if rows:
        settings.show(("message", "reason"), rows)
        raise CliError(DATA, f"{len(rows)} messages stayed as they are")
    if not arrived:
        raise CliError(UNAVAILABLE, f"not all messages have arrived yet; `rewindmq history {queue}` shows their way")


def check_partition(settings: Settings, queue: str, named: set[str]) -> None:
    """Raise CliError if the ids are of another partition than the queue's: they are of other messages."""
    if not named:
        return
    try:
        home = settings.client().get_one("queues", settings.vhost_name, queue)["partition"]
    except Refused as refused:
        raise (no_such_queue(settings, queue, UNAVAILABLE) if refused.status == 404 else refused) from None
    if named != {home}:
        other = min(named - {str(home)})
        raise CliError(DATA, f"queue '{queue}' is in partition {home}: ids of {other} are of other messages")


def portions(ids: tuple[Named, ...]) -> Iterator[list[int]]:
    """The ids of all ranges, each once, in lists that one request may have."""
    named = sorted({message_id for _, first, last in ids for message_id in range(first, last + 1)})
    for begin in range(0, len(named), MOST_REMOVED):
        yield named[begin : begin + MOST_REMOVED]


@click.command("pause_queue")
@REASON
@click.argument("queue")
@with_settings
def pause_queue(settings: Settings, queue: str, reason: str) -> None:
    """Let QUEUE deliver nothing until `resume_queue`, also after a restart.

    Consumers stay, publishes are taken, messages expire. A client's basic.get finds nothing."""
    settings.banner(f"Pausing queue '{queue}' in vhost '{settings.vhost_name}' ...")
    switch(settings, queue, "pause", {"reason": reason})


@click.command("resume_queue")
@click.argument("queue")
@with_settings
def resume_queue(settings: Settings, queue: str) -> None:
    """Let QUEUE deliver again, in its order."""
    settings.banner(f"Resuming queue '{queue}' in vhost '{settings.vhost_name}' ...")
    switch(settings, queue, "resume", {})


def switch(settings: Settings, queue: str, how: str, content: dict[str, object]) -> None:
    """Pause a queue, or resume it. CliError."""
    try:
        settings.client().put("queues", settings.vhost_name, queue, how, content=content)
    except Refused as refused:
        if refused.status == 404:
            raise no_such_queue(settings, queue, UNAVAILABLE) from None
        raise


COMMANDS = (purge_queue, delete_queue, peek, remove_message, move_message, pause_queue, resume_queue)
