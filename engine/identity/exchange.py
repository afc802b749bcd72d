"""Asks the identity provider over HTTP: its configuration, its keys, and a token for a code."""

import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import httpx2

from rewindmq.engine.identity.settings import BadKeys, is_loopback

FETCH_SECONDS: Final = 5.0
MOST_BYTES: Final = 524_288


async def document(url: str, context: ssl.SSLContext) -> bytes:
    """Return the bytes at a URL. BadKeys: too many, or a status other than 200; httpx2's errors."""
    status, found = await answer(url, context)
    if status != 200:
        raise BadKeys(f"{url} answers {status}")
    return found


async def answer(url: str, context: ssl.SSLContext, form: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """Status and bytes of the answer to a GET, or to the POST of a form. A redirect is not followed.

    BadKeys: there are too many bytes; httpx2's errors."""
    direct = is_loopback(urlsplit(url).hostname or "")  # no proxy of the environment
    method = "GET" if form is None else "POST"
    async with (
        httpx2.AsyncClient(verify=context, timeout=FETCH_SECONDS, trust_env=not direct) as client,
        client.stream(method, url, headers={"accept": "application/json"}, data=form) as response,
    ):
        found = bytearray()
        async for part in response.aiter_bytes():
            found += part
            if len(found) > MOST_BYTES:
                raise BadKeys(f"{url} answers with more than {MOST_BYTES} bytes")
        return response.status_code, bytes(found)
