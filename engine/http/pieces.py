"""Answers that are made in pieces: JSON of any size, in slices of the loop's time, never all of it in memory.

A short answer goes out as a whole, with its length. A longer one is streamed as it is made, no faster than the client
takes it.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.responses import Response, StreamingResponse

from rewindmq.engine.host.loop_share import Work
from rewindmq.schemas.json_values import compact_text

WHOLE_BYTES = 262_144  # a smaller answer is sent as a whole


async def array(work: Work, items: AsyncIterator[Any]) -> AsyncIterator[str]:
    """Yield a JSON array of items, each small."""
    before = "["
    async for item in items:
        yield before + compact_text(item)
        before = ","
        if work.due:
            await work.give_way()
    yield "[]" if before == "[" else "]"


async def members(work: Work, content: dict[str, object]) -> AsyncIterator[str]:
    """Yield a JSON object whose values may be lists: each entry of a list is a piece."""
    before = "{"
    for name, value in content.items():
        yield f"{before}{compact_text(name)}:"
        before = ","
        if isinstance(value, Iterable) and not isinstance(value, str | dict):
            async for piece in array(work, work.over(value)):
                yield piece
        else:
            yield compact_text(value)
    yield "{}" if before == "{" else "}"


async def answer(pieces: AsyncIterator[str], media_type: str = "application/json") -> Response:
    """Return a response 200 with these pieces."""
    gathered: list[bytes] = []
    size = 0
    async for piece in pieces:
        gathered.append(piece.encode())
        size += len(gathered[-1])
        if size > WHOLE_BYTES:
            return StreamingResponse(rest(gathered, pieces), media_type=media_type)
    return Response(b"".join(gathered), media_type=media_type)


async def rest(gathered: list[bytes], pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
    """Yield the gathered pieces, then those still to be made, in parts that are worth a write."""
    size = sum(map(len, gathered))
    async for piece in pieces:
        gathered.append(piece.encode())
        size += len(gathered[-1])
        if size > WHOLE_BYTES // 4:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)
