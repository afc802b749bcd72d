"""Sends this node's folded state as a tar (engine/cluster/store_copy.py): GET /api/state.

It is for administrators, as the bodies of all queued messages are in it. It works on Kafka only: the state of an
embedded log is of no use without the log.

One copy at a time. The broker goes on meanwhile: threads read the files, no faster than the client takes them.
"""

import asyncio
import logging

from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from rewindmq.engine.cluster.store_copy import CopyUnderWay, StateCopy
from rewindmq.engine.http.call import ApiError, Call, bad_request
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, Media, operation
from rewindmq.projections.store.store import StoreError

STALLED_SECONDS = 120  # a client that takes nothing for so long is dropped: its copy takes room on the disk

logger = logging.getLogger(__name__)


class SentCopy(StreamingResponse):
    """A response that closes the copy at its end.

    It ends when the copy is sent, the client is gone or stalled, or the broker stops."""

    def __init__(self, copy: StateCopy) -> None:
        super().__init__(copy.pieces(), media_type="application/x-tar")
        self._copy = copy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(STALLED_SECONDS):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except (OSError, TimeoutError, asyncio.CancelledError) as error:  # then the server closes the connection
            logger.warning("a copy of the state was not sent to its end: %s", str(error) or type(error).__name__)
        finally:
            await asyncio.to_thread(self._copy.close)


@operation(
    "Sends the folded state of this node, for a new node on the same Kafka",
    folds=Folds.ALL,
    who=ADMINISTRATOR,
    answer=Media("application/x-tar", "The files of the state"),
    errors=(400,),
)
async def copy(call: Call) -> Response:
    """Answer GET /api/state."""
    call.require()
    try:
        store = call.broker.keeper.written_state()
        if store is None:
            raise bad_request(
                "the log of this broker is in its data directory, and its state is of no use without it:"
                " back up the log (docs/operators/backup.md)"
            )
        made = StateCopy(call.broker.config.data, call.broker.config.node)
        try:
            await asyncio.to_thread(made.make, store)
        except BaseException:
            await asyncio.to_thread(made.close)
            raise
    except (CopyUnderWay, StoreError, OSError) as error:
        raise ApiError(503, "service_unavailable", str(error)) from None
    call.past_read("", "", "")
    logger.info("%s copies the state of this node", call.user)
    return SentCopy(made)
