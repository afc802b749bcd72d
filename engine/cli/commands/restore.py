"""Our own command `restore`: brings messages of the past back into a queue."""

from typing import cast

import click

from rewindmq.engine.cli.client import RequestRefused, path
from rewindmq.engine.cli.exits import USAGE, CliError
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.times import A_MOMENT, A_TIME, TIME, moment_from
from rewindmq.engine.cli.usage import command, flag, option
from rewindmq.engine.cli.values import Value


@command(
    "restore [QUEUE]",
    option(
        "--at time TIME",
        f"The moment: {A_MOMENT}. A later 2h is another moment: give --name as well, so that no message comes twice.",
    ),
    option("--offset", "An offset of the queue's partition, instead of a time.", click.IntRange(min=0)),
    option(
        "--undo",
        "Messages that the last purge, deletion or remove_message removed, instead of a time.",
        click.Choice(["purge", "delete", "remove"]),
    ),
    option("--to target QUEUE", "Another queue of the virtual host to put the messages into."),
    option(
        "--only OUTCOME",
        "Only messages with this outcome: purged, removed, deleted, expired, maxlen, rejected, delivery_limit,"
        " transient, acked, delivered, moved, ready, unacked; or all. May be given several times. Default: with --at"
        " the messages that are lost, with --undo the messages that were removed.",
        multiple=True,
    ),
    option(
        "--message ids",
        "Only the message with this id. May be given several times.",
        click.IntRange(min=0),
        multiple=True,
    ),
    option(
        "--incarnation ID",
        "A queue id: of several queues that had this name one after the other, only this one.",
        click.IntRange(min=0),
    ),
    flag(
        "--unrouted", "Messages that no queue took, routed by the bindings of now, instead of QUEUE (administrators)."
    ),
    option("--exchange NAME", "With --unrouted: the exchange that they were published to."),
    option("--since TIME", f"With --unrouted: published since then: {A_TIME}.", TIME),
    option("--until TIME", f"With --unrouted: published until then (default: now): {A_TIME}.", TIME),
    option("--key routing_key KEY", "With --unrouted: only messages with this routing key."),
    option("--name", "Name of the restoration (default: the moment). A message comes back once under one name."),
    option(
        "--rate N",
        "At most N messages a second. The command then waits for its end as long as that takes, unless --timeout is"
        " given.",
        click.IntRange(min=1),
    ),
    flag("--dry-run", "Show what would come back, and change nothing."),
)
def restore(
    settings: CliSettings,
    queue: str | None,
    time: str | None,
    offset: int | None,
    undo: str | None,
    target: str | None,
    only: tuple[str, ...],
    ids: tuple[int, ...],
    incarnation: int | None,
    name: str | None,
    rate: int | None,
    dry_run: bool,
    unrouted: bool,
    **lost: str | None,
) -> None:
    """Bring messages of QUEUE back, from a moment or from before a purge.

    The messages go to the end of the queue, in their old order. The same command again brings no message twice. Ctrl-C
    cancels: what is back stays, and the same command brings the rest.

    \b
    Examples:
      rewindmq restore orders --undo purge
      rewindmq restore orders --undo purge --rate 500
      rewindmq restore orders --at 10m --name before-the-release --dry-run
      rewindmq restore orders --at mark:before-the-release --to orders.checked --only expired
      rewindmq restore --unrouted --exchange orders --since 2h --dry-run
    """
    if unrouted:
        of_queue = (queue, time, offset, undo, target, incarnation, name, rate, *only, *ids)
        restore_unrouted(settings, lost, dry_run, any(given is not None for given in of_queue))
        return
    if queue is None or any(given is not None for given in lost.values()):
        raise CliError(USAGE, "name a QUEUE, or give --unrouted with --exchange, --since, --until and --key")
    if sum(given is not None for given in (time, offset, undo)) != 1:
        raise CliError(USAGE, "give one of --at TIME, --offset N and --undo purge|delete|remove")
    asked: dict[str, object] = {
        "time": None if time is None else moment_from(time),
        "offset": offset,
        "undo": undo,
        "to": target,
        "name": name,
        "rate": rate,
        "incarnation": incarnation,
    }
    content = {key: value for key, value in asked.items() if value is not None}
    if only:
        content["only"] = "all" if only == ("all",) else list(only)
    if ids:
        content["messages"] = list(ids)
    where = path("queues", settings.vhost_name, queue, "restore")
    try:
        client = settings.client(patient=rate is not None)
        answer = client.request("POST", where, json=content | {"dry_run": dry_run}).json()
    except KeyboardInterrupt:
        if not dry_run:
            cancel(settings, where, name)
        raise
    at, fates = cast(dict[str, object], answer["at"]), cast(dict[str, int], answer["fates"])
    settings.banner(
        f"{'Would restore' if dry_run else 'Restoring'} {answer['messages']} messages of queue '{queue}' in vhost"
        f" '{settings.vhost_name}' as of {at['time']} ({at['partition']}, offset {at['offset']}) to"
        f" '{answer['to']}' ..."
    )
    report_bindings(answer, dry_run)
    row: dict[str, Value] = {"name": answer["name"], "messages": answer["messages"]}
    row |= {key: answer[key] for key in ("restored", "duplicates", "refused", "declared", "cancelled") if key in answer}
    row["since"] = ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))
    settings.show([row])


def restore_unrouted(settings: CliSettings, asked: dict[str, str | None], dry_run: bool, more: bool) -> None:
    """Route messages again that no queue took. `more`: other options were given. CliError."""
    content = {key: value for key, value in asked.items() if value is not None}
    if more or not {"exchange", "since"} <= content.keys():
        raise CliError(USAGE, "--unrouted takes --exchange NAME and --since TIME, perhaps --until, --key and --dry-run")
    where = path("vhosts", settings.vhost_name, "restore-unrouted")
    answer = settings.client().request("POST", where, json=content | {"dry_run": dry_run}).json()
    counts = {key: answer[key] for key in ("restored", "duplicates", "refused", "nowhere") if key in answer}
    told = ", ".join(f"{count} {key}" for key, count in counts.items())
    settings.banner(
        f"{'Would route' if dry_run else 'Routed'} {answer['messages']} unrouted messages of exchange"
        f" '{answer['exchange']}' in vhost '{settings.vhost_name}' again: {told}"
    )
    routes = cast(list[dict[str, Value]], answer["routes"])
    settings.show([each | {"queues": ", ".join(cast(list[str], each["queues"]))} for each in routes])


def cancel(settings: CliSettings, where: str, name: str | None) -> None:
    """Cancel the restoration that Ctrl-C interrupted. CliError."""
    click.echo("Cancelling the restoration ... (Ctrl-C again leaves it running)", err=True)
    try:
        answer = settings.client().request("DELETE", where, params={} if name is None else {"name": name}).json()
    except RequestRefused as refused:
        if refused.status != 404:  # it has just ended, or had not begun
            raise
        click.echo("No restoration is under way.", err=True)
        return
    for each in cast(list[dict[str, object]], answer["cancelled"]):
        click.echo(
            f"Cancelled '{each['name']}': {each['back']} of {each['messages']} messages are back in '{each['to']}'. Run"
            " the same command again to bring back the rest.",
            err=True,
        )


def report_bindings(answer: dict[str, object], dry_run: bool) -> None:
    """Print the bindings that were restored or lost, one a line, on stderr."""
    for each in cast(list[dict[str, object]], answer["bindings"]):
        done = "Would bind" if dry_run else "Bound"
        click.echo(f"{done} to exchange '{each['source']}' with key '{each['routing_key']}'", err=True)
    for each in cast(list[dict[str, object]], answer["bindings_lost"]):
        lost = f"exchange '{each['source']}' with key '{each['routing_key']}'"
        click.echo(f"A binding is lost, to {lost}: {each['reason']}", err=True)
