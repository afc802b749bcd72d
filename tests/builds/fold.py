"""Folds histories with the build that runs, and prints what came of them as JSON (test_builds_fold.py).

python -m tests.builds.fold
"""

import hashlib
import json
from collections.abc import Sequence

from rewindmq import builds
from rewindmq.projections.machine import describe
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.machine import Machine
from rewindmq.projections.replay import drive
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import Event
from rewindmq.schemas.values import Actor
from tests.support.random_history import History
from tests.support.samples import GOLDEN, golden, golden_record

ROUNDS = 3  # the first declares the queues that the later ones meet
SEEDS, EVENTS = (5, 6, 7), 2_000


def folded(records: Sequence[bytes]) -> dict[str, str]:
    """The digests of the state, of all effects and of all events, after a fold of these records."""
    machine = Machine("queues-0")
    events, effects = hashlib.sha256(), hashlib.sha256()
    count = 0

    def after(offset: int, timestamp_ms: int, actor: Actor, event: Event, found: list[Effect]) -> None:
        nonlocal count
        events.update(f"{offset} {timestamp_ms} {actor} {event!r}\n".encode())
        effects.update("".join(f"{offset} {describe.effect(each)}\n" for each in found).encode())
        count += len(found)

    drive(machine, [(range(len(records)), records, None)], Decoder(), after=after, bodies=True)
    return {
        "state": machine.digest(),
        "events": events.hexdigest(),
        "effects": f"{count} {effects.hexdigest()}",
        "bytes": hashlib.sha256(b"".join(records)).hexdigest(),
    }


def golden_records(schema: str) -> list[bytes]:
    """The golden samples of a released schema, as the records of one history."""
    return [golden_record(schema, stored) for stored in golden(schema).values()] * ROUNDS


def random_records(seed: int) -> list[bytes]:
    """A random history, encoded by the build that runs."""
    encoder = Encoder()
    return [
        encoder.encode(encoder.prefix(timestamp_ms, actor), event)
        for _, timestamp_ms, actor, event in History(seed).steps(EVENTS)
    ]


def main() -> None:
    """Print the build, and the digests of each history by its name."""
    found: dict[str, object] = {"build": builds.running().kind}
    found |= {schema.name: folded(golden_records(schema.name)) for schema in sorted(GOLDEN.iterdir())}
    found |= {f"seed {seed}": folded(random_records(seed)) for seed in SEEDS}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
