"""Signs a browser in at the identity provider: OpenID Connect's code flow with PKCE (RFC 7636), as a public client.

    begin(redirect)         the provider's address, and a ticket for a cookie of the browser
    finish(ticket, answer)  the provider sent the browser back with this answer -> an access token

Rules of this file
- The broker exchanges the code for the token. So a token is in no URL, in no log, and nowhere in the browser.
- A ticket is the time, a random text, and the address that the provider sends the browser to. `state`, `nonce` and the
  PKCE verifier are made of it with a secret of this process, so the broker remembers nothing of a sign-in under way,
  and nobody can fill its memory. A ticket is good for SECONDS, at this node.
- The provider's configuration is fetched once in REFRESH_SECONDS. After a failure it is left alone for REST_SECONDS.
- MOST_EXCHANGES codes are exchanged at a time, and one that the provider refuses keeps its place for a second. So
  nobody can make this node hammer the provider.
"""

import asyncio
import base64
import hmac
import json
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from rewindmq.engine.identity.settings import DISCOVERY, BadKeys, TokenSettings, checked_url
from rewindmq.engine.identity.tokens import Tokens

SECONDS: Final = 600
REFRESH_SECONDS: Final = 600.0
REST_SECONDS: Final = 10.0
MOST_EXCHANGES: Final = 4
WAIT_SECONDS: Final = 5.0
FAILED_SECONDS: Final = 1.0
MOST_CODE: Final = 4_096


class SignInFailed(Exception):
    """The browser is not signed in; the text is for the person."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The provider's addresses: a person logs in at one, and the other gives a token for a code."""

    authorization: str
    token: str


class SignIn:
    """Sign-ins at the provider of `tokens`. `now`: Unix time in seconds."""

    def __init__(self, tokens: Tokens, now: Callable[[], float] = time.time) -> None:
        self._tokens = tokens
        self._now = now
        self._secret = secrets.token_bytes(32)
        self._looking = asyncio.Lock()
        self._place: tuple[str, Path | None] | None = None
        self._found: Endpoints | None = None
        self._trouble = ""
        self._next_look = 0.0
        self._exchanges = asyncio.Semaphore(MOST_EXCHANGES)

    @property
    def provider(self) -> str | None:
        """The host of the provider; None: nobody signs in there."""
        settings = self._tokens.settings
        return urlsplit(settings.issuer).netloc if settings is not None and settings.client_id else None

    async def begin(self, redirect: str) -> tuple[str, str]:
        """Return the provider's address for a browser, and a ticket. `redirect`: where the provider sends it back to.

        SignInFailed."""
        settings = self._settings()
        endpoints = await self._endpoints(settings)
        address = base64.urlsafe_b64encode(redirect.encode()).decode()
        ticket = f"{int(self._now())}.{secrets.token_urlsafe(16)}.{address}"
        challenge = _written(sha256(self._made("verifier", ticket).encode()).digest())
        query = {
            "response_type": "code",
            "client_id": settings.client_id,
            "redirect_uri": redirect,
            "scope": settings.scopes,
            "state": self._made("state", ticket),
            "nonce": self._made("nonce", ticket),
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        url = endpoints.authorization
        return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(query)}", ticket

    async def finish(self, ticket: str | None, answer: Mapping[str, str]) -> str:
        """Return the access token of a person whom the provider sent back. SignInFailed; TokenRefused (grants.py)."""
        settings = self._settings()
        if ticket is None or not _same(self._made("state", ticket), answer.get("state", "")):
            raise SignInFailed("the answer belongs to no sign-in of this browser: begin again")
        begun, _, address = ticket.split(".")
        if not 0 <= self._now() - int(begun) <= SECONDS:
            raise SignInFailed(f"the sign-in took longer than {SECONDS // 60} minutes: begin again")
        if "error" in answer:
            raise SignInFailed(f"the identity provider refused: {_said(answer)}")
        if answer.get("iss", settings.issuer) != settings.issuer:
            raise SignInFailed("the answer is of another identity provider")
        code = answer.get("code", "")
        if not 0 < len(code) <= MOST_CODE:
            raise SignInFailed("the identity provider sent no code")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": base64.urlsafe_b64decode(address).decode(),
            "client_id": settings.client_id,
            "code_verifier": self._made("verifier", ticket),
        }
        content = await self._exchanged(settings, form)
        identity, access = content.get("id_token"), content.get("access_token")
        if not isinstance(identity, str) or not isinstance(access, str):
            raise SignInFailed("the identity provider gave no tokens for the code (is openid in --oauth-scopes?)")
        await self._tokens.check_identity(identity, settings.client_id, self._made("nonce", ticket))
        return access

    def sealed(self, text: str) -> str:
        """Return a text that comes back in a cookie, and that nobody else can have written."""
        written = base64.urlsafe_b64encode(text.encode()).decode()
        return f"{written}.{self._made('text', written)}"

    def unsealed(self, sealed: str) -> str:
        """Return the text; "" if it is not of this process."""
        written, _, proof = sealed.partition(".")
        if not _same(self._made("text", written), proof):
            return ""
        return base64.urlsafe_b64decode(written).decode()

    def _settings(self) -> TokenSettings:
        settings = self._tokens.settings
        if settings is None or not settings.client_id:
            raise SignInFailed("nobody signs in at an identity provider here: --oauth-client-id is not set")
        return settings

    def _made(self, kind: str, text: str) -> str:
        return _written(hmac.digest(self._secret, f"{kind} {text}".encode(), "sha256"))

    async def _endpoints(self, settings: TokenSettings) -> Endpoints:
        """Return the provider's addresses, from its configuration. SignInFailed."""
        async with self._looking:
            loop, place = asyncio.get_running_loop(), (settings.issuer, settings.authority)
            if place != self._place:
                self._place, self._found, self._next_look = place, None, 0.0
            if loop.time() >= self._next_look:
                try:
                    self._found, self._trouble = await _endpoints_of(settings), ""
                    self._next_look = loop.time() + REFRESH_SECONDS
                except SignInFailed as error:
                    self._trouble = str(error)
                    self._next_look = loop.time() + REST_SECONDS
            if self._found is None:
                raise SignInFailed(self._trouble)
            return self._found

    async def _exchanged(self, settings: TokenSettings, form: Mapping[str, str]) -> dict[str, Any]:
        """Send a code to the provider, and return its answer. Raises SignInFailed."""
        endpoints = await self._endpoints(settings)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._exchanges.acquire()
        except TimeoutError:
            raise SignInFailed("too many sign in at the moment: try again") from None
        loop, rest = asyncio.get_running_loop(), FAILED_SECONDS
        try:
            status, data = await _asked(settings, endpoints.token, form)
            content = _json(data)
            if status != 200:
                raise SignInFailed(f"the identity provider refuses the code: {_said(content) or status}")
            rest = 0.0
            return content
        finally:
            loop.call_later(rest, self._exchanges.release)


async def _endpoints_of(settings: TokenSettings) -> Endpoints:
    status, data = await _asked(settings, settings.issuer.rstrip("/") + DISCOVERY)
    content = _json(data)
    if status != 200 or content.get("issuer") != settings.issuer:
        raise SignInFailed("the identity provider's configuration is not there, or is of another issuer")
    try:
        return Endpoints(checked_url(content["authorization_endpoint"]), checked_url(content["token_endpoint"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SignInFailed("the identity provider's configuration names no place for signing in over https") from None


async def _asked(settings: TokenSettings, url: str, form: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """Status and bytes of the provider's answer. SignInFailed."""
    # Loaded only where somebody signs in: an HTTP client takes 0.2 s, and memory.
    from rewindmq.engine.identity.exchange import FETCH_SECONDS, answer

    try:
        async with asyncio.timeout(FETCH_SECONDS):
            context = await asyncio.to_thread(ssl.create_default_context, cafile=settings.authority)
            return await answer(url, context, form)
    except TimeoutError:
        why = f"no answer within {FETCH_SECONDS:.0f} seconds"
    except BadKeys as error:
        why = str(error)
    except Exception as error:  # httpx2 has many
        why = str(error) or type(error).__name__
    raise SignInFailed(f"the identity provider does not answer: {why}: try again later")


def _json(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _said(content: Mapping[str, Any]) -> str:
    """Return the error in an answer of the provider, for people."""
    words = [str(content[name])[:200] for name in ("error", "error_description") if content.get(name)]
    return "".join(each for each in ": ".join(words) if each.isprintable())


def _same(ours: str, theirs: str) -> bool:
    return hmac.compare_digest(ours.encode(), theirs.encode(errors="replace"))


def _written(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
