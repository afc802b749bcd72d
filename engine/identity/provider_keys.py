"""The public keys of an identity provider: from a file, or fetched from a URL (JSON Web Key Sets, RFC 7517).

    location        a file; a URL; or "": the URL is `jwks_uri` in ISSUER/.well-known/openid-configuration
    a file          is read at the start and at SIGHUP
    a URL           is fetched at the start, every REFRESH_SECONDS, and when a token names a key that is not known

Rules of this file
- Only asymmetric keys for signatures are taken. A set with a shared secret (`oct`) is somebody's mistake.
- A URL is https, or http on the loopback address. A redirect is not followed.
- No client can make this node hammer the provider: between two fetches REST_SECONDS pass, and all tokens that wait for
  a key wait for the same fetch. A fetch ends after FETCH_SECONDS, an answer after MOST_BYTES.
- Keys stay while the provider is away, or answers nonsense. The log says so, once until a fetch succeeds.
"""

import asyncio
import contextlib
import json
import logging
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from rewindmq.engine.identity.exchange import FETCH_SECONDS, MOST_BYTES, document
from rewindmq.engine.identity.settings import DISCOVERY, BadKeys, checked_url

REFRESH_SECONDS: Final = 600.0
REST_SECONDS: Final = 10.0
MOST_KEYS: Final = 100
# Of the modulus of an RSA key, in base64: 2048 to 8192 bits. Shorter ones can be broken, longer ones take too long.
MODULUS_CHARACTERS: Final = (342, 1_366)
TYPES: Final[Mapping[str, Any]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}

logger = logging.getLogger(__name__)


class UnknownKey(Exception):
    """A token names a key that the provider does not have, as far as this node knows; the text says so."""


def keys_in(data: bytes) -> dict[str, Key]:
    """Return the keys of a set, by their ids; the id of a key without one is "". BadKeys."""
    try:
        content = json.loads(data)
        listed = content["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadKeys('it is not a JSON Web Key Set: {"keys": [...]}') from None
    if not isinstance(listed, list) or len(listed) > MOST_KEYS:
        raise BadKeys(f"its keys are not a list of at most {MOST_KEYS}")
    found: dict[str, Key] = {}
    for each in listed:
        key = _key(each) if isinstance(each, dict) else None
        if key is not None:
            found.setdefault(key.kid or "", key)
    if not found:
        raise BadKeys("it has no public key for signatures that is of type RSA (of 2048 bits or more), EC or OKP")
    return found


def _key(given: Mapping[str, object]) -> Key | None:
    kind = TYPES.get(str(given.get("kty")))
    public = {name: value for name, value in given.items() if name not in ("d", "p", "q", "dp", "dq", "qi", "oth")}
    if kind is None or given.get("use", "sig") != "sig" or not isinstance(given.get("kid", ""), str):
        return None
    if kind is RSAKey and not MODULUS_CHARACTERS[0] <= len(str(given.get("n"))) <= MODULUS_CHARACTERS[1]:
        return None
    try:
        key: Key = kind.import_key(public)
        key.thumbprint()
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key


class ProviderKeys:
    """The keys of one provider. `authority`: the file with certificates that its server must have one of; None: those
    that the system trusts."""

    def __init__(self, location: str, issuer: str, authority: Path | None) -> None:
        self.known: Mapping[str, Key] = {}
        self.version = 0  # grows when keys come or go
        self._issuer = issuer
        self._authority = authority
        self._is_file = bool(location) and "://" not in location
        self._location = location
        self._wanted = asyncio.Event()
        self._round: asyncio.Future[None] | None = None  # a fetch that is under way or about to begin
        self._task: asyncio.Task[None] | None = None
        self.rested_until = 0.0
        self._trouble = ""

    def read_file(self) -> None:
        """Read the keys, if they are in a file. BadKeys, OSError."""
        if self._is_file:
            with Path(self._location).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise BadKeys(f"{self._location}: it is larger than {MOST_BYTES} bytes")
            try:
                self._take(keys_in(content))
            except BadKeys as error:
                raise BadKeys(f"{self._location}: {error}") from None

    def start(self) -> None:
        """Begin to fetch, if the keys are at a URL. Call it in the loop."""
        if not self._is_file and self._task is None:
            self._round = asyncio.get_running_loop().create_future()
            self._task = asyncio.ensure_future(self._fetch_again_and_again())

    def stop(self) -> None:
        """Fetch no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._round is not None and not self._round.done():
            self._round.set_result(None)

    async def find(self, key_id: str | None) -> Key:
        """Return the key of this id; None: the only one that there is.

        Waits for a fetch, if one may begin. UnknownKey."""
        found = self._look_up(key_id)
        if found is None and await self._fetched():
            found = self._look_up(key_id)
        if found is not None:
            return found
        if not self.known:
            raise UnknownKey("the keys of the identity provider could not be fetched yet")
        if key_id is None:
            raise UnknownKey("the token names no key (kid), and the identity provider has several")
        raise UnknownKey(f"the identity provider has no key '{key_id[:60]}' (kid)")

    def _look_up(self, key_id: str | None) -> Key | None:
        if key_id is None:
            return next(iter(self.known.values())) if len(self.known) == 1 else None
        return self.known.get(key_id)

    async def _fetched(self) -> bool:
        """Wait for the fetch that is under way, or begin one. Return False if none may begin."""
        if self._task is None:
            return False
        if self._round is None:
            if asyncio.get_running_loop().time() < self.rested_until:
                return False
            self._round = asyncio.get_running_loop().create_future()
            self._wanted.set()
        await asyncio.shield(self._round)
        return True

    async def _fetch_again_and_again(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._fetch_once()
            self.rested_until = loop.time() + REST_SECONDS
            ended, self._round = self._round, None
            if ended is not None and not ended.done():
                ended.set_result(None)
            self._wanted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._wanted.wait()
            if self._round is None:
                self._round = loop.create_future()

    async def _fetch_once(self) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                found = await self._fetch()
        except TimeoutError:
            self._failed(f"no answer within {FETCH_SECONDS:.0f} seconds")
        except (BadKeys, OSError, ValueError) as error:
            self._failed(str(error) or type(error).__name__)
        except Exception as error:  # httpx2 has many; none of them may end the fetching
            self._failed(f"{type(error).__name__}: {error}")
        else:
            if self._take(found) or self._trouble:
                taken = time.monotonic() - began
                logger.info("%d keys of the identity provider, fetched in %.2f s", len(found), taken)
            self._trouble = ""

    def _failed(self, why: str) -> None:
        if why != self._trouble:
            kept = f"{len(self.known)} keys stay" if self.known else "no token can be verified"
            logger.warning("the keys of the identity provider could not be fetched, %s: %s", kept, why)
            self._trouble = why

    def _take(self, found: Mapping[str, Key]) -> bool:
        def thumbprints(keys: Mapping[str, Key]) -> dict[str, str]:
            return {key_id: key.thumbprint() for key_id, key in keys.items()}

        changed = thumbprints(found) != thumbprints(self.known)
        if changed:
            self.known = found
            self.version += 1
        return changed

    async def _fetch(self) -> dict[str, Key]:
        url = self._location
        context = await asyncio.to_thread(ssl.create_default_context, cafile=self._authority)
        if not url:
            discovered = self._issuer.rstrip("/") + DISCOVERY
            url = _keys_url(await document(discovered, context), self._issuer)
        return await asyncio.to_thread(keys_in, await document(url, context))


def _keys_url(data: bytes, issuer: str) -> str:
    try:
        content = json.loads(data)
        found, url = content["issuer"], content["jwks_uri"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadKeys("the provider's configuration has no issuer and jwks_uri") from None
    if found != issuer:
        raise BadKeys(f"the provider's configuration is of issuer '{str(found)[:200]}', not of '{issuer}'")
    if not isinstance(url, str):
        raise BadKeys("the provider's jwks_uri is not text")
    return checked_url(url)
