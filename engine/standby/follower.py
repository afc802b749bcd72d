"""The loop of a follower: it asks its leader for the next bytes, writes them, syncs them, and asks again.

    fetch -> keys of the bodies -> LogCopy.add (in a thread: proven, written, synced) -> the next fetch acknowledges
                                                                                 `-> the broker folds along (node.py)

- What lies beside the leader's log comes along: keys of bodies before the records that need them, so that what is
  acknowledged can be read; seals and their openings; where the leader has trimmed, the base, and the copy is trimmed.
  A key that an erasure or the end of a day destroyed is destroyed here once the event is folded.
- A leader that does not answer is asked again, at longer intervals. A leader that refuses ends the follower.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rewindmq.engine.broker.followers import ANSWER_BYTES, MOST_BYTES, Following
from rewindmq.engine.config import Config
from rewindmq.engine.erasure.key_copies import ids_in
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.cut import cut
from rewindmq.engine.log.embedded.directory import partition_directory
from rewindmq.engine.log.embedded.raw_blocks import beginning_of_log
from rewindmq.engine.log.whole_file import OWNER_ALONE
from rewindmq.engine.standby.alignment import asked_of
from rewindmq.engine.standby.client import Away, JoinAgain, Leader, LeaderClient
from rewindmq.engine.standby.log_copy import LogCopy
from rewindmq.projections import system_calls
from rewindmq.projections.store.bases import Bases
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.schemas.events import Event
from rewindmq.schemas.metadata_events import BodiesExpired, HistoryTrimmed, SubjectErased

if TYPE_CHECKING:
    from rewindmq.engine.broker.broker import Broker
    from rewindmq.engine.standby.node import FollowerKeeper

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between two tries
MOST_KNOWN_KEYS: Final = 100_000  # text of the form of an id counts as one
BESIDE_SECONDS: Final = 60.0  # between two looks at what lies beside the leader's log

logger = logging.getLogger(__name__)


class FollowerLog:
    """One follower. `status`: its state, for listings."""

    def __init__(self, config: Config, client: LeaderClient, copy: LogCopy, instance: str) -> None:
        self.status = Following(client.url, caught_up_at=asyncio.get_running_loop().time())
        self._data = config.data
        self._client = client
        self.copy = copy
        self._instance = instance
        self._keys = KeyStore(config.keys_directory)
        self._vault = config.vault
        self._known_keys: set[str] = set()
        self._most = ANSWER_BYTES
        self._told = ""
        self._looked = -BESIDE_SECONDS
        self._moved = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, standby: "FollowerKeeper", broker: "Broker", failed: Callable[[Exception], None]) -> None:
        """Follow and fold from now on. `failed` is called when one of both cannot continue."""
        self._moved.set()

        async def guarded(work: Coroutine[None, None, None]) -> None:
            try:
                await work
            except Exception as error:  # of any kind: otherwise it would look as if the leader had nothing new
                self.status.connected, self.status.problem = False, str(error)
                failed(error)

        works = (self.run(), self.fold_along(standby, broker))
        self._tasks = [asyncio.create_task(guarded(work)) for work in works]

    def close(self) -> None:
        """End the tasks, and close the copy's files."""
        for task in self._tasks:
            task.cancel()
        self.copy.close()

    # -- copying ------------------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Be taken in by the leader. Raises Away, Refused, LogError."""
        await self._client.join(await asyncio.to_thread(asked_of, self._data, self._instance, self.copy.ends))

    async def step(self) -> None:
        """Fetch, write and sync once. Raises Away, JoinAgain, Refused, LogError, OSError."""
        fetched = await self._client.fetch(self.copy.ends, self._most)
        for _, _, _, data in fetched.pieces:
            await self._bring_keys(data)
        needed = await asyncio.to_thread(self.copy.add, fetched.pieces, fetched.target)
        if needed > MOST_BYTES:
            raise LogError(f"the leader sent no block: it would have {needed:,} bytes")
        self._most = max(ANSWER_BYTES, needed)
        status = self.status
        status.connected, status.problem, self._told = True, "", ""
        status.ends = fetched.ends
        status.copied = {name: end.offset for name, end in self.copy.ends.items()}
        if not status.lag_records:
            status.caught_up_at = asyncio.get_running_loop().time()
        if self.copy.has(fetched.target):
            self._moved.set()

    async def run(self, once: bool = False) -> None:
        """Follow the leader for ever; with `once` until the copy has a whole moment.

        Raises Refused, LogError, CorruptLog: it cannot go on."""
        pause = FIRST_PAUSE
        while True:
            try:
                await self.join()
                while not (once and self.copy.moment is not None):
                    await self.step()
                    pause = FIRST_PAUSE
                    await self._look_beside()
                return
            except JoinAgain:
                continue
            except (Away, OSError) as error:
                self._tell(str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _tell(self, problem: str) -> None:
        self.status.connected, self.status.problem = False, problem
        if problem != self._told:
            logger.warning("%s: it is asked again", problem)
            self._told = problem

    # -- folding along ------------------------------------------------------------------------------------------------

    async def fold_along(self, standby: "FollowerKeeper", broker: "Broker") -> None:
        """Fold each moment that is copied. Raises LogError, CorruptLog, NewerHistory, OSError."""
        await self._with_keys(broker.subjects.destroy_what_came_back)
        while True:
            await self._moved.wait()
            self._moved.clear()
            ends = {name: end.offset for name, end in (self.copy.moment or {}).items()}
            destroyed: list[str] = []

            def see(event: Event, destroyed: list[str] = destroyed) -> None:
                if isinstance(event, SubjectErased | BodiesExpired):
                    destroyed.extend(event.key_ids)
                elif isinstance(event, HistoryTrimmed):
                    self._looked = -BESIDE_SECONDS

            await standby.fold(ends, see)
            await self._with_keys(partial(self._destroy, destroyed))
            self.status.folded = ends
            broker.turns.landed()

    # -- beside the log -----------------------------------------------------------------------------------------------

    async def _bring_keys(self, data: bytes) -> None:
        """Take over the keys of the bodies in these bytes. Raises Away, Refused, OSError."""
        ids = [each for each in ids_in(data) if each not in self._known_keys]
        if ids:
            lacking = await asyncio.to_thread(lambda: [each for each in ids if self._keys.content(each) is None])
            for first in range(0, len(lacking), 1_000):
                found = await self._client.keys(lacking[first : first + 1_000])
                await asyncio.to_thread(self._put, found)
            if len(self._known_keys) > MOST_KNOWN_KEYS:
                self._known_keys.clear()
            self._known_keys.update(ids)

    def _put(self, found: Mapping[str, bytes]) -> None:
        if self._vault is not None:
            self._keys.use_vault(self._vault)
        for key_id, key in found.items():
            self._keys.put(key_id, key)

    async def _with_keys(self, work: Callable[[], None]) -> None:
        """Do something with keys in a thread; again while their Vault is away. Raises OSError if they are files."""
        while True:
            try:
                await asyncio.to_thread(work)
                return
            except OSError as error:
                if await asyncio.to_thread(self._keys.vault) is None:
                    raise
                self._tell(str(error))
                await asyncio.sleep(LONGEST_PAUSE)

    def _destroy(self, ids: list[str]) -> None:
        for key_id in ids:
            if self._keys.is_there(key_id):
                self._keys.destroy(key_id)

    async def _look_beside(self) -> None:
        """Take over seals, and trim where the leader has trimmed. Now and then."""
        now = asyncio.get_running_loop().time()
        if now - self._looked < BESIDE_SECONDS or self.copy.moment is None:
            return
        self._looked = now
        leader = await self._client.leader()
        for name, offsets in leader.seals.items():
            directory = partition_directory(self._data, name)
            for offset in offsets:
                seal = directory / f"_{offset:020d}.seal"
                if not seal.exists():
                    await bring(self._client, name, directory / f"_{offset:020d}.secret")
                    await bring(self._client, name, seal)
        for name, start in leader.starts.items():
            if beginning_of_log(partition_directory(self._data, name)) < start:
                await self._trim(name, start)

    async def _trim(self, name: str, start: int) -> None:
        """Let a partition of the copy begin where the leader's begins."""
        base = Bases(self._data / "bases").path(name, start)
        if self.status.folded.get(name, 0) < start or not (base.exists() or await bring(self._client, name, base)):
            return
        try:
            await asyncio.to_thread(cut, self._data, name, start)
            Snapshots(self._data / "snapshots").discard_below(name, start)
            logger.info("%s begins at offset %d, as at the leader", name, start)
        except LogError as error:  # nothing was removed
            logger.error("%s: it was trimmed at the leader, and could not be trimmed here: %s", name, error)


async def bring(client: LeaderClient, partition: str, path: Path) -> bool:
    """Take over a file that lies beside the leader's log, whole and durably.

    Returns False if the leader has it no more. Raises Away, Refused, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"_{path.name}.part")
    try:
        if not await client.download(partition, path.name, part):
            return False
        await asyncio.to_thread(_keep, part, path)
    finally:
        part.unlink(missing_ok=True)
    return True


def _keep(part: Path, path: Path) -> None:
    with part.open("rb") as file:
        if path.suffix == ".secret":  # of a seal
            os.fchmod(file.fileno(), OWNER_ALONE)
        system_calls.sync(file.fileno())
    part.replace(path)
    system_calls.sync_directory(path.parent)


async def bring_bases(client: LeaderClient, data_dir: Path, leader: Leader) -> None:
    """Take over the bases with which the leader's log begins. Raises Away, LogError, OSError."""
    for name, start in leader.starts.items():
        path = Bases(data_dir / "bases").path(name, start)
        if start > 0 and not path.exists() and not await bring(client, name, path):
            raise LogError(f"the leader's {name} begins at offset {start}, and it has no base there: recover instead")
