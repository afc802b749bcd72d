"""Our own commands: seal the history, check the seals, prove an event. All of a data directory, without a broker."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from engine.cli.exits import DATA, DIFFERENT, USAGE, CliError
from engine.cli.settings import Settings, common
from engine.cli.values import Value

T = TypeVar("T")

_data = click.option(
    "--data", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Data directory."
)
_public = click.option(
    "--public-key", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The public half of the key, PEM (openssl pkey -pubout).",
)  # fmt: skip


def _done(code: int, what: Callable[[], T]) -> T:
    """`what()`, with what is wrong as one line and an exit code."""
    from engine.log.base import CorruptLog, LogError
    from engine.log.seals import BadSeal

    try:
        return what()
    except (BadSeal, CorruptLog) as error:
        raise CliError(code, str(error)) from None
    except LogError as error:
        raise CliError(DATA, str(error)) from None


@click.command("seal")
@_data
@click.option(
    "--key", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An Ed25519 private key, PEM (openssl genpkey -algorithm ed25519).",
)  # fmt: skip
@common
def seal(settings: Settings, data: Path, key: Path) -> None:
    """Sign what is in the log by now: Merkle root and hash chain of each segment. May run beside a broker.

    Keep copies of the seals elsewhere: with them, nobody who has both log and key can change the past unseen."""
    from engine.log import seals

    def sealed() -> list[seals.Seal]:
        return list(seals.seal(data, seals.private_key(key), time.time_ns() // 1_000_000))

    settings.banner(f"Sealing {data} ...")
    show(settings, _done(DATA, sealed))


@click.command("verify_seals")
@_data
@_public
@common
def verify_seals(settings: Settings, data: Path, public_key: Path) -> None:
    """Check the whole log against its seals. Exit code 1 when something does not hold."""
    from engine.log import seals

    def checked() -> list[seals.Seal]:
        return list(seals.check(data, seals.public_key(public_key)))

    settings.banner(f"Verifying the seals of {data} ...")
    show(settings, _done(DIFFERENT, checked))


@click.command("prove")
@_data
@click.argument("event", metavar="PARTITION:OFFSET")
@common
def prove(settings: Settings, data: Path, event: str) -> None:
    """Print a proof that an event is in the sealed history: for somebody who has nothing but the public key."""
    from engine.log import seals

    partition, _, offset = event.rpartition(":")
    if not partition or not offset.isdigit():
        raise CliError(USAGE, f"{event!r} is no event: write PARTITION:OFFSET, such as queues-0:123")
    click.echo(json.dumps(_done(DATA, lambda: seals.prove(data, partition, int(offset))), indent=1))


@click.command("check_proof")
@click.argument("proof", type=click.File("r"), default="-")
@_public
@common
def check_proof(settings: Settings, proof: Any, public_key: Path) -> None:
    """Check a proof and show its event. Reads PROOF, or the standard input. Exit code 1 when it does not hold."""
    from engine.log import seals
    from schemas.codec import Decoder
    from schemas.shapes import UndecodableRecord

    try:
        given = json.load(proof)
    except ValueError:
        raise CliError(DATA, f"{proof.name}: not JSON") from None
    sealed, record = _done(DIFFERENT, lambda: seals.check_proof(given, seals.public_key(public_key)))
    try:
        timestamp_ms, actor, event = Decoder().decode(record)
        shown: dict[str, Value] = {"time_ms": timestamp_ms, "user": actor.user, "event": repr(event)}
    except UndecodableRecord:  # of an older schema, or of none
        shown = {"event": record.hex()}
    row: dict[str, Value] = {"partition": sealed.partition, "offset": given["offset"], **shown}
    settings.banner(f"The event is in the history that was sealed at {sealed.time_ms} (ms).")
    settings.show(tuple(row), [row])


def show(settings: Settings, found: "list[Any]") -> None:
    rows: list[dict[str, Value]] = [
        {"partition": each.partition, "from": each.base_offset, "to": each.next_offset - 1, "root": each.root,
         "chain": each.chain, "seal": each.digest}
        for each in found
    ]  # fmt: skip
    settings.show(("partition", "from", "to", "root", "chain", "seal"), rows)


COMMANDS = (seal, verify_seals, prove, check_proof)
