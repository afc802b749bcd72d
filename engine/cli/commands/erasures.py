"""Our own command: check without a broker that a subject's messages, or those of a day, cannot be read."""

from pathlib import Path

from rewindmq.engine.cli.commands.history import history_error_code
from rewindmq.engine.cli.exits import CONFIG, DATA, DIFFERENT, USAGE, CliError
from rewindmq.engine.cli.kafka import is_kafka_asked_for, location_of, with_kafka_and_archive
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.usage import EXISTING_DIRECTORY, command, option
from rewindmq.engine.cli.values import Value
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.erasure.proof import KeyReport, prove, prove_day
from rewindmq.engine.keeping.location import InKafka
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.rewind import format_time


@command(
    "check_erasure [SUBJECT]",
    option("--day 2026-11-23", "Check the keys of this day of --keep-bodies, instead of a subject."),
    option("--data", "Data directory.", EXISTING_DIRECTORY),
    option("--keys", "Directory of the keys (default: keys in the data directory).", EXISTING_DIRECTORY),
)
@with_kafka_and_archive
def check_erasure(
    settings: CliSettings,
    subject: str | None,
    day: str | None,
    data: Path | None,
    keys: Path | None,
    kafka: InKafka | None,
) -> None:
    """Check that the keys of SUBJECT, or of a day, are destroyed.

    Lists each key with its number of records. Needs no broker. Exit code 1 when a destroyed key still exists, or when
    no key was destroyed.

    \b
    Examples:
      rewindmq check_erasure customer-4711 --data ./data
      rewindmq check_erasure --day 2026-10-23 --data ./data
    """

    if (subject is None) == (day is None):
        raise CliError(USAGE, "give a subject, or a day with --day")
    if data is None and not (is_kafka_asked_for() and keys is not None):
        raise CliError(USAGE, "give --data DIR, or --kafka HOST:PORT and --keys DIR")
    directory = keys
    if directory is None:
        assert data is not None
        directory = data / "keys"
        if not directory.is_dir():
            raise CliError(CONFIG, f"{directory}: there are no keys: name their directory with --keys DIR")
    history = location_of(data, kafka)
    what = f'the erasure of subject "{subject}"' if day is None else f"the end of {day}"
    settings.banner(f"Checking {what}, keys in {directory} ...")
    try:
        reader, store = history.open(), KeyStore(directory)
        proof = prove_day(reader, store, day) if day is not None else prove(reader, store, str(subject))
    except LogError as error:
        raise CliError(history_error_code(history, error), str(error)) from None
    name = f"subject '{subject}'" if day is None else f"the day {day}"
    settings.show([row(each) for each in proof.keys])
    if proof.plain:
        settings.banner(f"{proof.plain} more records name the subject in a header, but are not encrypted")
    if not proof.keys:
        raise CliError(DATA, f"nothing in the history was ever encrypted for {name}")
    states = {each.state for each in proof.keys} - {"destroyed", "expired"}
    if day is not None and not proof.is_expired:
        raise CliError(DIFFERENT, f"{name} has not expired: {', '.join(sorted(states)) or 'its subjects were erased'}")
    if day is None and not proof.is_erased:
        wrong = ", ".join(sorted(states - {"in_use"}))
        raise CliError(DIFFERENT, f"{name} is not erased: {wrong or 'no erasure was requested'}")


def row(report: "object") -> dict[str, Value]:
    """Return a key as a row of the table."""

    assert isinstance(report, KeyReport)
    erasure, expired = report.erasure, report.expired
    end = erasure or expired
    return {
        "key_id": report.key_id,
        "records": report.records,
        "first": report.first or None,
        "key": report.state,
        "erased": None if end is None else format_time(end.time_ms),
        "user": None if erasure is None else erasure.user,
        "reason": erasure.reason if erasure is not None else None if expired is None else "the day has expired",
    }


COMMANDS = (check_erasure,)
