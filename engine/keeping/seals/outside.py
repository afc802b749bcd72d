"""Asks other people's witnesses and time-stamp authorities, with bounded bytes and seconds for each request."""

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2

from rewindmq import __version__

ANSWER_SECONDS = 20.0
MOST_BYTES = 1 << 16
_SHOWN = 200  # characters of a reason


class NotGiven(Exception):
    """A witness or an authority did not fulfil a request; the text says which one, and why."""


def is_address(url: str) -> bool:
    """Return True if an HTTP request can be sent to the URL."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def asked(url: str, content: bytes, kind: str) -> tuple[int, Mapping[str, str], bytes]:
    """Return (status, headers, body) of the answer to a POST. `kind`: the content type. Raises NotGiven."""
    try:
        return asyncio.run(asyncio.wait_for(_asked(url, content, kind), ANSWER_SECONDS))
    except TimeoutError:
        raise NotGiven(f"{url}: no answer within {ANSWER_SECONDS:.0f} seconds") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NotGiven(f"{url}: no answer: {str(error) or type(error).__name__}") from None


async def _asked(url: str, content: bytes, kind: str) -> tuple[int, Mapping[str, str], bytes]:
    headers = {"content-type": kind, "user-agent": f"rewindmq/{__version__}", "accept-encoding": "identity"}
    async with (
        httpx2.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False) as client,
        client.stream("POST", url, content=content, headers=headers) as answer,
    ):
        body = b""
        async for piece in answer.aiter_raw():  # not unpacked, because unpacked it can be of any size
            body += piece
            if len(body) > MOST_BYTES:
                raise NotGiven(f"{url}: its answer is longer than {MOST_BYTES} bytes")
        return answer.status_code, answer.headers, body


def reason_in(body: bytes) -> str:
    """Return the beginning of an answer, for people."""
    text = " ".join(body[: 4 * _SHOWN].decode(errors="replace").split())[:_SHOWN]
    return "".join(each if each.isprintable() else "?" for each in text)
