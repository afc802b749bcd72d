"""The followers of this broker: other machines that copy its synced log (engine/standby). It is their leader.

    leader()                                      where the log begins and ends, where the history branched
    join(name, JoinRequest(...)) -> token         refused: another history, a log that is ahead, or lacks records
    fetch(token, ends) -> FollowerAnswer          the next synced bytes of all partitions; waits until there are some
                                                  `ends`: what the follower has synced

- A follower asks, writes, syncs, and asks again. So a slow one slows nobody, and nothing is buffered for it.
- A **moment** is the durable end of all partitions after one commit. Events of one moment belong together. An
  answer leads toward a moment, and the question behind it acknowledges the moment.
- A follower is known by its name and by the copy that it writes (`instance`), in DIR/followers.json, from its first
  join on. With `--confirm-after follower` confirms, and all else that waits for the disk, wait until each known
  follower has acknowledged. So this broker confirms nothing once one of its followers was promoted: that one never
  acknowledges again. `forget` takes a follower from the list, by hand.
- A history that branched from this one at a place that this log has (HistoryForked) is a promotion. Once this broker is
  told of it, it confirms nothing more, notes it in DIR/fenced.json, and stops.
- The followers may be away for any time. Once MOST_BEHIND records wait for them, publishers are held back. Records
  that were confirmed before do not wait again, when a leader starts or a follower joins. If confirms have waited for
  AWAY_SECONDS and no acknowledgement let one go, the log says so, whether more is published or not.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from rewindmq.engine.config import Config
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import METADATA, partition_directory
from rewindmq.engine.log.embedded.ends import End
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.embedded.raw_blocks import Piece, beginning_of_log, chain_at, piece_behind
from rewindmq.engine.log.embedded.roles import FENCED, FOLLOWERS, fence_text, noted_followers, write_note
from rewindmq.projections.topology.about_history import AboutHistory, Fork

if TYPE_CHECKING:
    from rewindmq.engine.broker.turns import Turns

FOLLOWER = "follower"  # the value of --confirm-after
WAIT_SECONDS: Final = 5.0  # a question waits so long for new records
AWAY_SECONDS: Final = 15.0  # a follower that asks nothing for so long is away
ANSWER_BYTES: Final = 4 << 20  # of an answer, unless a single block is larger
HEADER_BYTES: Final = 1 << 20  # a piece has so many bytes at least: the header of a segment is not cut
MOST_BYTES: Final = 1 << 30
MOST_BEHIND: Final = 200_000
MOST_FOLLOWERS: Final = 16
NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
LOST_END = "the leader lost its end, or came from a backup; `rewindmq promote` the copy, or begin anew"
HELD = "{} records wait for a follower's acknowledgement (--confirm-after follower)"

logger = logging.getLogger(__name__)


class FollowerRefused(Exception):
    """A follower is refused; `word` says why in a word."""

    def __init__(self, word: str, text: str) -> None:
        super().__init__(text)
        self.word = word


class Fenced(LogError):
    """A follower of this broker was promoted: this one may not go on."""


class HoldingPartition(Protocol):
    """A partition whose confirms can wait for followers."""

    name: str

    def hold_above(self, offset: int | None) -> None:
        """Take nothing above this offset for durable that a client waits for; None: what is synced here is durable."""


@dataclass(frozen=True, slots=True)
class Branching:
    """A promotion: where the history of a follower branched, as offset and hash chain by partition."""

    identity: str
    positions: dict[str, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The question of a follower that joins.

    `instance`: the copy. `root`: the identity with which its history begins; None: the copy is empty. `lineage`: the
    identities of the forks in its log. `ends`: offset and hash chain by partition. `newer`: where its history branched,
    for each fork that this broker may not know."""

    instance: str
    root: str | None
    lineage: tuple[str, ...]
    ends: dict[str, tuple[int, bytes]]
    newer: tuple[Branching, ...] = ()


@dataclass(slots=True)
class Follower:
    """One follower, as its leader knows it."""

    name: str
    instance: str
    token: str = ""
    address: str = ""
    seen: float | None = None  # by the loop's clock; None: not since this broker started
    acknowledged: dict[str, int] = field(default_factory=dict)
    acknowledged_at: float = 0.0  # when the last acknowledged moment was the newest one
    target: dict[str, End] = field(default_factory=dict)  # the moment toward which it is led
    target_at: float = 0.0


@dataclass(frozen=True, slots=True)
class FollowerAnswer:
    """The next bytes for a follower. `target`: the offsets of the moment toward which they lead. `ends`: of now."""

    target: dict[str, int]
    ends: dict[str, int]
    pieces: list[tuple[str, Piece]]


@dataclass(slots=True)
class Following:
    """The state of this follower. `problem`: why it is not connected.

    Offsets by partition: `ends` of the leader's log, `copied` of the copy, `folded` of its state."""

    leader: str
    connected: bool = False
    problem: str = ""
    ends: dict[str, int] = field(default_factory=dict)
    copied: dict[str, int] = field(default_factory=dict)
    folded: dict[str, int] = field(default_factory=dict)
    caught_up_at: float = 0.0  # by the loop's clock

    @property
    def lag_records(self) -> int:
        """The number of the leader's records that are not here, as far as is known."""
        return sum(max(0, end - self.copied.get(name, 0)) for name, end in self.ends.items())

    @property
    def unfolded_records(self) -> int:
        """The number of copied records that listings do not show yet."""
        return sum(max(0, end - self.folded.get(name, 0)) for name, end in self.copied.items())

    @property
    def lag_seconds(self) -> float:
        """The time since the copy was level with the leader: 0 while it is level and the leader answers."""
        if self.connected and not self.lag_records:
            return 0.0
        return asyncio.get_running_loop().time() - self.caught_up_at


class Followers:
    """See the module. `failed` stops this broker."""

    def __init__(
        self,
        config: Config,
        log: EmbeddedLog,
        history: AboutHistory,
        holding: Sequence[HoldingPartition],
        failed: Callable[[Exception], None],
    ) -> None:
        self._data = config.data
        self.confirms = config.confirm_after == FOLLOWER
        self._log = log
        self._history = history
        self._holding = holding
        self._failed = failed
        self._fenced = False
        self._waiting: list[asyncio.Future[None]] = []
        self.known = {name: Follower(name, copy) for name, copy in noted_followers(config.data).items()}
        self._noting = asyncio.Lock()
        self._turns: Turns | None = None
        self._passed: dict[str, int] = {}  # by partition: nothing below waits for a follower
        self._waits_since: float | None = None  # by the loop's clock: since then nothing waiting was let go
        self._waiting_told = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, turns: "Turns") -> None:
        """Begin to hold confirms back, if the followers confirm. What is durable now was answered before."""
        self._turns = turns
        if self.confirms:
            self._passed = {name: end.offset for name, end in self.ends.items()}
        self._hold()

    # -- what a follower asks -----------------------------------------------------------------------------------------

    @property
    def ends(self) -> dict[str, End]:
        """The durable end of each partition."""
        return {partition.name: partition.durable_end for partition in self._log.partitions}

    def starts(self) -> dict[str, int]:
        """The offset at which each partition begins here."""
        return {partition.name: partition.start_offset for partition in self._log.partitions}

    @property
    def lineage(self) -> tuple[str, ...]:
        """The identities of the forks in this log, the last one is this history's."""
        return tuple(fork.event.identity for fork in self._history.forks)

    def branches(self) -> list[Branching]:
        """The places where this history branched, in order. Reads the log: call it in a thread. Raises LogError."""
        return [branching_of(self._data, fork, self.ends) for fork in list(self._history.forks)]

    async def join(self, name: str, asked: JoinRequest, address: str, root: str) -> Follower:
        """Take a follower in. `root`: the identity with which this history begins.

        Raises FollowerRefused, LogError."""
        if self._fenced:
            raise FollowerRefused("fenced", "this broker was replaced by one of its followers, and stops")
        if not NAME.fullmatch(name):
            raise FollowerRefused(
                "name", "the name of a follower (--node) is 1 to 255 characters, without control characters"
            )
        await self._require_lineage(asked, root)
        ends = self.ends
        await asyncio.to_thread(self._require_same, asked, ends)
        async with self._noting:
            follower = await self._taken_in(name, asked.instance, address)
        follower.token, follower.address = secrets.token_hex(16), address
        follower.target = {}
        follower.acknowledged = {  # its disk may have lost some since
            each: min(offset, asked.ends.get(each, (0, b""))[0]) for each, offset in follower.acknowledged.items()
        }
        self._see(follower)
        self._hold()
        return follower

    async def _taken_in(self, name: str, instance: str, address: str) -> Follower:
        """The follower of this name, noted before it is known. Raises FollowerRefused, OSError."""
        follower = self.known.get(name)
        if follower is None:
            if len(self.known) >= MOST_FOLLOWERS:
                raise FollowerRefused(
                    "too_many", f"there are {MOST_FOLLOWERS} followers: `rewindmq forget_follower NAME`"
                )
            follower = Follower(name, instance)
            await asyncio.to_thread(self._note, {**self.known, name: follower})
            self.known[name] = follower
            logger.info("follower %s joins from %s", name, address)
        elif follower.instance != instance:
            raise FollowerRefused(
                "known",
                f"follower {name!r} is known as another copy, which may have been promoted: if it is gone for good, run"
                f" `rewindmq forget_follower {name}` at the leader, or give this one another --node",
            )
        return follower

    async def fetch(self, name: str, token: str, at: Mapping[str, End], most: int) -> FollowerAnswer:
        """Acknowledge what the follower has, and find what it lacks.

        Raises FollowerRefused if it must join again, and BelowStart if records that it lacks were removed here."""
        follower = self._of(name, token)
        self._see(follower)
        reached = {each: at[each].offset if each in at else 0 for each in self.ends}
        if not follower.target or all(reached[each] >= end.offset for each, end in follower.target.items()):
            level = self._log.whole and all(reached[each] >= end.offset for each, end in self.ends.items())
            if level and not follower.target:
                self._aim(follower)
            if follower.target:
                self._acknowledge(follower)
            if level or not self._log.whole:
                await self._landing()
                self._of(name, token)
                self._see(follower)
            if self._log.whole:
                self._aim(follower)
        pieces, room = [], min(max(most, ANSWER_BYTES), MOST_BYTES)
        for each, end in follower.target.items():
            directory = partition_directory(self._data, each)
            here = at.get(each)
            if here is None or (here.offset, here.position) == (0, 0):
                start = beginning_of_log(directory)
                here = End(start, 0, start, b"")
            piece = piece_behind(directory, here, end, max(room, HEADER_BYTES)) if room > 0 else None
            if piece is not None:
                pieces.append((each, piece))
                room -= piece.size
        target = {each: end.offset for each, end in follower.target.items()}
        return FollowerAnswer(target, {each: end.offset for each, end in self.ends.items()}, pieces)

    async def forget(self, name: str) -> bool:
        """Wait for this follower no longer. Returns False if it is not known. Raises OSError."""
        async with self._noting:
            if name not in self.known:
                return False
            others = {each: follower for each, follower in self.known.items() if each != name}
            await asyncio.to_thread(self._note, others)
            del self.known[name]
        self._hold()
        return True

    def _aim(self, follower: Follower) -> None:
        """Lead a follower toward the moment that is the newest one now."""
        follower.target, follower.target_at = self.ends, asyncio.get_running_loop().time()

    def _of(self, name: str, token: str) -> Follower:
        follower = self.known.get(name)
        if self._fenced or follower is None or not token or follower.token != token:
            raise FollowerRefused("unknown", f"follower {name!r} has to join first")
        return follower

    def _note(self, known: Mapping[str, Follower]) -> None:
        copies = {name: follower.instance for name, follower in known.items()}
        write_note(self._data / FOLLOWERS, {"followers": copies})

    def _see(self, follower: Follower) -> None:
        follower.seen = asyncio.get_running_loop().time()

    def takes(self, name: str) -> None:
        """A follower takes the bytes of an answer: it is there, however slow the way is."""
        if name in self.known:
            self._see(self.known[name])

    # -- is it the same history? --------------------------------------------------------------------------------------

    async def _require_lineage(self, asked: JoinRequest, root: str) -> None:
        ours, theirs = self.lineage, asked.lineage
        if asked.root not in (None, root):
            raise FollowerRefused("other_history", f"the copy is of another history: {asked.root}, and here is {root}")
        if ours[: len(theirs)] == theirs:
            return
        common = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
        branched = next((each for each in asked.newer if each.identity == theirs[common]), None)
        if branched is None or not await asyncio.to_thread(self._has, branched):
            raise FollowerRefused(
                "other_history", f"the copy is of another history, which branched to {theirs[common]}"
            )
        if common < len(ours):
            raise FollowerRefused(
                "two_promoted",
                f"two were promoted: the copy went on as {theirs[common][:16]}..., and this broker as"
                f" {ours[common][:16]}...: keep one, and begin the other anew in an empty directory",
            )
        self.fence(theirs[-1])
        raise FollowerRefused("fenced", "the copy was promoted after this broker led: this broker stops now")

    def _has(self, branched: Branching) -> bool:
        """Return True if a history branched from this log."""
        ends = self.ends
        if METADATA not in branched.positions:
            return False
        return all(
            name in ends and chain_at(partition_directory(self._data, name), offset, ends[name]) == chain
            for name, (offset, chain) in branched.positions.items()
        )

    def _require_same(self, asked: JoinRequest, ends: dict[str, End]) -> None:
        """Check that the copy is a beginning of this log. Raises FollowerRefused, LogError."""
        branched = len(asked.lineage) < len(self.lineage)
        goes_back = "start the follower again: it goes back to where the leader's history branched"
        for name, (offset, chain) in asked.ends.items():
            if name not in ends:
                raise FollowerRefused("other_history", f"the copy has a partition {name}, which is not here")
            if not offset:
                continue
            directory = partition_directory(self._data, name)
            start = beginning_of_log(directory)
            if offset < start:
                raise FollowerRefused(
                    "trimmed",
                    f"the copy of {name} ends at offset {offset}, and the leader's log begins at {start}: begin anew in"
                    " an empty directory, or with one that `rewindmq recover` makes from the archive",
                )
            if offset > ends[name].offset:
                raise FollowerRefused(
                    "ahead",
                    f"the copy of {name} ends at offset {offset}, and the leader's log at {ends[name].offset}: "
                    + (goes_back if branched else LOST_END),
                )
            if chain_at(directory, offset, ends[name]) != chain:
                raise FollowerRefused(
                    "diverged",
                    f"the copy of {name} ends at offset {offset} with another hash chain than the leader has there: "
                    + (goes_back if branched else "it is of another history; begin anew in an empty directory"),
                )

    # -- what waits for followers -------------------------------------------------------------------------------------

    def landed(self) -> None:
        """More is durable here: the followers get it."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        if self.confirms and self._turns is not None:
            self._look(self._turns)

    async def _landing(self) -> None:
        """Wait until more is durable, some seconds at most."""
        landing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(landing)
        try:
            await asyncio.wait_for(landing, WAIT_SECONDS)
        except TimeoutError:
            pass
        finally:
            if landing in self._waiting:
                self._waiting.remove(landing)

    def _acknowledge(self, follower: Follower) -> None:
        follower.acknowledged = {name: end.offset for name, end in follower.target.items()}
        follower.acknowledged_at = follower.target_at
        if self.confirms:
            self._hold()

    def _hold(self) -> None:
        """Tell each partition what its clients may take for durable."""
        for partition in self._holding:
            partition.hold_above(self._held(partition.name))
        if self.confirms and self._turns is not None:
            self._pass()
            self._look(self._turns)
            self._turns.landed()

    def _pass(self) -> None:
        """Note what is confirmed now."""
        if self._fenced:
            return
        for name, end in self.ends.items():
            passed = min(end.offset, self._held(name) or 0)
            if passed > self._passed.get(name, 0):
                self._passed[name] = passed
                self._waits_since = None  # it waits anew, if more is there

    def _held(self, partition: str) -> int | None:
        if self._fenced:
            return 0
        if not self.confirms:
            return None
        return min((each.acknowledged.get(partition, 0) for each in self.known.values()), default=0)

    def _look(self, turns: "Turns") -> None:
        """Hold publishers back if too much waits, and say that it waits."""
        waits, now = self.unacknowledged(), asyncio.get_running_loop().time()
        turns.problem("followers", HELD.format(f"more than {MOST_BEHIND:,}") if waits > MOST_BEHIND else None)
        if not waits:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        waiting = self.waiting_seconds()
        if waiting < AWAY_SECONDS and self._waiting_told:
            self._waiting_told = False
            logger.warning("confirms go on: followers acknowledge again")
        elif waiting >= AWAY_SECONDS and not self._waiting_told:
            self._waiting_told = True
            logger.warning("confirms wait for followers, for %d s now: %s", waiting, self._laggards())
        if waits and not self._waiting_told and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, AWAY_SECONDS - waiting), self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        if self._turns is not None:
            self._look(self._turns)

    def _laggards(self) -> str:
        """The followers for which confirms wait, in words."""
        ends = self.ends
        behind = [
            f"{each.name} ({'connected, and acknowledges nothing' if self.is_connected(each) else 'away'})"
            for each in self.known.values()
            if any(each.acknowledged.get(name, 0) < end.offset for name, end in ends.items())
        ]
        return ", ".join(behind) or "none has joined yet"

    def unacknowledged(self) -> int:
        """Return the number of durable records whose confirms wait for followers; 0 if confirms do not wait."""
        if not self.confirms:
            return 0
        return sum(end.offset - min(end.offset, self._passed.get(name, 0)) for name, end in self.ends.items())

    def waiting_seconds(self) -> float:
        """For how long confirms have waited, and no acknowledgement let one go; 0 if none waits."""
        return 0.0 if self._waits_since is None else asyncio.get_running_loop().time() - self._waits_since

    # -- for listings -------------------------------------------------------------------------------------------------

    def is_connected(self, follower: Follower) -> bool:
        """Return True if the follower has asked within the last AWAY_SECONDS."""
        return follower.seen is not None and asyncio.get_running_loop().time() - follower.seen < AWAY_SECONDS

    def lag_of(self, follower: Follower) -> tuple[int, float] | None:
        """Return a follower's lag in records and in seconds; None if it has acknowledged nothing since the start."""
        if not follower.acknowledged:
            return None
        records = sum(max(0, end.offset - follower.acknowledged.get(name, 0)) for name, end in self.ends.items())
        seconds = asyncio.get_running_loop().time() - follower.acknowledged_at
        return records, seconds if records else 0.0

    # -- the end ------------------------------------------------------------------------------------------------------

    def fence(self, identity: str) -> None:
        """Stop for good: the history goes on as `identity`."""
        if self._fenced:
            return
        self._fenced = True
        self._hold()
        note: dict[str, Any] = {"promoted": identity}
        text = fence_text(note)
        try:
            write_note(self._data / FENCED, note)
        except OSError as error:  # it stops all the same
            text += f" ({self._data / FENCED} cannot be written: {error}: do not start this broker again)"
        self._failed(Fenced(text))


def branching_of(data: Path, fork: Fork, ends: Mapping[str, End]) -> Branching:
    """The place where a fork branched. A position that was trimmed, or that divides a block, is left out.

    Raises LogError."""
    positions = {}
    for name, offset in ((METADATA, fork.at), *fork.event.positions):
        chain = None
        if name in ends:
            chain = chain_at(partition_directory(data, name), offset, ends[name])
        if chain is not None:
            positions[name] = offset, chain
    return Branching(fork.event.identity, positions)
