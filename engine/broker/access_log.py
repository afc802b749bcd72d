"""Logs who came, from where, and what was refused: events of the metadata log that the fold ignores.

    opened, ended                   SessionOpened, SessionClosed   each session once (SessionCounted: session_counts.py)
    past_read                       PastRead                       equal questions of a session once a minute
    moment_read                     PastRead                       grouped, with the stretch that was read
    login_refused, access_refused   LoginRefused, AccessRefused    grouped: the first at once, then a count each minute
    unrouted                        UnroutedCounted                likewise

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

from rewindmq.engine.partition.counters import LOGINS_REFUSED
from rewindmq.engine.partition.lifecycle import Nodes
from rewindmq.engine.partition.metadata import Metadata
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.session_counts import SessionCounts
from rewindmq.engine.partition.sessions import Session
from rewindmq.engine.tls import TlsPeer
from rewindmq.projections.rewind import At, format_time
from rewindmq.schemas.access_events import AccessRefused, LoginRefused, SessionOpened, UnroutedCounted
from rewindmq.schemas.events import MetadataEvent, PastRead, SessionClosed
from rewindmq.schemas.values import BROKER, Actor, Argument

MOST_GROUPS: Final = 128  # of each kind
MOST_QUESTIONS: Final = 1_000
MOST_IDS: Final = 10  # of the messages of a group
MOST_BYTES: Final = 255  # of a text that a client chose
COUNT_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)

Key = tuple[object, ...]
Refusal = LoginRefused | AccessRefused | UnroutedCounted


@dataclass(frozen=True, slots=True)
class Arrival:
    """A client's arrival: the protocol (amqp or http), the client's "host:port", and the listener.

    `proxy`: the address of the balancer, if one spoke for the client."""

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


@dataclass(slots=True)
class _Moments:
    """Moments of a queue that a session read, and that are not logged yet. `count`: so many reads.

    `times_ms`, `offsets`: the first and the last of them."""

    actor: Actor
    partition: Partition
    event: PastRead
    incarnation: int | None
    count: int = 0
    times_ms: tuple[int, int] | None = None
    offsets: tuple[int, int] | None = None

    def add(self, at: At) -> None:
        """Count a read."""
        self.count += 1
        if at.time_ms is not None:
            self.times_ms = _wider(self.times_ms, at.time_ms)
        if at.offset is not None:
            self.offsets = _wider(self.offsets, at.offset)

    def stretch(self) -> PastRead:
        """The event that says what was read: `reads=37&from=TIME&to=TIME&from_offset=N&to_offset=N`."""
        words = [f"reads={self.count}"]
        if self.incarnation is not None:
            words.append(f"incarnation={self.incarnation}")
        if self.times_ms is not None:
            words += (f"{word}={format_time(each)}" for word, each in zip(("from", "to"), self.times_ms, strict=True))
        if self.offsets is not None:
            words += (f"{word}_offset={each}" for word, each in zip(("from", "to"), self.offsets, strict=True))
        return replace(self.event, request="&".join(words))


def _wider(stretch: tuple[int, int] | None, each: int) -> tuple[int, int]:
    return (each, each) if stretch is None else (min(stretch[0], each), max(stretch[1], each))


class AccessLog:
    """`end_turn`: makes durable what was appended outside of a turn."""

    def __init__(
        self,
        metadata: Metadata,
        nodes: Nodes,
        clock: Callable[[], int],
        end_turn: Callable[[], None],
        counters: dict[str, int],
        session_counts: SessionCounts,
        read_only: bool = False,
    ) -> None:
        self._metadata = metadata
        self._nodes = nodes
        self._clock = clock
        self._end_turn = end_turn
        self._counters = counters
        self._session_counts = session_counts
        self._read_only = read_only
        self._groups: dict[type[Refusal], dict[Key, _Group]] = {
            LoginRefused: {},
            AccessRefused: {},
            UnroutedCounted: {},
        }
        self._questions: set[tuple[Actor, PastRead]] = set()
        self._moments: dict[Key, _Moments] = {}
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
                vhost=session.vhost,
                protocol=arrival.protocol,
                address=arrival.address,
                listener=arrival.listener,
                proxy=arrival.proxy,
                mechanism=mechanism,
                tls="" if tls is None else f"{tls.version} {tls.cipher}",
                certificate="" if tls is None else tls.subject,
                client_properties=client_properties,
            ),
        )

    def ended(self, session: Session) -> None:
        """Log the end of a session, if its beginning is in the history, and then what became of its publishes."""
        if session.in_history:
            session.in_history = False
            self._append(session.actor, SessionClosed(session.session_id, 0))
            self._session_counts.ended(session)

    def login_refused(self, arrival: Arrival, user: str, mechanism: str, reason: str) -> None:
        """Log, or count, a client that was not let in."""
        self._counters[LOGINS_REFUSED] += 1
        user, now = shortened(user), self._clock()
        refused = LoginRefused(
            user,
            host=arrival.host,
            listener=arrival.listener,
            protocol=arrival.protocol,
            mechanism=mechanism,
            reason=shortened(reason),
            count=1,
            first_ms=now,
        )
        self._refused((user, arrival.host), BROKER, refused)

    def access_refused(self, actor: Actor, vhost: str, operation: str, what: tuple[str, str], reason: str) -> None:
        """Log, or count, what a session was refused. `what`: kind and name of the resource."""
        kind, name = what
        refused = AccessRefused(
            operation,
            vhost=vhost,
            kind=kind,
            name=shortened(name),
            reason=shortened(reason),
            count=1,
            first_ms=self._clock(),
        )
        self._refused((actor.session, operation, kind, refused.name), actor, refused)

    def unrouted(self, actor: Actor, vhost: str, exchange: str, routing_key: str, message_id: bytes | None) -> None:
        """Log, or count, a message that no queue took."""
        ids = () if message_id is None else (shortened(message_id.decode(errors="replace")),)
        counted = UnroutedCounted(vhost, exchange, routing_key, ids, count=1, first_ms=self._clock())
        self._refused((actor.user, vhost, exchange, routing_key), actor, counted)

    def past_read(
        self, actor: Actor, partition: Partition | None, vhost: str, queue: str, way: str, asked: str
    ) -> None:
        """Log that the past of a queue in `partition`, or (None) of all, is read by HTTP request `way`. A question that
        the session asked within this minute is not logged again."""
        event = PastRead(
            vhost, queue=queue, consumer=0, channel=0, tag="", arguments=(), way=way, request=shortened(asked)
        )
        question = (actor, event)
        if question in self._questions:
            return
        if len(self._questions) >= MOST_QUESTIONS:
            self._questions.clear()
        if self._append(actor, event, partition or self._metadata):
            self._questions.add(question)
            self._set_timer()

    def moment_read(
        self, actor: Actor, partition: Partition, queue: tuple[str, str, int | None], way: str, asked: str, at: At
    ) -> None:
        """Log that a queue (vhost, name, incarnation) is read as it was at a moment.

        The first read of a session is logged at once. Those of the next minute are one event, which has their count and
        the stretch that they lie in."""
        key = actor.session, *queue
        group = self._moments.get(key)
        if group is not None:
            group.add(at)
            return
        vhost, name, incarnation = queue
        event = PastRead(
            vhost, queue=name, consumer=0, channel=0, tag="", arguments=(), way=way, request=shortened(asked)
        )
        if self._append(actor, event, partition) and len(self._moments) < MOST_QUESTIONS:
            self._moments[key] = _Moments(actor, partition, event, incarnation)
            self._set_timer()

    def close(self) -> None:
        """Log the refusals and the reads that are counted and not logged."""
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
        if isinstance(refusal, UnroutedCounted) and isinstance(group.last, UnroutedCounted) and group.count:
            ids = (*group.last.message_ids, *refusal.message_ids)[:MOST_IDS]
            refusal = replace(refusal, message_ids=ids)
        group.actor, group.last = actor, refusal
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
        if self._moments or any(self._groups.values()):
            self._set_timer()

    def _log_counts(self) -> None:
        """Log each group's count. A group that has none is forgotten: its next refusal is logged at once."""
        self._questions.clear()
        for key, moments in list(self._moments.items()):
            if moments.count == 0:
                del self._moments[key]
                continue
            self._append(moments.actor, moments.stretch(), moments.partition)
            self._moments[key] = _Moments(moments.actor, moments.partition, moments.event, moments.incarnation)
        for groups in self._groups.values():
            for key, group in list(groups.items()):
                if group.count == 0:
                    del groups[key]
                    continue
                self._append(group.actor, replace(group.last, count=group.count, first_ms=group.first_ms))
                group.count = 0

    def _append(self, actor: Actor, event: MetadataEvent, log: Metadata | Partition | None = None) -> bool:
        """Append an event, and return True if it is in the log or on its way there."""
        if self._read_only or not self._nodes.joined:
            return False
        try:
            (log or self._metadata).append(actor, event)
        except Exception:  # a client must not be closed because its arrival could not be noted
            logger.exception("%s could not be logged", type(event).__name__)
            return False
        return True


def nameless(refusal: Refusal) -> Refusal:
    """The refusal without the words that clients choose."""
    if isinstance(refusal, UnroutedCounted):
        return replace(refusal, vhost="", exchange="", routing_key="", message_ids=())
    if isinstance(refusal, LoginRefused):
        return replace(refusal, user="", host="", reason="many users and hosts")
    return replace(refusal, operation="", vhost="", kind="", name="", reason="many sessions and resources")


def shortened(text: str) -> str:
    """The text, at most MOST_BYTES of it."""
    return text if len(text) * 4 <= MOST_BYTES else text.encode()[:MOST_BYTES].decode(errors="ignore")
