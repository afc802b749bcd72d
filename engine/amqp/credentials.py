"""The token of a connection: it is renewed by connection.update-secret, and the connection ends with it."""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from rewindmq.engine.amqp import publish_hold
from rewindmq.engine.amqp.methods import Method
from rewindmq.engine.errors import AccessRefused, ConnectionForced, NotAllowed
from rewindmq.engine.identity.grants import Identity
from rewindmq.engine.runtime.eager import begin
from rewindmq.projections.rules.internal_queues import is_reply_queue

if TYPE_CHECKING:
    from rewindmq.engine.amqp.connection import Connection

log = logging.getLogger("rewindmq.amqp")

UPDATE_SECRET: Final = 10 << 16 | 70
LOOK_SECONDS: Final = 3_600.0  # a token that is valid for longer is looked at again: the wall clock may be set


def update_secret(connection: "Connection", method: Method) -> None:
    """Take a new token in the place of the one that the client logged in with. After a login with a password there is
    nothing to renew, and any secret is accepted, as in RabbitMQ."""
    token = method.raw("new_secret").decode("utf-8", "replace")
    connection.await_work(begin(renew(connection, token)), 0, UPDATE_SECRET)


async def renew(connection: "Connection", token: str) -> None:
    """Go on with the rights of a new token. NotAllowed (530): it is not valid, is another user's, or has no right that
    the connection needs, as the vhost or the queue of a consumer."""
    session = connection.session
    if session is not None and session.grant is not None:
        try:
            who = await connection.broker.access.bear(token)
            check_renewal(connection, who)
        except AccessRefused as error:
            log.warning("%s: the new token of '%s' is refused: %s", connection.peer, connection.user, error.text)
            access_log = connection.broker.access_log
            access_log.login_refused(connection.arrival, connection.user, "update-secret", error.text)
            raise NotAllowed("New secret was refused by one of the backends") from None
        if connection.session is not session:  # closed meanwhile
            return
        session.grant = who.grant
        publish_hold.forget_publishes(connection)  # their routes were allowed by the old token
        await_expiry(connection)
        log.info("%s: user '%s' updated secret", connection.peer, connection.user)
    connection.send("Connection.UpdateSecretOk")


def check_renewal(connection: "Connection", who: Identity) -> None:
    """AccessRefused: the bearer of the new token may not go on with what the connection does."""
    access, vhost = connection.broker.access, "" if connection.session is None else connection.session.vhost
    if who.user != connection.user:
        raise AccessRefused(f"it is a token of user '{who.user}'")
    if not access.may_enter(who, vhost):
        raise AccessRefused(f"access to vhost '{vhost}' refused for user '{who.user}'")
    for channel in connection.channels.values():
        for consumer in channel.consumers.values():
            if consumer.queue is not None and not is_reply_queue(consumer.queue.name):
                access.check(who, vhost, "read", "queue", consumer.queue.name)


def await_expiry(connection: "Connection") -> None:
    """Close the connection when its token expires."""
    forget_expiry(connection)
    grant = None if connection.session is None else connection.session.grant
    if grant is None:
        return
    seconds = connection.broker.tokens.seconds_left(grant)
    if seconds:
        loop = asyncio.get_running_loop()
        connection.expiry = loop.call_later(min(seconds, LOOK_SECONDS), await_expiry, connection)
    else:
        connection.close(ConnectionForced("credential expired"))  # RabbitMQ's words
        connection.broker.turns.end()


def forget_expiry(connection: "Connection") -> None:
    """The connection ends, or its token is another one."""
    if connection.expiry is not None:
        connection.expiry.cancel()
        connection.expiry = None
