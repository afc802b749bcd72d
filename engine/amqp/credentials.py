"""The token of a connection: connection.update-secret renews it, and the connection ends with it."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from rewindmq.engine.broker.access_log import Arrival
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.errors import AccessRefused, NotAllowed
from rewindmq.engine.identity.grants import Grant, Identity
from rewindmq.engine.partition.sessions import Session
from rewindmq.projections.rules.internal_queues import is_reply_queue

log = logging.getLogger("rewindmq.amqp")

UPDATE_SECRET: Final = 10 << 16 | 70
LOOK_SECONDS: Final = 3_600.0  # a token that is valid for longer is looked at again: the wall clock may be set


class Credentials:
    """The token with which a client logged in. `expired` is called when it has expired."""

    def __init__(self, broker: Broker, arrival: Arrival, expired: Callable[[], None]) -> None:
        self._broker = broker
        self._arrival = arrival
        self._expired = expired
        self._timer: asyncio.TimerHandle | None = None

    async def renewed(self, session: Session, token: str, queues: Callable[[], Iterable[str]]) -> Grant | None:
        """Return the grant of a new token. NotAllowed (530): it is not valid, is another user's, or lacks a right that
        the connection needs, as the vhost or one of the `queues` of its consumers."""
        try:
            who = await self._broker.access.control.bear(token)
            self._check(session, who, queues())
        except AccessRefused as error:
            log.warning("%s: the new token of '%s' is refused: %s", self._arrival.address, session.user, error.text)
            self._broker.access.log.login_refused(self._arrival, session.user, "update-secret", error.text)
            raise NotAllowed("New secret was refused by one of the backends") from None
        return who.grant

    def _check(self, session: Session, who: Identity, queues: Iterable[str]) -> None:
        """Raise AccessRefused unless the bearer of the new token may continue with what the connection does."""
        access, vhost = self._broker.access.control, session.vhost
        if who.user != session.user:
            raise AccessRefused(f"it is a token of user '{who.user}'")
        if not access.may_enter(who, vhost):
            raise AccessRefused(f"access to vhost '{vhost}' refused for user '{who.user}'")
        for queue in queues:
            if not is_reply_queue(queue):
                access.check(who, vhost, "read", "queue", queue)

    def await_expiry(self, grant: Grant | None) -> None:
        """Call `expired` when the token has expired. None: the client logged in without one."""
        self.forget_expiry()
        if grant is None:
            return
        seconds = self._broker.access.tokens.seconds_left(grant)
        if seconds:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(seconds, LOOK_SECONDS), self.await_expiry, grant)
        else:
            self._expired()

    def forget_expiry(self) -> None:
        """Wait no longer: the connection ends, or its token is another one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
