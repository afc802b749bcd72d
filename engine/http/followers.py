"""A leader's answers to its followers, and the list of followers (engine/broker/followers.py).

    GET  /api/leader                           where the log begins, where the history branched, which seals there are
    GET  /api/leader/files/{partition}/{file}  a base, or a seal and its opening: files beside the log
    POST /api/leader/keys                      keys of bodies, by their ids
    PUT  /api/followers/{name}                 join; 409 with a word in `error`: the follower is refused
    POST /api/followers/{name}/fetch           acknowledge, and get the next bytes; waits some seconds for new ones
    GET  /api/followers, DELETE /api/followers/{name}

The answer of `fetch` is a line of JSON, {"target": {partition: offset}, "ends": {partition: offset}, "pieces":
[[partition, base, position, size]]}, and then the bytes of the pieces, as the segments have them. All of it is for
administrators: it is the whole history.
"""

import asyncio
import base64
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from starlette.responses import FileResponse, Response, StreamingResponse

from rewindmq.engine.broker.followers import Branching, FollowerAnswer, FollowerRefused, Followers, JoinRequest
from rewindmq.engine.http.call import ApiError, Call, bad_request, not_found, reply
from rewindmq.engine.http.listing import listed
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, MONITORING, Folds, Media, operation
from rewindmq.engine.http.shapes.standby import (
    BranchedHistoryView,
    FetchWish,
    FollowerTokenView,
    FollowerView,
    FollowerWish,
    KeysOfBodiesView,
    KeysWish,
    LeaderView,
    follower_views,
)
from rewindmq.engine.log.contract import BelowStart, LogError
from rewindmq.engine.log.embedded.directory import partition_directory
from rewindmq.engine.log.embedded.ends import chains_in, ends_in
from rewindmq.engine.log.embedded.raw_blocks import Piece
from rewindmq.engine.log.embedded.root import root_of
from rewindmq.engine.log.embedded.segments import read_at
from rewindmq.projections.store.bases import Bases

PIECE_BYTES = 1 << 20  # in memory at a time
MOST_KEYS = 1_000
MOST_NUMBER = 1 << 62
BESIDE = re.compile(r"[0-9]{20}\.base|_[0-9]{20}\.(?:seal|secret)")


def followers_of(call: Call) -> Followers:
    """Return the followers of this broker. Raises ApiError (400) where there can be none."""
    followers = call.broker.followers
    if followers is None:
        raise bad_request("only a broker with an embedded log has followers, and only while it is the leader")
    return followers


def refusal(refused: FollowerRefused) -> ApiError:
    """Return the answer to a follower that is refused."""
    return ApiError(409, refused.word, str(refused))


@operation(
    "Shows the log for a machine that follows it",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    answer=LeaderView,
    errors=(400, 503),
)
async def leader(call: Call) -> Response:
    """Answer GET /api/leader."""
    call.require()
    followers, config = followers_of(call), call.broker.config
    try:
        branches = await asyncio.to_thread(followers.branches)
        root = await asyncio.to_thread(root_of, config.data)
    except LogError as error:
        raise ApiError(503, "service_unavailable", str(error)) from None
    return reply(
        LeaderView(
            node=config.node,
            root=root,
            queue_partitions=len(call.broker.partitions),
            starts=followers.starts(),
            branches=[BranchedHistoryView.of(each) for each in branches],
            seals=await asyncio.to_thread(seals_in, config.data, list(followers.ends)),
        )
    )


def seals_in(data: Path, partitions: list[str]) -> dict[str, list[int]]:
    """Return the offsets of the seals of each partition."""
    found = {}
    for name in partitions:
        files = partition_directory(data, name).glob(f"_{'[0-9]' * 20}.seal")
        found[name] = sorted(int(path.stem[1:]) for path in files)
    return found


@operation(
    "Sends a file that lies beside the log",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    answer=Media("application/octet-stream", "A base, a seal, or the opening of a seal"),
    errors=(400, 404),
)
async def file(call: Call) -> Response:
    """Answer GET /api/leader/files/{partition}/{file}."""
    call.require()
    partition, name = call.segment("partition"), call.segment("file")
    if partition not in followers_of(call).ends or not BESIDE.fullmatch(name):
        raise not_found()
    data = call.broker.config.data
    if name.endswith(".base"):
        path = Bases(data / "bases").path(partition, int(name[:20]))
    else:
        path = partition_directory(data, partition) / name
    if not path.exists():
        raise not_found()
    return FileResponse(path, media_type="application/octet-stream")


@operation(
    "Gives keys of bodies to a follower",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    body=KeysWish,
    answer=KeysOfBodiesView,
    errors=(400, 503),
)
async def keys(call: Call) -> Response:
    """Answer POST /api/leader/keys."""
    call.require()
    followers_of(call)
    ids = (await call.body("ids"))["ids"]
    if not isinstance(ids, list) or len(ids) > MOST_KEYS or not all(isinstance(each, str) for each in ids):
        raise bad_request(f"ids is a list of at most {MOST_KEYS} texts")
    store = call.broker.subjects.keys
    try:
        found = await asyncio.to_thread(lambda: {str(each): store.content(str(each)) for each in ids})
    except OSError as error:
        raise ApiError(503, "service_unavailable", str(error)) from None
    keys = {each: base64.b64encode(key).decode() for each, key in found.items() if key is not None}
    return reply(KeysOfBodiesView(keys=keys))


@operation(
    "Takes a follower in",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    body=FollowerWish,
    answer=FollowerTokenView,
    errors=(400, 409, 503),
)
async def join(call: Call) -> Response:
    """Answer PUT /api/followers/{name}."""
    call.require()
    followers, name = followers_of(call), call.segment("name")
    asked = asked_in(await call.body("instance", "lineage", "ends"))
    client = call.request.client
    address = "" if client is None else f"{client.host}:{client.port}"
    try:
        root = await asyncio.to_thread(root_of, call.broker.config.data)
        follower = await followers.join(name, asked, address, root)
    except FollowerRefused as refused:
        raise refusal(refused) from None
    except (LogError, OSError) as error:
        raise ApiError(503, "service_unavailable", str(error)) from None
    call.past_read("", "", "")
    call.broker.turns.end()
    return reply(FollowerTokenView(token=follower.token))


def asked_in(content: dict[str, Any]) -> JoinRequest:
    """Return the question of a follower that joins. Raises ApiError (400)."""
    try:
        root = content.get("root")
        return JoinRequest(
            str(content["instance"]),
            None if root is None else str(root),
            tuple(map(str, content["lineage"])),
            chains_in(content["ends"]),
            tuple(Branching(str(each["identity"]), chains_in(each["positions"])) for each in content.get("newer", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad_request("not the words of a follower: is it of another version?") from None


@operation(
    "Acknowledges what a follower has, and sends the next bytes of the log",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    body=FetchWish,
    answer=Media("application/octet-stream", "A line of JSON, and the bytes of the pieces that it names"),
    errors=(400, 409, 410),
)
async def fetch(call: Call) -> Response:
    """Answer POST /api/followers/{name}/fetch."""
    call.require()
    followers, content = followers_of(call), cast(dict[str, Any], await call.body("token", "at", "most"))
    try:
        at = ends_in(content["at"])
        token, most = str(content["token"]), int(content["most"])
        if not all(0 <= number < MOST_NUMBER for end in at.values() for number in end[:3]):
            raise ValueError("a place that no log has")
    except (TypeError, ValueError, AttributeError):
        raise bad_request("not the words of a follower: is it of another version?") from None
    try:
        name = call.segment("name")
        answer = await followers.fetch(name, token, at, most)
    except FollowerRefused as refused:
        raise refusal(refused) from None
    except BelowStart as error:
        raise ApiError(410, "trimmed", str(error)) from None
    return StreamingResponse(bytes_of(answer, partial(followers.takes, name)), media_type="application/octet-stream")


async def bytes_of(answer: FollowerAnswer, taken: Callable[[], None]) -> AsyncIterator[bytes]:
    """Yield an answer as bytes. A piece is read while the client takes the one before; `taken` is called with each."""
    pieces = [(name, piece.base, piece.position, piece.size) for name, piece in answer.pieces]
    yield json.dumps({"target": answer.target, "ends": answer.ends, "pieces": pieces}, allow_nan=False).encode() + b"\n"
    for _, piece in answer.pieces:
        done = 0
        while done < piece.size:
            some = await asyncio.to_thread(read_some, piece, done)
            if not some:
                raise OSError(f"{piece.path} is shorter than it was")
            done += len(some)
            yield some
            taken()


def read_some(piece: Piece, done: int) -> bytes:
    """Return the next bytes of a piece. In a thread: the disk may be slow."""
    descriptor = os.open(piece.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_at(descriptor, min(PIECE_BYTES, piece.size - done), piece.position + done)
    finally:
        os.close(descriptor)


@operation("Lists the followers of this broker", folds=Folds.NONE, who=MONITORING, listing=FollowerView)
async def list_all(call: Call) -> Response:
    """Answer GET /api/followers."""
    call.require("monitoring")
    return await listed(call, follower_views(call.broker.followers))


@operation(
    "Forgets a follower: nothing waits for it from then on",
    folds=Folds.NONE,
    who=ADMINISTRATOR,
    answers={204: None},
    errors=(400, 404, 503),
)
async def forget(call: Call) -> Response:
    """Answer DELETE /api/followers/{name}."""
    call.require()
    try:
        known = await followers_of(call).forget(call.segment("name"))
    except OSError as error:
        raise ApiError(503, "service_unavailable", str(error)) from None
    if not known:
        raise not_found()
    return Response(status_code=204)
