"""Would another version of RewindMQ fold this history to the same states? (B-08)"""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rewindmq.engine.cli.commands.history import not_there
from rewindmq.engine.cli.exits import DATA, DIFFERENT, USAGE, CliError
from rewindmq.engine.cli.kafka import Kafka, with_kafka
from rewindmq.engine.cli.settings import Settings, common
from rewindmq.engine.cli.values import Value

if TYPE_CHECKING:
    from rewindmq.projections.versions.compare import FirstDifference, Side

FIELDS_SHOWN = 20


@click.command("compare_versions")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Data directory.")
@with_kafka
@click.option(
    "--effects-only",
    is_flag=True,
    help="Compare what events led to, not the states: for versions that encode those otherwise.",
)
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@common
def compare_versions(settings: Settings, data: Path | None, kafka: Kafka, effects_only: bool, other: Path) -> None:
    """Fold the history by this version and by the one in OTHER (a checkout, or a site-packages directory), and name the
    first event that they take differently.

    Needs no broker, and may run beside one. Exit code 0 when they agree to the last event, else 1."""
    from rewindmq.engine.log.contract import LogError
    from rewindmq.projections.versions.compare import VersionError, first_difference

    if data is None and kafka.servers is None:
        raise CliError(USAGE, "where is the history: --data, or --kafka?")
    history = kafka.history(data)
    try:
        reader = history.open()
        found = [(log, first_difference(log, other.resolve(), effects_only)) for log in reader.queues]
    except VersionError as error:
        raise CliError(DATA, str(error)) from None
    except LogError as error:
        raise CliError(not_there(history, error), str(error)) from None
    rows: list[dict[str, Value]] = [
        {
            "partition": log.name,
            "events": log.next_offset - log.start_offset,
            "result": "equal" if different is None else f"differs from offset {different.offset} on",
        }
        for log, different in found
    ]
    settings.show(("partition", "events", "result"), rows)
    differences = [different for _, different in found if different is not None]
    for each in differences:
        explain(each)
    if differences:
        raise CliError(DIFFERENT, f"{other} folds {len(differences)} of {len(found)} partitions otherwise")


def explain(difference: "FirstDifference") -> None:
    when = datetime.fromtimestamp(difference.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    who = difference.user or "the broker"
    click.echo(f"{difference.partition} offset {difference.offset}: {difference.event or 'no event'} by {who}, {when}")
    for name, side in (("here", difference.here), ("there", difference.there)):
        click.echo(f"  {name}: {said(side)}")
    fields = list(difference.fields())
    for queue, field, here, there in fields[:FIELDS_SHOWN]:
        click.echo(f"  {queue}: {field} is {here} here, {there} there")
    if len(fields) > FIELDS_SHOWN:
        click.echo(f"  ... and {len(fields) - FIELDS_SHOWN} more fields")


def said(side: "Side") -> str:
    return f"it cannot go on: {side.ended}" if side.ended else ", ".join(side.effects) or "nothing follows"


COMMANDS = (compare_versions,)
