"""Purging, deleting and peeking; removing and moving single messages; pausing.

`rewindmq restore QUEUE --undo purge` brings purged messages back, and `--undo remove` removed ones."""

import json
from collections.abc import Iterator
from typing import cast

import click

from rewindmq.engine.cli.client import Json, RequestRefused, path
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.rows import Asked, Row, commands, on
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import argument, command, flag, option
from rewindmq.engine.cli.values import Value

NOT_FOUND = "Queue not found: there is no queue '{queue}' in vhost '{vhost}'"
NO_QUEUE, NO_QUEUE_TO_DELETE = on(404, UNAVAILABLE, NOT_FOUND), on(404, USAGE, NOT_FOUND)


def why_not_deleted(asked: Asked, refused: RequestRefused) -> CliError:
    """Return the error of delete_queue, in rabbitmqctl's words."""
    for found, text in (("in use", "Queue is in use"), ("not empty", "Queue is not empty")):
        if found in refused.reason:
            return CliError(USAGE, text)
    return NO_QUEUE_TO_DELETE(asked, refused) or refused


@command(
    "delete_queue QUEUE",
    flag("-e --if-empty", "Only if it has no ready messages."),
    flag("-u --if-unused", "Only if it has no consumers."),
)
def delete_queue(settings: CliSettings, queue: str, if_empty: bool, if_unused: bool) -> None:
    """Delete a queue with its messages.

    `rewindmq restore QUEUE --undo delete` brings them back."""
    conditions = [f"if queue is {word} " for word, asked in (("empty", if_empty), ("unused", if_unused)) if asked]
    if not queue:
        raise CliError(DATA, "(argument validation): Bad argument: queue name cannot be an empty string")
    settings.banner(f"Deleting queue '{queue}' on vhost '{settings.vhost_name}' {'and '.join(conditions)}...")
    query = {"if-empty": str(if_empty).lower(), "if-unused": str(if_unused).lower()}
    try:
        answer = settings.client().delete("queues", settings.vhost_name, queue, **query)
    except RequestRefused as refused:
        raise why_not_deleted(Asked(settings, {"queue": queue}), refused) from None
    if not settings.silent:
        click.echo(f"Queue was successfully deleted with {answer.headers['x-messages-deleted']} ready messages")


def not_peeked(asked: Asked, refused: RequestRefused) -> CliError:
    """Return the error of peek."""
    if refused.status == 404 and refused.reason == "Not Found":
        return CliError(DATA, asked.text("Target queue was not found in virtual host '{vhost}'"))
    return CliError(UNAVAILABLE, refused.reason)


def show_message(asked: Asked, message: Json) -> None:
    """Print a message as keys and values, in rabbitmqctl's order."""
    settings = asked.settings
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
    settings.show([{"keys": name, "values": value} for name, value in shown.items()])


MOST_NAMED = 1_000_000  # messages on one command line, with all ranges


Named = tuple[str, int, int]  # partition or "", the first id, the last


class Ids(click.ParamType[Named]):
    """Message ids: 17, or a range 17-29. Before them there may be the partition, as `find` shows it: queues-0:17."""

    name = "ids"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Named:
        """Return the partition or "", the first id and the last."""
        partition, _, ids = value.rpartition(":")
        first, _, last = ids.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            self.fail(f"{value!r} is not a message id: give numbers such as 17, or ranges such as 17-29")
        return partition, int(first), int(last or first)


IDS = click.Argument(["ids"], nargs=-1, required=True, type=Ids(), metavar="ID...")


@command("remove_message QUEUE", IDS)
def remove_message(settings: CliSettings, queue: str, ids: tuple[Named, ...]) -> None:
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
    take_out(settings, queue, ids, "remove", "removed", {})


@command(
    "move_message QUEUE",
    option("--to QUEUE", "The queue of the same virtual host to move them to."),
    option("--exchange EXCHANGE", "Instead of --to: the exchange to publish them to."),
    option("--routing-key KEY", "With --exchange: the routing key.", default=""),
    IDS,
)
def move_message(
    settings: CliSettings,
    queue: str,
    ids: tuple[Named, ...],
    to: str | None,
    exchange: str | None,
    routing_key: str,
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
    take_out(settings, queue, ids, "move", "moved", way)


def take_out(
    settings: CliSettings, queue: str, ids: tuple[Named, ...], how: str, done: str, asked: dict[str, object]
) -> None:
    """Ask for the messages in portions, and show the result.

    Raises CliError if some stayed, or did not arrive."""
    if sum(last - first + 1 for _, first, last in ids) > MOST_NAMED:
        raise CliError(USAGE, f"at most {MOST_NAMED:,} messages at a time")
    named = {partition for partition, _, _ in ids if partition}
    check_partition(settings, queue, named)
    if named:
        asked = asked | {"partition": min(named)}  # the queue may move meanwhile
    asked = asked | {"reason": settings.reason or ""}  # for a broker of 0.2, which reads no header
    client, where = settings.client(), path("queues", settings.vhost_name, queue, "messages", how)
    left, rows, arrived = 0, list[dict[str, Value]](), True
    for portion in portions(ids):
        try:
            answer = client.request("POST", where, json=asked | {"messages": portion}).json()
        except RequestRefused as refused:
            known = refused.status == 404 and refused.reason != "Not Found"  # another thing is missing
            raise refused if known else queue_error(settings, queue, refused) from None
        left += len(cast(list[int], answer[done]))
        arrived = arrived and answer.get("arrived") is not False
        rows += cast(list[dict[str, Value]], answer["stayed"])
    if not settings.silent:
        click.echo(f"{left} messages were {done}")
    if rows:
        settings.show(rows, ("message", "reason"))
        raise CliError(DATA, f"{len(rows)} messages stayed as they are")
    if not arrived:
        raise CliError(UNAVAILABLE, f"not all messages have arrived yet; `rewindmq history {queue}` shows their way")


def queue_error(settings: CliSettings, queue: str, refused: RequestRefused) -> CliError:
    """Return the error of a refusal that is about a queue."""
    return NO_QUEUE(Asked(settings, {"queue": queue}), refused) or refused


def check_partition(settings: CliSettings, queue: str, named: set[str]) -> None:
    """Raise CliError if the ids are of another partition than the queue's: they are of other messages."""
    if not named:
        return
    try:
        home = settings.client().get_one("queues", settings.vhost_name, queue)["partition"]
    except RequestRefused as refused:
        raise queue_error(settings, queue, refused) from None
    if named != {home}:
        other = min(named - {str(home)})
        raise CliError(DATA, f"queue '{queue}' is in partition {home}: ids of {other} are of other messages")


def portions(ids: tuple[Named, ...]) -> Iterator[list[int]]:
    """Yield the ids of all ranges, each once, in lists that one request may have."""
    from rewindmq.projections.machine.events.removal import MOST_REMOVED

    named = sorted({message_id for _, first, last in ids for message_id in range(first, last + 1)})
    for begin in range(0, len(named), MOST_REMOVED):
        yield named[begin : begin + MOST_REMOVED]


COMMANDS = commands(
    Row(
        "purge_queue QUEUE",
        "Remove all ready messages of a queue.\n\n`rewindmq restore QUEUE --undo purge` brings them back.",
        "Purging queue '{queue}' in vhost '{vhost}' ...",
        "DELETE queues/{vhost}/{queue}/contents",
        refused=NO_QUEUE,
    ),
    delete_queue,
    Row(
        "peek QUEUE",
        "Show a ready message and leave it in the queue.\n\n"
        "POSITION 1 is the next message. RabbitMQ peeks at quorum queues only.",
        "Peeking at queue {queue} at position {position} ...",
        "GET queues/{vhost}/{queue}/peek/{position}",
        refused=not_peeked,
        then=show_message,
        params=(argument("POSITION", type=click.IntRange(min=1)),),
    ),
    remove_message,
    move_message,
    Row(
        "pause_queue QUEUE",
        "Let QUEUE deliver nothing until `resume_queue`, also after a restart.\n\n"
        "Consumers stay, publishes are taken, messages expire. A client's basic.get finds nothing.",
        "Pausing queue '{queue}' in vhost '{vhost}' ...",
        "PUT queues/{vhost}/{queue}/pause",
        body="reason",
        refused=NO_QUEUE,
    ),
    Row(
        "resume_queue QUEUE",
        "Let QUEUE deliver again, in its order.",
        "Resuming queue '{queue}' in vhost '{vhost}' ...",
        "PUT queues/{vhost}/{queue}/resume",
        refused=NO_QUEUE,
    ),
)
