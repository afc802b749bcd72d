"""Our own commands: erase a subject's messages, list what was erased or has expired, and check it without a broker."""

from pathlib import Path
from typing import cast

import click

from rewindmq.engine.cli.client import Refused
from rewindmq.engine.cli.exits import CONFIG, DATA, DIFFERENT, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.kafka import Kafka, with_kafka_and_archive
from rewindmq.engine.cli.settings import Settings, with_settings
from rewindmq.engine.cli.values import Value

ERASURE = ("subject", "key_ids", "time", "user", "reason", "offset")
EXPIRED = ("day", "state", "keys", "time", "offset", "queues")
PROOF = ("key_id", "records", "first", "key", "erased", "user", "reason")


@click.command("erase_subject")
@click.argument("subject")
@click.option("--reason", default="", help="A text that is stored in the history.")
@with_settings
def erase_subject(settings: Settings, subject: str, reason: str) -> None:
    """Destroy the keys of SUBJECT, so that nobody can read its bodies.

    \b
    Example:
      rewindmq erase_subject customer-4711 --reason "letter of 22 November"
    """
    settings.banner(f'Erasing subject "{subject}" ...')
    try:
        settings.client().delete("subjects", subject, **({"reason": reason} if reason else {}))
    except Refused as refused:
        raise CliError(UNAVAILABLE, refused.reason) if refused.status == 404 else refused from None


@click.command("list_erasures")
@with_settings
def list_erasures(settings: Settings) -> None:
    """List the erased subjects, with time, user, reason and keys."""
    settings.banner("Listing erasures ...")
    settings.show(ERASURE, [{name: each[name] for name in ERASURE} for each in settings.client().get("erasures")])


@click.command("list_expired_bodies")
@with_settings
def list_expired_bodies(settings: Settings) -> None:
    """List the days of --keep-bodies: kept, due, held back by queues, or expired.

    Ask the node that owns the partition queues-0: only that one knows of days that have not expired.
    """
    settings.banner("Listing the days of bodies ...")
    rows = []
    for each in settings.client().get("expired-bodies"):
        held = cast(list[dict[str, object]], each["queues"])
        text = ", ".join(f"{queue['vhost']} {queue['queue']}: {queue['messages']}" for queue in held)
        rows.append({name: text if name == "queues" else each[name] for name in EXPIRED})
    settings.show(EXPIRED, rows)


@click.command("check_erasure")
@click.argument("subject", required=False)
@click.option("--day", metavar="2026-11-23", help="Check the keys of this day of --keep-bodies, instead of a subject.")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Data directory.")
@click.option(
    "--keys",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the keys (default: keys in the data directory).",
)
@with_kafka_and_archive
@with_settings
def check_erasure(
    settings: Settings, subject: str | None, day: str | None, data: Path | None, keys: Path | None, kafka: Kafka
) -> None:
    """Check that the keys of SUBJECT, or of a day, are destroyed.

    Lists each key with its number of records. Needs no broker. Exit code 1 when a destroyed key still exists, or when
    no key was destroyed.

    \b
    Examples:
      rewindmq check_erasure customer-4711 --data ./data
      rewindmq check_erasure --day 2026-10-23 --data ./data
    """
    from rewindmq.engine.cli.commands.history import history_error_code
    from rewindmq.engine.erasure.key_store import KeyStore
    from rewindmq.engine.erasure.proof import prove, prove_day
    from rewindmq.engine.log.contract import LogError

    if (subject is None) == (day is None):
        raise CliError(USAGE, "give a subject, or a day with --day")
    if data is None and not (kafka.asked_for and keys is not None):
        raise CliError(USAGE, "give --data DIR, or --kafka HOST:PORT and --keys DIR")
    directory = keys
    if directory is None:
        assert data is not None
        directory = data / "keys"
        if not directory.is_dir():
            raise CliError(CONFIG, f"{directory}: there are no keys, say where they are with --keys DIR")
    history = kafka.history(data)
    what = f'the erasure of subject "{subject}"' if day is None else f"the end of {day}"
    settings.banner(f"Checking {what}, keys in {directory} ...")
    try:
        reader, store = history.open(), KeyStore(directory)
        proof = prove_day(reader, store, day) if day is not None else prove(reader, store, str(subject))
    except LogError as error:
        raise CliError(history_error_code(history, error), str(error)) from None
    name = f"subject '{subject}'" if day is None else f"the day {day}"
    settings.show(PROOF, [row(each) for each in proof.keys])
    if proof.plain:
        settings.banner(f"{proof.plain} more records name the subject in a header and are not encrypted")
    if not proof.keys:
        raise CliError(DATA, f"nothing in the history was ever encrypted for {name}")
    states = {each.state for each in proof.keys} - {"destroyed", "expired"}
    if day is not None and not proof.is_expired:
        raise CliError(DIFFERENT, f"{name} has not expired: {', '.join(sorted(states)) or 'its subjects were erased'}")
    if day is None and not proof.is_erased:
        wrong = ", ".join(sorted(states - {"in_use"}))
        raise CliError(DIFFERENT, f"{name} is not erased: {wrong or 'nobody asked for it'}")


def row(report: "object") -> dict[str, Value]:
    """A key as a row of the table."""
    from rewindmq.engine.erasure.proof import KeyReport
    from rewindmq.projections.rewind import format_time

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


COMMANDS = (erase_subject, list_erasures, list_expired_bodies, check_erasure)
