"""Makes a copy the leader: `rewindmq promote`.

    1  the copy goes back to its last moment: partitions that were written ahead of it are cut back (cut_back.py)
    2  HistoryForked in the metadata log: from here on this is a separate history, with a random identity
    3  DIR/follower.json is removed: a broker starts here

A kill in between leaves a copy. The command is run again, or the copy follows again: both drop an event of step 2.

The old leader is not asked here. It learns of the promotion when a node of the new history asks it to be taken in
(`tell`), or when it follows that one. Until then it goes on. With `--confirm-after follower` it confirms nothing
meanwhile, because this copy acknowledges nothing from now on.
"""

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rewindmq.engine.keeping.cut_back import cut_back, drop_behind
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory
from rewindmq.engine.log.embedded.ends import End
from rewindmq.engine.log.embedded.lock import lock
from rewindmq.engine.log.embedded.raw_blocks import end_at
from rewindmq.engine.log.embedded.roles import FOLLOWER, FOLLOWERS, read_note, remove_note
from rewindmq.engine.log.embedded.root import root_of
from rewindmq.engine.log.embedded.writer import PartitionWriter
from rewindmq.engine.standby.alignment import ASIDE, asked_of, forks_of
from rewindmq.engine.standby.client import LeaderClient
from rewindmq.engine.standby.log_copy import MOMENT, Moments
from rewindmq.projections.rewind import format_time
from rewindmq.schemas.metadata_events import HistoryForked
from rewindmq.schemas.older_schemas import encoder_under
from rewindmq.schemas.values import BROKER

PROMOTED = "promotion"  # the beginning of the moment of a fork that is a promotion


@dataclass(frozen=True, slots=True)
class Promoted:
    """A promotion. `ends`: by partition, where the new history begins. `aside`: how many records are kept aside."""

    leader: str
    identity: str
    ends: dict[str, int]
    aside: dict[str, int]


def promote(data_dir: Path) -> Promoted:
    """Make a copy the leader.

    Raises LogInUse: the follower still runs. LogError: it is no copy, or was never level with its leader. CorruptLog,
    StoreError, OSError."""
    if not data_dir.is_dir():
        raise LogError(f"{data_dir}: there is no such directory")
    descriptor = lock(data_dir)
    try:
        note = read_note(data_dir / FOLLOWER)
        if note is None:
            raise LogError(f"{data_dir}: not a copy that follows a leader (there is no {FOLLOWER})")
        leader = str(note.get("leader"))
        moments = Moments(data_dir)
        moment = moments.moment
        moments.close()
        if moment is None:
            raise LogError(
                f"{data_dir}: the copy was never level with its leader: partitions may not fit each other; go on"
                " following, or `rewindmq recover` from an archive"
            )
        for name, end in moments.synced.items():
            drop_behind(partition_directory(data_dir, name), end)
        aside = data_dir / ASIDE / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        went = {name: cut_back(data_dir, name, end, aside) for name, end in moment.items()}
        _require_ends(data_dir, moment)
        identity = _fork(data_dir, leader, moment)
        (data_dir / MOMENT).unlink(missing_ok=True)
        (data_dir / FOLLOWERS).unlink(missing_ok=True)  # from a time when it led: followers join again
        remove_note(data_dir / FOLLOWER)
        ends = {name: end.offset for name, end in moment.items()}
        return Promoted(leader, identity, ends, {name: count for name, count in went.items() if count})
    finally:
        os.close(descriptor)


def _require_ends(data_dir: Path, moment: Mapping[str, End]) -> None:
    """Check that the copy ends where it said that it was synced. Raises LogError."""
    for name, end in moment.items():
        if end.offset and end_at(partition_directory(data_dir, name), end.offset) != end:
            raise LogError(
                f"{data_dir}: {name} was synced up to offset {end.offset}, and does not end there: the disk lost it"
            )


def _fork(data_dir: Path, leader: str, moment: Mapping[str, End]) -> str:
    """Log that the history continues here. Returns its identity."""
    forks = forks_of(data_dir)
    parent = forks[-1].event.identity if forks else root_of(data_dir)
    positions = tuple((name, end.offset) for name, end in moment.items() if name != METADATA)
    writer = PartitionWriter(partition_directory(data_dir, METADATA), 1 << 62, begin=False)
    try:
        now_ms = max(time.time_ns() // 1_000_000, writer.place.max_timestamp_ms)
        said = f"{PROMOTED} {format_time(now_ms)}"
        event = HistoryForked(parent, secrets.token_hex(32), said, positions, leader)
        encoder = encoder_under(writer.schema)
        writer.write([encoder.encode(encoder.prefix(now_ms, BROKER), event)], now_ms)
    finally:
        writer.close()
    return event.identity


async def tell(client: LeaderClient, data_dir: Path) -> None:
    """Tell the old leader of the promotion: it stops. Raises Away; Refused, with the word `fenced`: it stops."""
    await client.join(asked_of(data_dir, "promoted"))
