"""Our own command: bring messages back."""

from typing import cast

import click

from rewindmq.engine.cli.client import path
from rewindmq.engine.cli.exits import USAGE, CliError
from rewindmq.engine.cli.settings import Settings, common
from rewindmq.engine.cli.values import Value
from rewindmq.projections.rewind import UnreadableTime, absolute


@click.command("restore")
@click.option(
    "--at",
    "time",
    metavar="TIME",
    help="As the queue was then: ISO 8601 with a zone, mark:NAME, or how long ago: -10m. Given again, -10m is"
    " another moment: say --name, too, so that nothing comes twice.",
)
@click.option("--offset", type=click.IntRange(min=0), help="Instead of a time: an offset of the queue's partition.")
@click.option("--undo", type=click.Choice(["purge", "delete"]), help="Instead: what the last purge or deletion took.")
@click.option("--to", "target", metavar="QUEUE", help="Into another queue of the vhost.")
@click.option(
    "--only",
    multiple=True,
    metavar="FATE",
    help="Messages that ended so: purged, deleted, expired, maxlen, rejected, delivery_limit, transient,"
    " acked, delivered, ready, unacked; or all. May be given again; if not, with --at those that no consumer"
    " took, with --undo what it took.",
)
@click.option("--message", "ids", type=click.IntRange(min=0), multiple=True, help="Only this id; may be given again.")
@click.option(
    "--incarnation",
    type=click.IntRange(min=0),
    metavar="ID",
    help="Only of this one of all queues that bore the name: its queue id.",
)
@click.option("--name", help="Each message comes back once under a name. If not given, the moment is the name.")
@click.option("--dry-run", is_flag=True, help="Only say what would come back.")
@click.argument("queue")
@common
def restore(
    settings: Settings,
    queue: str,
    time: str | None,
    offset: int | None,
    undo: str | None,
    target: str | None,
    only: tuple[str, ...],
    ids: tuple[int, ...],
    incarnation: int | None,
    name: str | None,
    dry_run: bool,
) -> None:
    """Bring messages of QUEUE back: as it was at a moment, or what a purge or a deletion took.

    They come behind what is in the queue, in the order in which they were. Asked again, nothing comes twice."""
    if sum(given is not None for given in (time, offset, undo)) != 1:
        raise CliError(USAGE, "give one of --at TIME, --offset N and --undo purge|delete")
    asked: dict[str, object] = {
        "time": None if time is None else absolute_time(time),
        "offset": offset,
        "undo": undo,
        "to": target,
        "name": name,
        "incarnation": incarnation,
    }
    content = {key: value for key, value in asked.items() if value is not None}
    if only:
        content["only"] = "all" if only == ("all",) else list(only)
    if ids:
        content["messages"] = list(ids)
    where = path("queues", settings.home, queue, "restore")
    answer = settings.client().ask("POST", where, json=content | {"dry_run": dry_run}).json()
    at, fates = cast(dict[str, object], answer["at"]), cast(dict[str, int], answer["fates"])
    settings.banner(
        f"{'Would restore' if dry_run else 'Restoring'} {answer['messages']} messages of queue '{queue}' in vhost"
        f" '{settings.home}' as of {at['time']} ({at['partition']}, offset {at['offset']}) to '{answer['to']}' ..."
    )
    report_bindings(answer, dry_run)
    row: dict[str, Value] = {"name": answer["name"], "messages": answer["messages"]}
    row |= {key: answer[key] for key in ("restored", "duplicates", "refused", "declared") if key in answer}
    row["since"] = ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))
    settings.show(tuple(row), [row])


def report_bindings(answer: dict[str, object], dry_run: bool) -> None:
    """On stderr, a line each."""
    for each in cast(list[dict[str, object]], answer["bindings"]):
        done = "Would bind" if dry_run else "Bound"
        click.echo(f"{done} to exchange '{each['source']}' with key '{each['routing_key']}'", err=True)
    for each in cast(list[dict[str, object]], answer["bindings_lost"]):
        lost = f"exchange '{each['source']}' with key '{each['routing_key']}'"
        click.echo(f"A binding is lost, to {lost}: {each['reason']}", err=True)


def absolute_time(text: str) -> str:
    """A time such as -10m as the one that it means by this machine's clock, before it goes to the broker's machine."""
    try:
        return absolute(text)
    except UnreadableTime as error:
        raise CliError(USAGE, str(error)) from None
