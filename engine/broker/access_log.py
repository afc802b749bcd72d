"""Logs who came, from where, and what was refused: events of the metadata log that the fold ignores.

    opened, ended                   SessionOpened, SessionClosed   each session once
    past_read                       PastRead                       equal questions of a session once a minute
    login_refused, access_refused   LoginRefused, AccessRefused    grouped: the first at once, then a count each minute

Rules of this file
- No caller waits for the disk, and none gets an error: what cannot be logged is in the broker's own log.
- An attacker can't fill the history. There are at most MOST_GROUPS groups of each kind at a time. All refusals beyond
  them are one more group, which names nobody. So a million user names are some hundred events a minute.
- A read-only broker logs nothing, nor does a node that has not joined: the end of its epoch ends its sessions.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from rewindmq.engine.runtime.lifecycle import Keeper
from rewindmq.engine.runtime.metadata import Metadata
from rewindmq.engine.runtime.partition import Partition
from rewindmq.engine.runtime.sessions import Session
from rewindmq.engine.tls import TlsPeer
from rewindmq.schemas.access_events import AccessRefused, LoginRefused, SessionOpened
from rewindmq.schemas.events import MetadataEvent, PastRead, SessionClosed
from rewindmq.schemas.values import BROKER, Actor, Argument

MOST_GROUPS: Final = 128  # of each kind
MOST_QUESTIONS: Final = 1_000
MOST_BYTES: Final = 255  # of a text that a client chose
COUNT_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)

Key = tuple[object, ...]
Refusal = LoginRefused | AccessRefused


@dataclass(frozen=True, slots=True)
class Arrival:
    """How a client came in: by which protocol (amqp or http), from which "host:port", at which listener. `proxy`: the
    balancer's address, if one spoke for the client."""

    protocol: str
    address: str
    listener: str = ""
    proxy: str = ""

    @property
    def host(self) -> str:
        """The client's host, without its port."""
        return self.address.rpartition(":")[0].removeprefix("[").removesuffix("]")


@dataclass(slots=True)
class _Group:
    """Refusals of one kind that are counted together. `count`: those that are not logged yet, since `first_ms`."""

    actor: Actor
    last: Refusal
    count: int = 0
    first_ms: int = 0


class AccessLog:
    """`end_turn`: makes durable what was appended outside of a turn."""

    def __init__(
        self,
        metadata: Metadata,
        keeper: Keeper,
        clock: Callable[[], int],
        end_turn: Callable[[], None],
        read_only: bool = False,
    ) -> None:
        self._metadata = metadata
        self._keeper = keeper
        self._clock = clock
        self._end_turn = end_turn
        self._read_only = read_only
        self._groups: dict[type[Refusal], dict[Key, _Group]] = {LoginRefused: {}, AccessRefused: {}}
        self._questions: set[tuple[int, PastRead]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def opened(
        self,
        session: Session,
        arrival: Arrival,
        mechanism: str,
        tls: TlsPeer | None,
        client_properties: tuple[Argument, ...],
    ) -> None:
        """Log the beginning of a session."""
        session.in_history = self._append(
            session.actor,
            SessionOpened(
                session.session_id,
                session.vhost,
                arrival.protocol,
                arrival.address,
                arrival.listener,
                arrival.proxy,
                mechanism,
                "" if tls is None else f"{tls.version} {tls.cipher}",
                "" if tls is None else tls.subject,
                client_properties,
            ),
        )

    def ended(self, session: Session) -> None:
        """Log the end of a session, if its beginning is in the history."""
        if session.in_history:
            session.in_history = False
            self._append(session.actor, SessionClosed(session.session_id, 0))

    def login_refused(self, arrival: Arrival, user: str, mechanism: str, reason: str) -> None:
        """Log, or count, a client that was not let in."""
        user, now = shortened(user), self._clock()
        refused = LoginRefused(
            user, arrival.host, arrival.listener, arrival.protocol, mechanism, shortened(reason), 1, now
        )
        self._refused((user, arrival.host), BROKER, refused)

    def access_refused(self, actor: Actor, vhost: str, operation: str, what: tuple[str, str], reason: str) -> None:
        """Log, or count, what a session was refused. `what`: kind and name of the resource."""
        kind, name = what
        refused = AccessRefused(operation, vhost, kind, shortened(name), shortened(reason), 1, self._clock())
        self._refused((actor.session, operation, kind, refused.name), actor, refused)

    def past_read(
        self, actor: Actor, partition: Partition | None, vhost: str, queue: str, way: str, asked: str
    ) -> None:
        """Log that the past of a queue in `partition`, or (None) of all, is read by HTTP request `way`. A question that
        the session asked within this minute is not logged again."""
        event = PastRead(vhost, queue, 0, 0, "", (), way, shortened(asked))
        question = (actor.session, event)
        if question in self._questions:
            return
        if len(self._questions) >= MOST_QUESTIONS:
            self._questions.clear()
        if self._append(actor, event, partition or self._metadata):
            self._questions.add(question)
            self._set_timer()

    def close(self) -> None:
        """Log the refusals that are counted and not logged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._log_counts()

    # -- refusals -----------------------------------------------------------------------------------------------------

    def _refused(self, key: Key, actor: Actor, refusal: Refusal) -> None:
        groups = self._groups[type(refusal)]
        if key not in groups and len(groups) >= MOST_GROUPS:
            key, actor, refusal = (), BROKER, nameless(refusal)
        group = groups.get(key)
        if group is None:
            if self._append(actor, refusal):
                groups[key] = _Group(actor, refusal)
                self._set_timer()
            return
        group.last = refusal
        if group.count == 0:
            group.first_ms = refusal.first_ms
        group.count += 1

    def _set_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COUNT_SECONDS, self._minute_passed)

    def _minute_passed(self) -> None:
        self._timer = None
        self._log_counts()
        self._end_turn()
        if any(self._groups.values()):
            self._set_timer()

    def _log_counts(self) -> None:
        """Log each group's count. A group that has none is forgotten: its next refusal is logged at once."""
        self._questions.clear()
        for groups in self._groups.values():
            for key, group in list(groups.items()):
                if group.count == 0:
                    del groups[key]
                    continue
                self._append(group.actor, replace(group.last, count=group.count, first_ms=group.first_ms))
                group.count = 0

    def _append(self, actor: Actor, event: MetadataEvent, log: Metadata | Partition | None = None) -> bool:
        """Whether the event is in the log, or on its way."""
        if self._read_only or not self._keeper.joined:
            return False
        try:
            (log or self._metadata).append(actor, event)
        except Exception:  # a client must not be closed because its arrival could not be noted
            logger.exception("%s could not be logged", type(event).__name__)
            return False
        return True


def nameless(refusal: Refusal) -> Refusal:
    """The refusal without the words that clients choose."""
    if isinstance(refusal, LoginRefused):
        return replace(refusal, user="", host="", reason="many users and hosts")
    return replace(refusal, operation="", vhost="", kind="", name="", reason="many sessions and resources")


def shortened(text: str) -> str:
    """The text, at most MOST_BYTES of it."""
    return text if len(text) * 4 <= MOST_BYTES else text.encode()[:MOST_BYTES].decode(errors="ignore")
