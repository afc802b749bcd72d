"""A client of the leader's API for one that follows it.

Away: no answer, or none now; it is asked again. RefusedByLeader: it says no, for good. JoinAgain: it was started anew.

Bytes of the log prove themselves later (log_copy.py). All else that comes from the address is checked here: it may be
that of another program, or of a proxy. No answer is taken into memory beyond what was asked for. A leader at https://
shows a certificate of an authority that is trusted, for the name in the address; there is no other way to it.
"""

import base64
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from rewindmq.engine.broker.followers import HEADER_BYTES, MOST_BYTES, WAIT_SECONDS, Branching, JoinRequest
from rewindmq.engine.config import VERSION, Config
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.directory import MAX_PARTITIONS, METADATA, queue_partition
from rewindmq.engine.log.embedded.ends import End, chains_in, chains_out, ends_out
from rewindmq.engine.standby.refusal import RefusedByLeader

ANSWER_SECONDS = 20.0
MOST_HEAD_BYTES = 1 << 20
MOST_REASON_BYTES = 64 << 10
MOST_JSON_BYTES = 64 << 20  # the seals of a hundred years
LATER = (408, 429)  # answers of a proxy, or of a leader that brakes guesses of passwords


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
class FetchedLog:
    """Bytes of the leader's log: (partition, base, position, bytes). `target`, `ends`: offsets by partition."""

    target: dict[str, int]
    ends: dict[str, int]
    pieces: list[tuple[str, int, int, bytes]]


class LeaderClient:
    """One leader, as an administrator of it."""

    def __init__(self, config: Config) -> None:
        """Raises LogError: there is no such address, or no such authority."""
        assert config.follow is not None
        self.url = config.follow
        self.name = config.node
        self._token = ""
        verify: ssl.SSLContext | bool = False
        if secure(config.follow):
            try:
                verify = ssl.create_default_context(cafile=config.leader_ca)
            except OSError as error:
                raise LogError(f"{config.leader_ca}: no certificates to trust: {error}") from None
        elif config.leader_ca is not None:
            raise LogError(f"--leader-ca is for a leader at https://, and {self.url} is not over TLS")
        self._http = httpx2.AsyncClient(
            base_url=self.url,
            auth=(config.leader_user, config.leader_pass),
            headers={"user-agent": f"rewindmq-follow/{VERSION}"},
            timeout=httpx2.Timeout(WAIT_SECONDS + ANSWER_SECONDS, connect=ANSWER_SECONDS),
            trust_env=False,
            verify=verify,
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def leader(self) -> Leader:
        """Return the leader's log. Raises Away, RefusedByLeader."""
        found = await self._ask("GET", "/api/leader")
        with self._meant():
            branches = tuple(
                Branching(str(each["identity"]), chains_in(each["positions"])) for each in found["branches"]
            )
            partitions = int(found["queue_partitions"])
            if not 1 <= partitions <= MAX_PARTITIONS:
                raise ValueError(partitions)
            names = {METADATA, *map(queue_partition, range(partitions))}
            starts = {str(name): int(offset) for name, offset in found["starts"].items()}
            seals = {str(name): [int(offset) for offset in offsets] for name, offsets in found["seals"].items()}
            if starts.keys() != names or not seals.keys() <= names:
                raise ValueError("other partitions")
            if not all(0 <= each < 10**20 for each in (*starts.values(), *chain.from_iterable(seals.values()))):
                raise ValueError("a place that no log has")
            return Leader(str(found["node"]), str(found["root"]), partitions, starts, branches, seals)

    async def join(self, asked: JoinRequest) -> None:
        """Be taken in as a follower. Raises Away, RefusedByLeader."""
        content = {
            "instance": asked.instance,
            "root": asked.root,
            "lineage": asked.lineage,
            "ends": chains_out(asked.ends),
            "newer": [{"identity": b.identity, "positions": chains_out(b.positions)} for b in asked.newer],
        }
        answer = await self._ask("PUT", f"/api/followers/{quote(self.name, safe='')}", content)
        with self._meant():
            self._token = str(answer["token"])

    async def fetch(self, at: Mapping[str, End], most: int) -> FetchedLog:
        """Return the next bytes.

        What lies below `at` is acknowledged by that. Raises Away, JoinAgain, RefusedByLeader."""
        content = {"token": self._token, "at": ends_out(at), "most": most}
        path = f"/api/followers/{quote(self.name, safe='')}/fetch"
        data = await self._read("POST", path, content, MOST_HEAD_BYTES + HEADER_BYTES + min(most, MOST_BYTES))
        with self._meant():
            at_byte = data.index(b"\n", 0, MOST_HEAD_BYTES) + 1
            head = json.loads(data[:at_byte])
            found = []
            for name, base, position, size in head["pieces"]:
                if size < 0 or at_byte + size > len(data):
                    raise ValueError("a piece is cut off")
                found.append((str(name), int(base), int(position), bytes(data[at_byte : at_byte + size])))
                at_byte += size
            target, ends = ({str(name): int(end) for name, end in head[each].items()} for each in ("target", "ends"))
            return FetchedLog(target, ends, found)

    async def keys(self, ids: list[str]) -> dict[str, bytes]:
        """Return keys of bodies, by id; those that the leader has. Raises Away, RefusedByLeader."""
        found = await self._ask("POST", "/api/leader/keys", {"ids": ids})
        with self._meant():
            return {str(each): base64.b64decode(key, validate=True) for each, key in found["keys"].items()}

    async def download(self, partition: str, file: str, target: Path) -> bool:
        """Write a file that lies beside the leader's log. Returns False if the leader has it no more. OSError."""
        try:
            async with self._stream("GET", f"/api/leader/files/{partition}/{file}", None) as pieces:
                with target.open("wb") as out:
                    async for some in pieces:
                        out.write(some)
        except RefusedByLeader as refused:
            if refused.word != "404":
                raise
            return False
        return True

    async def _ask(self, method: str, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        data = await self._read(method, path, content, MOST_JSON_BYTES)
        with self._meant():
            found: dict[str, Any] = json.loads(data)
            if not isinstance(found, dict):
                raise TypeError
            return found

    async def _read(self, method: str, path: str, content: dict[str, Any] | None, most: int) -> bytearray:
        data = bytearray()
        async with self._stream(method, path, content) as pieces:
            async for some in pieces:
                data += some
                if len(data) > most:
                    raise self._other_program()
        return data

    @contextmanager
    def _meant(self) -> Iterator[None]:
        """Read an answer. Raises RefusedByLeader: it is not in the words of a leader."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._other_program() from None

    def _other_program(self) -> RefusedByLeader:
        return RefusedByLeader(
            "words", f"what answers at {self.url} is not a leader: is it another program, or a proxy's page?"
        )

    @asynccontextmanager
    async def _stream(
        self, method: str, path: str, content: dict[str, Any] | None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            async with self._http.stream(method, path, json=content) as response:
                if not response.is_success:
                    raise self._refusal(response.status_code, await beginning(response))
                yield response.aiter_bytes()
        except httpx2.HTTPError as error:
            raise self._away(error) from None

    def _away(self, error: Exception) -> Away:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            return Away(
                f"the leader at {self.url} is not trusted: {cause.verify_message}: give --leader-ca FILE of the"
                " authority that signed its certificate, and the name that the certificate is for"
            )
        return Away(f"the leader at {self.url} does not answer: {str(error) or type(error).__name__}")

    def _refusal(self, status: int, data: bytes) -> Exception:
        """Return the exception for an unsuccessful answer."""
        try:
            word, reason = str(json.loads(data)["error"]), str(json.loads(data)["reason"])
        except (ValueError, KeyError, TypeError):
            word, reason = "", "no RewindMQ is there, or one of an older version"
        if status >= 500 or status in LATER:
            return Away(f"the leader at {self.url} answers {status}: {reason}")
        if word == "unknown":
            return JoinAgain()
        if status == 404:
            word, reason = "404", "it knows no followers: is it of an older version?"
        if status == 401:
            reason += ": give --leader-user and --leader-pass-file of an administrator of the leader"
        return RefusedByLeader(word, f"the leader at {self.url} refuses: {reason}")


async def beginning(response: httpx2.Response) -> bytes:
    """Return the first bytes of an answer. Raises httpx2.HTTPError."""
    data = bytearray()
    async for some in response.aiter_bytes():
        data += some
        if len(data) > MOST_REASON_BYTES:
            break
    return bytes(data)


def secure(url: str) -> bool:
    """Return True if the address of a management API is over TLS. Raises LogError if it is not such an address."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx2.URL(url)
    except (ValueError, httpx2.InvalidURL):
        fine = False
    if not fine:
        raise LogError(f"{url!r} is not the address of a management API: http://HOST:PORT")
    if "@" in parts.netloc:
        raise LogError("no user in the address of the leader: give --leader-user and --leader-pass-file")
    return parts.scheme == "https"
