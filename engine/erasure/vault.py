"""Keys of bodies in a HashiCorp Vault or an OpenBao. Its transit engine has a key of its own for each of ours.

    make      POST keys/rewindmq-ID, POST datakey/plaintext/rewindmq-ID    a key, and the same sealed by the transit key
    open      POST decrypt/rewindmq-ID                                     sealed -> key
    destroy   POST keys/rewindmq-ID/config, DELETE keys/rewindmq-ID        nobody can open what was sealed any more

A key's file (key_store.py) has the sealed key. So a copy of the directory is of no use without the Vault, nor after the
erasure. The Vault never sees a body.

Rules of this file
- Each call may wait for the Vault, for some seconds at most: call it in a thread. Only `at_hand` may be called in the
  loop.
- A key that was opened stays in memory for CACHE_SECONDS, at most MOST_OPENED of them. `forget` drops one at once.
- When the Vault does not answer, calls in the next REST_SECONDS fail without asking it. So those that wait behind each
  other wait no longer than one of them.
- The token is read from its file for each call: another program may renew it there.
- Failures are OSErrors.
"""

import base64
import json
import os
import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewindmq.engine.config import VaultPlace
from rewindmq.engine.erasure.key_content import KEY_BYTES, SEALED, NotAtHand
from rewindmq.engine.log.secret_file import BadSecret, secret_in

if TYPE_CHECKING:
    import httpx2

PREFIX = "rewindmq-"  # of the names of transit keys
CONNECT_SECONDS, ANSWER_SECONDS = 2.0, 5.0
CACHE_SECONDS = 600.0
GONE_SECONDS = 10.0  # so long it is believed that the Vault has no such key
REST_SECONDS = 1.0
MOST_OPENED = 10_000
TOKEN_FILE = "REWINDMQ_VAULT_TOKEN_FILE"  # another file with a token, for other users of this machine


class VaultAway(OSError):
    """The Vault did not answer, or refused; the text says why."""


class Vault:
    """The transit engine of a Vault."""

    def __init__(self, place: VaultPlace) -> None:
        self.place = place
        self._client: httpx2.Client | None = None
        self._connecting, self._lock = threading.Lock(), threading.Lock()  # of the client, of `_opened`
        self._opened: dict[str, tuple[bytes | None, float]] = {}  # the key, and until when; None: the Vault has none
        self._rests_until = 0.0
        self._trouble = ""

    def check(self) -> str:
        """Ask whether the token is good, and whether there is a transit engine. Returns why the Vault is away for now;
        "": it is not. VaultAway: settings have to change."""
        try:
            status, errors = self._ask("GET", f"keys/{PREFIX}check")[:2]
        except VaultAway as error:
            if self._rests_until:
                return str(error)
            raise
        if status == 404 and not errors:
            return ""
        raise VaultAway(f"{self._where}: it has no transit engine there ({errors or status})")

    def make(self, key_id: str) -> tuple[bytes, bytes]:
        """A new key, and the same sealed. VaultAway."""
        name = PREFIX + key_id
        self._done("POST", f"keys/{name}", {"type": "aes256-gcm96"})
        answer = self._done("POST", f"datakey/plaintext/{name}", {"bits": 8 * KEY_BYTES})
        key, sealed = self._key_in(answer), str(answer.get("ciphertext", "")).encode()
        if not sealed.startswith(SEALED):
            raise VaultAway(f"{self._where}: it made no key")
        self._keep(key_id, key, CACHE_SECONDS)
        return key, sealed

    def at_hand(self, key_id: str) -> bytes | None:
        """The key, if it is in memory; None: the Vault has none. Waits for nothing. NotAtHand."""
        found = self._opened.get(key_id)
        if found is None or found[1] < time.monotonic():
            raise NotAtHand(key_id)
        return found[0]

    def open(self, key_id: str, sealed: bytes) -> bytes | None:
        """The key; None: the Vault has destroyed what opens it. VaultAway."""
        try:
            return self.at_hand(key_id)
        except NotAtHand:
            pass
        ciphertext = {"ciphertext": sealed.decode("ascii", "replace")}
        status, errors, answer = self._ask("POST", f"decrypt/{PREFIX}{key_id}", ciphertext)
        if status == 200:
            key = self._key_in(answer)
            self._keep(key_id, key, CACHE_SECONDS)
            return key
        if self.has(key_id):
            raise VaultAway(f"{self._where}: key {key_id} cannot be opened: {errors or status}")
        self._keep(key_id, None, GONE_SECONDS)
        return None

    def has(self, key_id: str) -> bool:
        """Return True if the Vault still has the means to open the key. Raises VaultAway."""
        status, errors, _ = self._ask("GET", f"keys/{PREFIX}{key_id}")
        if status == 404 and not errors:  # a Vault without a transit engine gives a reason
            return False
        if status != 200:
            raise VaultAway(f"{self._where}: {errors or status}")
        return True

    def destroy(self, key_id: str) -> None:
        """Destroy what opens the key, which may be gone already. The Vault has said that it is gone when this returns.
        VaultAway."""
        self.forget(key_id)
        if not self.has(key_id):
            return
        name = PREFIX + key_id
        self._ask("POST", f"keys/{name}/config", {"deletion_allowed": True})
        errors = self._ask("DELETE", f"keys/{name}")[1]
        if self.has(key_id):
            raise VaultAway(f"{self._where}: key {key_id} is not destroyed: {errors or 'it is still there'}")

    def forget(self, key_id: str) -> None:
        """Drop a key from memory."""
        with self._lock:
            self._opened.pop(key_id, None)

    def _keep(self, key_id: str, key: bytes | None, seconds: float) -> None:
        with self._lock:
            while len(self._opened) >= MOST_OPENED:
                del self._opened[next(iter(self._opened))]
            self._opened[key_id] = key, time.monotonic() + seconds

    def _key_in(self, answer: dict[str, Any]) -> bytes:
        try:
            key = base64.b64decode(str(answer.get("plaintext")), validate=True)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise VaultAway(f"{self._where}: what it sent is no key")
        return key

    # -- requests -----------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"{self.place.url}, {self.place.mount}"

    def _done(self, method: str, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """The answer of a request that has to succeed. VaultAway."""
        status, errors, answer = self._ask(method, path, content)
        if status not in (200, 204):
            raise VaultAway(f"{self._where}: {errors or status}")
        return answer

    def _ask(self, method: str, path: str, content: dict[str, Any] | None = None) -> tuple[int, str, dict[str, Any]]:
        """Status, errors and data of an answer. VaultAway: it did not come, or the Vault or the token is at fault."""
        import httpx2

        if time.monotonic() < self._rests_until:
            raise VaultAway(self._trouble)
        headers = {"x-vault-token": self._token(), "x-vault-request": "true"}
        if self.place.namespace:
            headers["x-vault-namespace"] = self.place.namespace
        try:
            answer = self._http().request(method, f"/v1/{self.place.mount}/{path}", json=content, headers=headers)
            found = json.loads(answer.content) if answer.content else {}
        except (httpx2.HTTPError, ValueError) as error:
            raise self._rested(str(error) or type(error).__name__) from None
        given = found if isinstance(found, dict) else {}
        errors = "; ".join(map(str, given.get("errors") or ()))
        if answer.status_code == 403:
            self._rests_until = 0.0
            raise VaultAway(f"{self._where}: the token in {self._token_file} may not {method} {path}: {errors}")
        if answer.status_code >= 500 or answer.status_code == 429:
            raise self._rested(f"status {answer.status_code} {errors}".strip())
        self._rests_until = 0.0
        data = given.get("data")
        return answer.status_code, errors, data if isinstance(data, dict) else {}

    def _rested(self, trouble: str) -> VaultAway:
        """The error for a Vault that is away. It is not asked for a moment."""
        self._trouble = f"{self._where}: the Vault does not answer: {trouble}"
        self._rests_until = time.monotonic() + REST_SECONDS
        return VaultAway(self._trouble)

    @property
    def _token_file(self) -> Path:
        return Path(os.environ.get(TOKEN_FILE) or self.place.token_file)

    def _token(self) -> str:
        try:
            return secret_in(self._token_file)
        except BadSecret as error:
            raise VaultAway(str(error)) from None

    def _http(self) -> "httpx2.Client":
        import ssl

        import httpx2

        with self._connecting:
            if self._client is None:
                try:
                    trust = ssl.create_default_context(cafile=self.place.ca or None)
                except OSError as error:
                    raise VaultAway(f"{self.place.ca}: {error.strerror or error}") from None
                seconds = httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
                self._client = httpx2.Client(base_url=self.place.url, verify=trust, timeout=seconds, trust_env=False)
            return self._client


@cache
def vault_at(place: VaultPlace) -> Vault:
    """The Vault at a place: one for the whole process, so that a key that is dropped is dropped everywhere."""
    return Vault(place)
