"""A client of the leader's API for one that follows it.

Away: no answer, or none now; it is asked again. Refused: it says no, for good. JoinAgain: it was started anew.
"""

import base64
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from rewindmq.engine.broker.followers import WAIT_SECONDS, Asked, Branching
from rewindmq.engine.config import VERSION, Config
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.ends import End, chains_in, chains_out, ends_out
from rewindmq.engine.standby.refusal import Refused

ANSWER_SECONDS = 20.0
MOST_HEAD_BYTES = 1 << 20


class Away(Exception):
    """The leader does not answer, or not now."""


class JoinAgain(Exception):
    """The leader does not know this follower's token."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The log of the leader: see engine/http/shapes/standby.py."""

    node: str
    root: str
    queue_partitions: int
    starts: dict[str, int]
    branches: tuple[Branching, ...]
    seals: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes of the leader's log: (partition, base, position, bytes). `target`, `ends`: offsets by partition."""

    target: dict[str, int]
    ends: dict[str, int]
    pieces: list[tuple[str, int, int, bytes]]


class LeaderClient:
    """One leader, as an administrator of it."""

    def __init__(self, config: Config) -> None:
        """Raises LogError: there is no such address, or no such authority."""
        assert config.follow is not None
        parts = urlsplit(config.follow)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise LogError(f"{config.follow!r} is not the address of a management API: http://HOST:PORT")
        self.url = config.follow
        self.name = config.node
        self._token = ""
        verify: ssl.SSLContext | bool = False
        if parts.scheme == "https":
            try:
                verify = ssl.create_default_context(cafile=config.leader_ca)
            except OSError as error:
                raise LogError(f"{config.leader_ca}: no certificates to trust: {error}") from None
        self._http = httpx.AsyncClient(
            base_url=self.url,
            auth=(config.leader_user, config.leader_pass),
            headers={"user-agent": f"rewindmq-follow/{VERSION}"},
            timeout=httpx.Timeout(WAIT_SECONDS + ANSWER_SECONDS, connect=ANSWER_SECONDS),
            trust_env=False,
            verify=verify,
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def leader(self) -> Leader:
        """The leader's log."""
        found = (await self._ask("GET", "/api/leader")).json()
        branches = tuple(Branching(each["identity"], chains_in(each["positions"])) for each in found["branches"])
        starts, seals = found["starts"], found["seals"]
        return Leader(found["node"], found["root"], found["queue_partitions"], starts, branches, seals)

    async def join(self, asked: Asked) -> None:
        """Be taken in as a follower."""
        content = {
            "instance": asked.instance,
            "root": asked.root,
            "lineage": asked.lineage,
            "ends": chains_out(asked.ends),
            "newer": [{"identity": b.identity, "positions": chains_out(b.positions)} for b in asked.newer],
        }
        answer = await self._ask("PUT", f"/api/followers/{quote(self.name, safe='')}", json=content)
        self._token = answer.json()["token"]

    async def fetch(self, at: Mapping[str, End], most: int) -> Fetched:
        """The next bytes. What lies below `at` is acknowledged by that."""
        content = {"token": self._token, "at": ends_out(at), "most": most}
        async with self._stream("POST", f"/api/followers/{quote(self.name, safe='')}/fetch", content) as pieces:
            buffer = bytearray()
            async for some in pieces:
                buffer += some
                if b"\n" in buffer or len(buffer) > MOST_HEAD_BYTES:
                    break
            line, _, rest = bytes(buffer).partition(b"\n")
            head = json.loads(line)
            data = bytearray(rest)
            async for some in pieces:
                data += some
        found, at_byte = [], 0
        for name, base, position, size in head["pieces"]:
            found.append((name, base, position, bytes(data[at_byte : at_byte + size])))
            at_byte += size
        return Fetched(head["target"], head["ends"], found)

    async def keys(self, ids: list[str]) -> dict[str, bytes]:
        """Keys of bodies, by id; those that the leader has."""
        found = (await self._ask("POST", "/api/leader/keys", json={"ids": ids})).json()["keys"]
        return {each: base64.b64decode(key) for each, key in found.items()}

    async def download(self, partition: str, file: str, target: Path) -> bool:
        """Write a file that lies beside the leader's log. Returns False if the leader has it no more. OSError."""
        try:
            async with self._stream("GET", f"/api/leader/files/{partition}/{file}", None) as pieces:
                with target.open("wb") as out:
                    async for some in pieces:
                        out.write(some)
        except Refused as refused:
            if refused.word != "404":
                raise
            return False
        return True

    async def _ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **content)
        except httpx.HTTPError as error:
            raise self._away(error) from None
        self._require_success(response)
        return response

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, content: dict[str, Any] | None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            async with self._http.stream(method, path, json=content) as response:
                if not response.is_success:
                    await response.aread()
                self._require_success(response)
                yield response.aiter_bytes()
        except httpx.HTTPError as error:
            raise self._away(error) from None

    def _away(self, error: Exception) -> Away:
        return Away(f"the leader at {self.url} does not answer: {str(error) or type(error).__name__}")

    def _require_success(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        try:
            word, reason = str(response.json()["error"]), str(response.json()["reason"])
        except (ValueError, KeyError, TypeError):
            word, reason = "", "no RewindMQ is there, or one of an older version"
        if response.status_code >= 500:
            raise Away(f"the leader at {self.url} answers {response.status_code}: {reason}")
        if word == "unknown":
            raise JoinAgain
        if response.status_code == 404:
            word, reason = "404", "it knows no followers: is it of an older version?"
        if response.status_code == 401:
            reason += ": give --leader-user and --leader-pass-file of an administrator of the leader"
        raise Refused(word, f"the leader at {self.url} refuses: {reason}")
