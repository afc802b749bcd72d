"""The sessions that are open on this node: their ids, what ends with them, and what a session waits for.

A session or consumer id is (epoch << 24) | count. The epoch is the offset of this node's BrokerStarted or NodeJoined in
the metadata log, so an id is unique in the whole history.
"""

from collections.abc import Awaitable, Callable

from rewindmq.engine.broker.access_control import ITSELF, Access
from rewindmq.engine.errors import ConnectionForced, NotAllowed
from rewindmq.engine.identity.grants import Grant, Identity
from rewindmq.engine.partition.certainty import Certainty
from rewindmq.engine.partition.departures import Departures
from rewindmq.engine.partition.lifecycle import Keeper
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.publish_counts import PublishCounts
from rewindmq.engine.partition.sessions import ConnectionStatus, Session
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.events import Event, SessionClosed
from rewindmq.schemas.values import Actor

EPOCH_IDS = 1 << 24


class OpenSessions:
    """`by_id`: the open sessions of AMQP connections, HTTP requests and imports, by session id. `ended` is told each
    session that was closed."""

    def __init__(
        self,
        topology: Topology,
        access: Access,
        keeper: Keeper,
        certainty: Certainty,
        clock: Callable[[], int],
        counters: dict[str, int],
        ended: Callable[[Session], None],
        written: Callable[[], Awaitable[None]],
    ) -> None:
        self.departures = Departures(written)
        self.by_id: dict[int, Session] = {}
        self._topology = topology
        self._access = access
        self._keeper = keeper
        self._certainty = certainty
        self._clock = clock
        self._counters = counters
        self._ended = ended
        self._epoch = -1
        self._ids = 0

    def open(
        self,
        user: str,
        vhost: str,
        peer: str,
        client_properties: dict[str, object],
        link: ConnectionStatus | None = None,
        close: Callable[[str], None] | None = None,
        within: tuple[Actor, int] | None = None,
        grant: Grant | None = None,
        publishes: PublishCounts | None = None,
    ) -> Session:
        """Open a client's session. `link`, `close`: of its connection, where the session has one of its own. `within`:
        of an HTTP call, the actor of its events and its channel in that actor's session; `publishes`: of that session.
        `grant`: of the client's token.

        NotAllowed (530): the vhost does not exist, or the user may not enter it. ConnectionForced (320): the node was
        declared lost and is joining again."""
        self._check_joined()
        if vhost not in self._topology.vhosts:
            raise NotAllowed(f"vhost {vhost} not found")
        if not self._access.may_enter(Identity(user, grant), vhost):
            raise NotAllowed(f"access to vhost '{vhost}' refused for user '{user}'")
        session_id = self.next_id()
        session = Session(
            session_id,
            user,
            vhost,
            peer,
            within[0] if within else Actor(user, session_id),
            client_properties,
            self._clock(),
            link=link,
            close=close,
            channel=within[1] if within else 0,
            grant=grant,
            publishes=publishes or PublishCounts(),
        )
        return self._add(session)

    def open_own(self, actor: Actor, vhost: str) -> Session:
        """Open a session of the broker itself, which has every permission, to import definitions for `actor`.

        ConnectionForced, as `open`."""
        self._check_joined()
        return self._add(Session(self.next_id(), ITSELF, vhost, "definitions", actor, {}, self._clock()))

    def _check_joined(self) -> None:
        if not self._keeper.nodes.joined:
            raise ConnectionForced("the node was declared lost and is joining again")

    def _add(self, session: Session) -> Session:
        self.by_id[session.session_id] = session
        self._counters["connections_opened_total"] += 1
        return session

    def next_id(self) -> int:
        """A new id for a session or a consumer. ConnectionForced: the epoch has no ids left."""
        if self._ids == EPOCH_IDS - 1:
            self._keeper.renew_epoch()
        if self._epoch != self._keeper.epoch:
            self._epoch = self._keeper.epoch
            self._ids = 0
        elif self._ids == EPOCH_IDS - 1:  # the next epoch has to be read back first
            raise ConnectionForced("the node's ids are used up, it is joining again")
        self._ids += 1
        return self._epoch << 24 | self._ids

    def close_channel(self, session: Session, channel: int) -> None:
        """End a channel: its consumers are detached, and the messages that they hold return to their queues."""
        for partition, consumer_ids in session.attached.pop(channel, {}).items():
            for consumer_id in consumer_ids:
                partition.deliveries.detach(consumer_id)
                session.attachments.pop(consumer_id, None)
                session.channel_of.pop(consumer_id, None)
            partition.append(session.actor, SessionClosed(session.session_id, channel))
        session.holders.pop(channel, None)

    def close(self, session: Session) -> None:
        """End a session: every channel as `close_channel`, and its exclusive queues are deleted (departures.py)."""
        if self.by_id.pop(session.session_id, None) is None:
            return
        concerned = dict(session.owns_queues_in)
        ended = SessionClosed(session.session_id, 0)
        if session.channel:
            ended = SessionClosed(session.actor.session, session.channel)
        for attached in session.attached.values():
            for partition, consumer_ids in attached.items():
                concerned[partition] = None
                for consumer_id in consumer_ids:
                    partition.deliveries.detach(consumer_id)

        def log_end() -> None:
            for partition in concerned:
                partition.append(session.actor, ended)

        self.departures.start(session, log_end)
        session.attached.clear()
        session.attachments.clear()
        session.channel_of.clear()
        session.holders.clear()
        session.owns_queues_in.clear()
        self._ended(session)
        self._counters["connections_closed_total"] += 1

    def close_connections(self, reason: str, which: Callable[[Session], bool]) -> None:
        """Close the connections of these sessions with 320 and this reason."""
        for session in list(self.by_id.values()):
            if session.close is not None and which(session):
                session.close(reason)

    def is_open(self, session: Session) -> bool:
        """Return True if the session has not ended."""
        return session.session_id in self.by_id

    def check_open(self, session: Session) -> None:
        """ConnectionForced: the session ended while its request waited. Nothing may be appended for it any more."""
        if not self.is_open(session):
            raise ConnectionForced("the connection is gone")

    async def ask(
        self, session: Session, partition: Partition, event: Event, folded: Callable[[], None] | None = None
    ) -> list[Effect]:
        """Append an event for a session and wait until it is folded: its effects. `folded`: as of `Partition.ask`.

        ConnectionForced: the session ended meanwhile. If the node was lost, the event may have had no effect."""
        effects = await partition.ask(session.actor, event, folded)
        self.check_open(session)
        return effects

    async def catch_up(self, session: Session, partition: Partition) -> None:
        """Let everything happen in the partition that is due now. ConnectionForced: the session ended meanwhile."""
        await partition.catch_up()
        self.check_open(session)

    async def read_to_end(self, session: Session) -> None:
        """Read everything that any node has appended by now. ConnectionForced: the session ended meanwhile."""
        await self._certainty.wait()
        self.check_open(session)
