"""The sessions of HTTP clients. A client (user, host, listener, product, mechanism) has one from its first call
that matters until ten minutes after its last one.

    call of a client -> session(...) -> SessionOpened, once     every event of the call has this session as its actor
    a minute's timer -> SessionClosed for those that were idle

A call that changes something, that reads the past, or that is refused matters; listings do not. A client chooses its
product, and a host has many addresses. So there are at most MOST_CALLERS sessions, and beyond them one for each user.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rewindmq.engine.broker.access_log import AccessLog, Arrival, shortened
from rewindmq.engine.broker.open_sessions import EPOCH_IDS, OpenSessions
from rewindmq.engine.partition.lifecycle import Keeper
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.tls import TlsPeer
from rewindmq.schemas.values import Actor, Argument

MOST_CALLERS: Final = 500
IDLE_SECONDS: Final = 600.0
LOOK_SECONDS: Final = 60.0

Key = tuple[str, str, str, str, str]


@dataclass(slots=True)
class Caller:
    """`calls`: how many requests had a channel of their own in the session."""

    session: Session
    seen: float
    calls: int = 0


class Callers:
    """`read_only`: there is no session, and no event that would have it."""

    def __init__(
        self,
        sessions: OpenSessions,
        access_log: AccessLog,
        keeper: Keeper,
        end_turn: Callable[[], None],
        read_only: bool,
    ) -> None:
        self._sessions = sessions
        self._access_log = access_log
        self._keeper = keeper
        self._end_turn = end_turn
        self._read_only = read_only
        self._loop = asyncio.get_running_loop()
        self._callers: dict[Key, Caller] = {}
        self._timer: asyncio.TimerHandle | None = None

    def caller(self, user: str, arrival: Arrival, product: str, tls: TlsPeer | None, mechanism: str) -> Caller | None:
        """The client with its session. None: this node logs no sessions now."""
        if self._read_only or not self._keeper.nodes.joined:
            return None
        key = (user, arrival.host, arrival.listener, product, mechanism)
        if key not in self._callers and len(self._callers) >= MOST_CALLERS:
            key, arrival, product, tls = (user, "", "", "", ""), Arrival(arrival.protocol, ""), "", None
        found = self._callers.get(key)
        if found is None or found.session.session_id // EPOCH_IDS != self._keeper.epoch:  # a lost epoch's are ended
            session_id = self._sessions.next_id()
            session = Session(session_id, user, "", arrival.address, Actor(user, session_id))
            properties = (Argument("product", "longstr", shortened(product)),) if product else ()
            self._access_log.opened(session, arrival, mechanism, tls, properties)
            found = self._callers[key] = Caller(session, 0.0)
        found.seen = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        return found

    def close(self) -> None:
        """End all sessions."""
        if self._timer is not None:
            self._timer.cancel()
        for key in list(self._callers):
            self._end(key)

    def _look(self) -> None:
        self._timer = None
        idle_since = self._loop.time() - IDLE_SECONDS
        for key in [key for key, caller in self._callers.items() if caller.seen < idle_since]:
            self._end(key)
        self._end_turn()
        if self._callers:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _end(self, key: Key) -> None:
        session = self._callers.pop(key).session
        if session.session_id // EPOCH_IDS == self._keeper.epoch:
            self._access_log.ended(session)
