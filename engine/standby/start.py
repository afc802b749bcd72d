"""The start of a follower: its directory becomes a copy of the leader's log, up to a whole moment.

lock -> the leader is asked for its log -> an old leader's directory goes back to where the histories branched
     -> a new one gets its layout, and the bases with which the leader's log begins -> DIR/follower.json
     -> torn tails cut (engine/log/embedded/writer.py) -> copied until there is a whole moment, if there was none yet

If the leader is away, a copy that has a whole moment serves it, and the leader is asked again.
"""

import asyncio
import logging
import secrets
import shutil
from pathlib import Path

from rewindmq.engine.config import Config
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import (
    METADATA,
    RECOVERY,
    layout_file,
    partition_directory,
    queue_partition,
    read_layout,
    write_layout,
)
from rewindmq.engine.log.embedded.roles import FENCED, FOLLOWER, FOLLOWERS, read_note, remove_note, write_note
from rewindmq.engine.rewind.id_index_process import DIRECTORY
from rewindmq.engine.standby.alignment import ASIDE, asked_of, go_back, way_back
from rewindmq.engine.standby.client import Away, Leader, LeaderClient
from rewindmq.engine.standby.follower import FollowerLog, bring_bases
from rewindmq.engine.standby.log_copy import MOMENT, LogCopy, Moments

logger = logging.getLogger(__name__)


async def open_copy(config: Config) -> FollowerLog:
    """Make or open the copy, and follow the leader until the copy has a whole moment. The caller holds the lock.

    Raises LogError, CorruptLog, StoreError, OSError."""
    client = LeaderClient(config)
    try:
        instance = await _prepare(config.data, client)
        copy = await asyncio.to_thread(LogCopy, config.data)
        try:
            follower = FollowerLog(config, client, copy, instance)
            if copy.moment is None:
                logger.info("the log of %s is copied to %s", client.url, config.data)
                await follower.run(once=True)
        except BaseException:
            copy.close()
            raise
    except BaseException:
        await client.close()
        raise
    return follower


async def _prepare(data_dir: Path, client: LeaderClient) -> str:
    """Make the directory one of a copy. Returns which copy it is."""
    note = read_note(data_dir / FOLLOWER)
    if (data_dir / "kafka").exists():
        raise LogError(f"{data_dir}: holds the state of a node on Kafka: a copy needs another directory")
    if (data_dir / "log" / RECOVERY).exists():
        raise LogError(f"{data_dir}: its recovery from an archive was cut short: run `rewindmq recover` again")
    try:
        leader = await client.leader()
    except Away as error:
        if note is None or not _has_moment(data_dir):
            raise LogError(str(error)) from None
        logger.warning("%s: the copy is served as it is", error)
        return str(note["instance"])
    instance = secrets.token_hex(16) if note is None else str(note["instance"])
    if layout_file(data_dir).exists():
        await _go_back(data_dir, leader)
        if note is None:  # a broker's own directory becomes a copy only if the leader takes it
            await client.join(await asyncio.to_thread(asked_of, data_dir, instance))
    else:
        await _begin(data_dir, client, leader)
    write_note(data_dir / FOLLOWER, {"leader": client.url, "instance": instance})
    remove_note(data_dir / FENCED)
    remove_note(data_dir / FOLLOWERS)
    return instance


def _has_moment(data_dir: Path) -> bool:
    moments = Moments(data_dir)
    moments.close()
    return moments.moment is not None


async def _go_back(data_dir: Path, leader: Leader) -> None:
    """Let the directory end where the leader's history branched from it, if it did."""
    there = read_layout(data_dir)
    if there != leader.queue_partitions:
        raise LogError(f"{data_dir}: has {there} queue partitions, and the leader {leader.queue_partitions}")
    way = await asyncio.to_thread(way_back, data_dir, leader)
    if way is not None:
        aside = await asyncio.to_thread(go_back, data_dir, way)
        (data_dir / MOMENT).unlink(missing_ok=True)
        shutil.rmtree(data_dir / DIRECTORY, ignore_errors=True)  # the index of ids is derived
        counts = ", ".join(f"{count} of {name}" for name, count in aside.items())
        logger.warning(
            "the history went on at %s: records that only this directory had are kept in %s: %s",
            leader.node,
            data_dir / ASIDE,
            counts,
        )


async def _begin(data_dir: Path, client: LeaderClient, leader: Leader) -> None:
    """Make the directories of an empty copy."""
    for name in (METADATA, *map(queue_partition, range(leader.queue_partitions))):
        partition_directory(data_dir, name).mkdir(parents=True, exist_ok=True)
    await bring_bases(client, data_dir, leader)
    write_layout(data_dir, leader.queue_partitions)
