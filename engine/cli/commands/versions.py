"""Our own command `compare_versions`: whether another version of RewindMQ folds this history equally (B-08)."""

from datetime import UTC, datetime
from pathlib import Path

import click

from rewindmq.engine.cli.commands.history import history_error_code
from rewindmq.engine.cli.exits import DATA, DIFFERENT, CliError
from rewindmq.engine.cli.kafka import location_of, with_kafka_and_archive
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import EXISTING_DIRECTORY, command, flag, option
from rewindmq.engine.cli.values import Value
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.versions.compare import FirstDifference, Side, VersionError, first_difference

FIELDS_SHOWN = 20


@command(
    "compare_versions",
    option("--data", "Data directory.", EXISTING_DIRECTORY),
    flag("--effects-only", "Compare effects only: for versions that encode states differently."),
    click.Argument(["other"], type=click.Path(exists=True, file_okay=False, path_type=Path)),
)
@with_kafka_and_archive
def compare_versions(
    settings: CliSettings, data: Path | None, kafka: InKafka | None, effects_only: bool, other: Path
) -> None:
    """Fold the history with another version and show the first difference.

    OTHER is a checkout or a site-packages directory with that version. Needs no broker, and may run beside one. Exit
    code 0 when both versions agree to the last event, otherwise 1.

    \b
    Example:
      rewindmq compare_versions --data ./data ../rewindmq-new
    """

    history = location_of(data, kafka)
    try:
        reader = history.open()
        found = [(log, first_difference(log, other.resolve(), effects_only)) for log in reader.queues]
    except VersionError as error:
        raise CliError(DATA, str(error)) from None
    except LogError as error:
        raise CliError(history_error_code(history, error), str(error)) from None
    rows: list[dict[str, Value]] = [
        {
            "partition": log.name,
            "events": log.next_offset - log.start_offset,
            "result": "equal" if different is None else f"differs from offset {different.offset} on",
        }
        for log, different in found
    ]
    settings.show(rows)
    differences = [different for _, different in found if different is not None]
    for each in differences:
        explain(each)
    if differences:
        raise CliError(DIFFERENT, f"{other} folds {len(differences)} of {len(found)} partitions differently")


def explain(difference: "FirstDifference") -> None:
    """Print the first difference of a partition."""
    when = datetime.fromtimestamp(difference.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    who = difference.user or "the broker"
    click.echo(f"{difference.partition} offset {difference.offset}: {difference.event or 'no event'} by {who}, {when}")
    for name, side in (("here", difference.here), ("there", difference.there)):
        click.echo(f"  {name}: {side_text(side)}")
    fields = list(difference.fields())
    for queue, field, here, there in fields[:FIELDS_SHOWN]:
        click.echo(f"  {queue}: {field} is {here} here, {there} there")
    if len(fields) > FIELDS_SHOWN:
        click.echo(f"  ... and {len(fields) - FIELDS_SHOWN} more fields")


def side_text(side: "Side") -> str:
    """Return the effects in one version, or the error that ended its fold."""
    return f"it cannot continue: {side.ended}" if side.ended else ", ".join(side.effects) or "nothing follows"


COMMANDS = (compare_versions,)
