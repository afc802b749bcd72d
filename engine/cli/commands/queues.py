"""Purging, deleting and peeking. `rewindmq restore QUEUE --undo purge` brings purged messages back."""

import json
from typing import cast

import click

from rewindmq.engine.cli.client import Refused
from rewindmq.engine.cli.exits import DATA, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.settings import Settings, with_settings
from rewindmq.engine.cli.values import Value


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
        click.echo(json.dumps({"result": "ok", "message": shown}, ensure_ascii=False))
        return
    settings.update(formatter=settings.formatter or "pretty_table")
    settings.show(("keys", "values"), [{"keys": name, "values": value} for name, value in shown.items()])


COMMANDS = (purge_queue, delete_queue, peek)
