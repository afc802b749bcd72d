"""Our own commands: seal the history, check the seals, prove an event.

They read a data directory, or topics in Kafka, and ask no broker.
"""

import base64
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from rewindmq.engine.cli.exits import DATA, DIFFERENT, UNAVAILABLE, USAGE, CliError
from rewindmq.engine.cli.formatters import MACHINE_READABLE
from rewindmq.engine.cli.kafka import is_kafka_asked_for, location_asked_for, with_kafka_and_archive
from rewindmq.engine.cli.seal_register import Outside, registered, witness_key
from rewindmq.engine.cli.settings import CliSettings
from rewindmq.engine.cli.shapes import CheckedProof
from rewindmq.engine.cli.usage import DIRECTORY, EXISTING_DIRECTORY, FILE, command, flag, option
from rewindmq.engine.cli.values import Value
from rewindmq.engine.keeping.location import InDirectory, InKafka, retry_if_trimmed
from rewindmq.engine.keeping.seals import seal as seals
from rewindmq.engine.keeping.seals import sealer as sealing
from rewindmq.engine.keeping.seals.partitions import sealable_partitions
from rewindmq.engine.keeping.seals.proof_verifier import Proven, Unusable, parsed_proof, sentences
from rewindmq.engine.keeping.seals.register import Register
from rewindmq.engine.keeping.seals.seal import BadFile, BadSeal, StoredSeal
from rewindmq.engine.keeping.seals.sealer import Checked
from rewindmq.engine.log.contract import CorruptLog, LogError
from rewindmq.engine.log.embedded.directory import METADATA
from rewindmq.projections import system_calls
from rewindmq.projections.machine import describe
from rewindmq.projections.rewind import format_time
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.shapes import UndecodableRecord

T = TypeVar("T")

_data = option("--data", "Data directory, unless --kafka is given.", EXISTING_DIRECTORY)
_public = option(
    "--public-key public_keys",
    "The public key, PEM (openssl pkey -pubout). May be given several times, for older keys.",
    FILE,
    required=True,
    multiple=True,
)


_register = option("--register", "The directory of a register: all seals in one order, with signed notes.", DIRECTORY)


def _existing(register: Path) -> Path:
    """Return the directory of a register. Raises CliError where there is none."""
    if not register.is_dir():
        raise CliError(DATA, f"{register}: no register is here: 'rewindmq seal --register' makes one")
    return register


def _done(code: int, what: Callable[[], T], in_kafka: bool = False) -> T:
    """Call `what`, again if the history is trimmed meanwhile, and turns its errors into CliErrors.

    Exit codes: `code` when the log or the seals were changed, DATA for a key or a log that cannot be used, UNAVAILABLE
    for a Kafka that cannot be used."""

    try:
        return retry_if_trimmed(what)
    except (BadSeal, CorruptLog) as error:
        raise CliError(code, str(error)) from None
    except LogError as error:
        away = in_kafka and not isinstance(error, BadFile)
        raise CliError(UNAVAILABLE if away else DATA, str(error)) from None


def _location(data: Path | None, kafka: InKafka | None) -> InDirectory | InKafka:
    """Return the location of the history to seal or to check.

    Raises CliError."""
    if data is not None and is_kafka_asked_for():
        raise CliError(USAGE, "say where the history is: --data DIR, or --kafka HOST:PORT")
    return location_asked_for(data, kafka)


def _name(location: InDirectory | InKafka) -> str:
    return location.name if isinstance(location, InKafka) else str(location)


@command(
    "seal",
    _data,
    option("--key", "An Ed25519 private key, PEM (openssl genpkey -algorithm ed25519).", FILE, required=True),
    option("--public-key older", "The public half of an older key. May be given several times.", FILE, multiple=True),
    option(
        "--copies",
        "A file of yours: new seals are appended, and the seals in it must still be in the log.",
        click.Path(dir_okay=False, path_type=Path),
    ),
    _register,
    option("--origin NAME", "The name of a new register, such as example.org/orders."),
    option("--timestamp authority URL", "A time-stamp authority (RFC 3161) that stamps the register."),
    option("--timestamp-roots", "Certificates, PEM: the certificate of the authority must lead to one of them.", FILE),
    option(
        "--witness witnesses VKEY URL",
        "A witness that cosigns the register: its key, and its address. May be given several times.",
        nargs=2,
        multiple=True,
    ),
)
@with_kafka_and_archive
def seal(
    settings: CliSettings,
    data: Path | None,
    kafka: InKafka | None,
    key: Path,
    older: tuple[Path, ...],
    copies: Path | None,
    register: Path | None,
    **outside: Any,
) -> None:
    """Sign all that is in the log: a Merkle root and the hash chain of each partition.

    May run beside brokers. Keep the copies or the register on another machine: without them nobody sees that the newest
    seals were removed. A register is for readers who trust neither log nor key: other people stamp and cosign it.

    \b
    Examples:
      rewindmq seal --data ./data --key seal.pem --copies seals.txt
      rewindmq seal --data ./data --key seal.pem --register register --origin example.org/orders
    """

    location = _location(data, kafka)
    asked = Outside.of(register, **outside)
    lacking: list[str] = []

    def sealed() -> "list[StoredSeal]":
        private, before = seals.private_key(key), seals.public_keys(older)
        kept = seals.read_copies(copies) if copies is not None and copies.exists() else []
        new = []
        now_ms = time.time_ns() // 1_000_000
        with registered(asked, private, before) as book:
            kept += book.seals
            for partition in sealable_partitions(location):
                for each in sealing.seal(partition, private, now_ms, before, kept):
                    new.append(each)
                    if copies is not None:
                        _add_copy(copies, each)
                book.add(partition, new)
            lacking[:] = book.sign()
        return new

    settings.banner(f"Sealing {_name(location)} ...")
    rows = [_row(each.seal) for each in _done(DATA, sealed, isinstance(location, InKafka))]
    settings.show(rows)
    if lacking:
        more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        raise CliError(UNAVAILABLE, f"{lacking[0]}{more}; the seals and the note are kept: the next 'seal' asks again")


def _add_copy(path: Path, sealed: "StoredSeal") -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(sealed.line + "\n")
        file.flush()
        system_calls.sync(file.fileno())


@command(
    "verify_seals",
    _data,
    _public,
    option("--copies", "A file or directory of seals that were kept elsewhere: all must still be in the log.", FILE),
    _register,
    option(
        "--parent-copies",
        "Of a fork: seals of the history from which it branched, with their secrets (export_seals --secrets). They must"
        " hold for what both have in common.",
        FILE,
    ),
)
@with_kafka_and_archive
def verify_seals(
    settings: CliSettings,
    data: Path | None,
    kafka: InKafka | None,
    public_keys: tuple[Path, ...],
    copies: Path | None,
    register: Path | None,
    parent_copies: Path | None,
) -> None:
    """Check the whole log against its seals.

    Exit code 1 when a seal does not hold. Only --copies finds that the newest seals were removed with their events.

    \b
    Example:
      rewindmq verify_seals --data ./data --public-key seal.pub.pem --copies seals.txt
    """

    location = _location(data, kafka)

    def checked() -> "list[Checked]":
        keys = seals.public_keys(public_keys)
        kept = [] if copies is None else seals.read_copies(copies)
        partitions = sealable_partitions(location)
        found: list[Checked] = []
        if register is not None:
            book = Register(_existing(register))
            kept += book.seals
            found += [sealing.Checked(None, sealing.Harm("register", None, what)) for what in book.check(keys)]
        if parent_copies is None or kept or any(each.seals()[0] for each in partitions):
            found += sealing.check(partitions, keys, kept)
        if parent_copies is not None:
            of_parent = seals.read_copies(parent_copies)
            found += sealing.check_parent(partitions, keys, of_parent, _branched_at(data))
        return found

    settings.banner(f"Verifying the seals of {_name(location)} ...")
    found = _done(DIFFERENT, checked, isinstance(location, InKafka))
    settings.show([_checked_row(each) for each in found])
    harms = [each.harm for each in found if each.harm is not None]
    if harms:
        more = f" (and {len(harms) - 1} more)" if len(harms) > 1 else ""
        worst = next((harm for harm in harms if harm.records), harms[0])
        raise CliError(DIFFERENT, f"{worst}{more}")


def _branched_at(data: Path | None) -> dict[str, int]:
    """Return the offset by partition at which a fork branched.

    Raises LogError, or CliError if the history is not a fork."""

    forks = [] if data is None else InDirectory(data).open().topology().history.forks
    if not forks:
        raise CliError(USAGE, "--parent-copies: this history is not a fork: give the copies with --copies")
    return {METADATA: forks[-1].at, **dict(forks[-1].event.positions)}


@command(
    "export_seals",
    _data,
    flag("--secrets", "With the secret and the hash chain of each: for --parent-copies, and to keep them safe."),
)
@with_kafka_and_archive
def export_seals(settings: CliSettings, data: Path | None, kafka: InKafka | None, secrets: bool) -> None:
    """Print the seals, one a line, for --copies of the other commands.

    With --secrets they are for your eyes alone: they show if a guess of a body that was withheld is right."""

    location = _location(data, kafka)

    def found() -> "list[StoredSeal]":
        partitions = sealable_partitions(location)
        both = [(partition, each) for partition in partitions for each in partition.seals()[0]]
        return [sealing.with_secret(partition, each) if secrets else each for partition, each in both]

    for each in _done(DATA, found, isinstance(location, InKafka)):
        click.echo(each.line)


@command(
    "prove",
    _data,
    _register,
    flag(
        "--no-body", "Leave out the body, or the hash of a password: the proof shows that it was sealed, and its size."
    ),
    click.Argument(["event"], metavar="PARTITION:OFFSET"),
)
@with_kafka_and_archive
def prove(
    settings: CliSettings, data: Path | None, kafka: InKafka | None, register: Path | None, no_body: bool, event: str
) -> None:
    """Print a proof that an event is in the sealed history.

    `check_proof` checks it with the public key alone, and so does the file proof_verifier.py, without RewindMQ. With
    --register the proof has what witnesses and a time-stamp authority signed.

    \b
    Examples:
      rewindmq prove --data ./data queues-0:123 > proof.json
      rewindmq prove --data ./data --register register queues-0:123 > proof.json
    """

    location = _location(data, kafka)
    name, _, offset = event.rpartition(":")
    if not name or not offset.isdigit():
        raise CliError(USAGE, f"{event!r} is not an event: write PARTITION:OFFSET, such as queues-0:123")

    def proof() -> dict[str, Any]:
        book = None if register is None else Register(_existing(register))
        for partition in sealable_partitions(location):
            if partition.name == name:
                return sealing.prove(partition, int(offset), book, not no_body)
        raise LogError(f"{_name(location)}: there is no partition {name}")

    click.echo(json.dumps(_done(DATA, proof, isinstance(location, InKafka)), indent=1, allow_nan=False))


@command(
    "check_proof",
    _public,
    option("--origin NAME", "The name that the register must have."),
    option(
        "--witness witnesses VKEY",
        "The key of a witness that must have cosigned. May be given several times.",
        multiple=True,
    ),
    option("--timestamp-roots", "Certificates, PEM, to which the time stamp must lead. Needs openssl.", FILE),
    option("--format form", "text, or a JSON object for programs.", click.Choice(["text", "json"])),
    click.Argument(["proof"], type=click.File("rb"), default="-"),
)
def check_proof(
    settings: CliSettings,
    proof: Any,
    public_keys: tuple[Path, ...],
    origin: str | None,
    witnesses: tuple[str, ...],
    timestamp_roots: Path | None,
    form: str | None,
) -> None:
    """Check a proof and show its event.

    Reads PROOF, or the standard input. Exit code 1 when the proof does not hold. What --origin, --witness and
    --timestamp-roots name must be in the proof.

    \b
    Example:
      rewindmq check_proof proof.json --public-key seal.pub.pem
    """

    try:
        given = parsed_proof(proof.read())
    except (ValueError, RecursionError) as error:
        raise CliError(DATA, f"{proof.name}: not JSON: {error}") from None
    named = [witness_key(each) for each in witnesses]

    def checked() -> "Proven":
        try:
            return seals.check_proof(given, seals.public_keys(public_keys), origin, named, timestamp_roots)
        except Unusable as error:
            raise CliError(error.code, str(error)) from None
        except OSError as error:
            raise seals.BadFile(f"{error.filename}: {error.strerror}") from None

    proven = _done(DIFFERENT, checked)
    found: CheckedProof = {
        "partition": proven.partition,
        "offset": proven.offset,
        "sealed": format_time(proven.seal["time_ms"]),
        "seal": proven.digest,
        "event": None,
    }
    _add_register(found, proven)
    what = _add_event(found, proven)
    if form == "json" or (form is None and settings.formatter in MACHINE_READABLE):
        click.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
        return
    settings.banner(
        f"The proof holds: event {proven.offset} of {proven.partition} is in the history that was sealed at"
        f" {found['sealed']}."
    )
    sizes = ", ".join(f"{size} bytes" for size in proven.withheld)
    body = f"withheld, {sizes}" if proven.withheld else found.get("body")
    said = {"time": found.get("time"), "user": found.get("user"), "why": found.get("why"), "what": what, "body": body}
    for name, value in said.items():
        if value is not None:
            click.echo(f"{name + ':':<6}{describe.printable(value) or '-'}")
    for sentence in sentences(proven)[2 + len(proven.withheld) :] if proven.origin is not None else ():
        click.echo(describe.printable(sentence))


def _add_register(found: CheckedProof, proven: "Proven") -> None:
    """Add the register of a checked proof, if the proof has one."""
    if proven.origin is None or proven.entry is None or proven.size is None:
        return
    found["register"] = {
        "origin": proven.origin,
        "entry": proven.entry,
        "size": proven.size,
        "witnesses": [{"name": name, "seconds": seconds} for name, seconds in proven.witnesses],
        "time_stamp": proven.stamp,
        "time_stamp_is_checked": proven.stamp_is_checked,
    }


def _add_event(found: CheckedProof, proven: Proven) -> str:
    """Add the event of a proven record, and return it in words."""
    from rewindmq.engine.keeping.seals.in_topic import split_time
    from rewindmq.schemas.service_records import SharedDecoder

    is_in_kafka = proven.seal["log"] == "kafka"
    if is_in_kafka and not proven.record:
        return "no event: a transaction ended here"
    if proven.withheld:
        found["withheld"] = proven.withheld
    logged_ms, sealed = split_time(proven.record) if is_in_kafka else (None, proven.record)
    decoder = SharedDecoder() if is_in_kafka and not proven.withheld else Decoder()
    try:
        timestamp_ms, actor, event = decoder.decode(sealed)
    except UndecodableRecord:  # of an older schema, or of none
        found["record"] = sealed.hex()
        return f"a record that this version cannot read: {sealed.hex()}"
    found["time"] = format_time(timestamp_ms if logged_ms is None else logged_ms)
    found["user"] = actor.user
    found["session"] = actor.session
    if actor.reason:
        found["why"] = actor.reason
    found["event"] = type(event).__name__
    if isinstance(event, Published) and proven.withheld and event.encryption is None:
        event = replace(event, body_size=proven.withheld[0])
    found["fields"] = describe.event_fields(event)
    if isinstance(event, Published) and not proven.withheld:
        _add_body(found, event.body)
    return describe.event(event)


def _add_body(found: CheckedProof, body: bytes) -> None:
    """Add a body: as text when it is UTF-8, otherwise as base64."""
    try:
        found["body"], found["body_encoding"] = body.decode(), "utf-8"
    except UnicodeDecodeError:
        found["body"], found["body_encoding"] = base64.b64encode(body).decode(), "base64"


def _row(sealed: Any) -> dict[str, Value]:
    return {
        "partition": sealed.partition,
        "from": sealed.base_offset,
        "to": sealed.next_offset - 1,
        "root": sealed.root,
        "chain": sealed.chain,
        "seal": sealed.digest,
    }


def _checked_row(checked: "Checked") -> dict[str, Value]:
    if checked.beyond is not None:
        what = f"does not count: a seal of the parent, from which this history branched at offset {checked.beyond}"
        return _row(checked.seal) | {"result": what}
    if checked.harm is None:
        return _row(checked.seal) | {"result": checked.unchecked or "holds"}
    harm = checked.harm
    return {
        "partition": harm.partition,
        "from": harm.offset,
        "to": None,
        "root": None,
        "chain": None,
        "seal": None,
        "result": harm.what,
    }


COMMANDS = (seal, verify_seals, export_seals, prove, check_proof)
