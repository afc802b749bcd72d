"""Tokens (JWT, RFC 7519) that an identity provider signed: each becomes a grant, or is refused with a reason.

    eyJ... -> form and algorithm -> the provider's key -> signature -> user, issuer, audience, times, scopes -> Grant

Rules of this file
- What a token says about itself chooses nothing: the algorithm has to be one of the settings', and none of those is
  symmetric. So neither `alg: none` nor an HMAC with a public key passes.
- A token must expire, and must name its user. (RabbitMQ 3.13 also takes tokens without an end, newer ones do not.)
- A clock of the provider may be SKEW_SECONDS ahead, where a token says from when on it is valid. It expires on time.
- A verification takes 0.2 to 0.4 ms, so the loop does it.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, ExpiredTokenError, JoseError
from joserfc.jwk import Key

from rewindmq.engine.identity.grants import LATEST_SECONDS, Grant, TokenRefused, written
from rewindmq.engine.identity.provider_keys import ProviderKeys, UnknownKey
from rewindmq.engine.identity.scopes import Scopes
from rewindmq.engine.identity.settings import TokenSettings

MOST_SCOPES: Final = 2_048  # as RabbitMQ
SKEW_SECONDS: Final = 30


class TokenRegistry(jws.JWSRegistry):
    """The library's rules for a signed token, which here may have unknown headers, and keys of 8192 bits."""

    max_header_length = 4_096
    max_signature_length = 2_048


class Verifier:
    """Verifies tokens by these settings."""

    def __init__(self, settings: TokenSettings) -> None:
        self.settings = settings
        self._registry = TokenRegistry(algorithms=settings.algorithms, strict_check_header=False)
        self.keys = ProviderKeys(*settings.place)

    async def verified(self, token: str, now: Callable[[], float]) -> Grant:
        """Verify a token and return its grant. `now`: Unix time in seconds. Raises TokenRefused."""
        settings = self.settings
        claims = await self._signed(token)
        user = _user(claims, settings.username_claims)
        try:
            _check_claims(claims, settings.issuer, settings.resource_server_id, int(now()))
            scopes = Scopes(_scopes(claims), settings.resource_server_id)
        except TokenRefused as error:
            raise TokenRefused(error.text, user) from None
        return Grant(user, scopes, min(math.floor(claims["exp"]), LATEST_SECONDS))

    async def check_identity(self, token: str, client_id: str, nonce: str, now: Callable[[], float]) -> None:
        """Check an ID token, which the provider made for one sign-in of this client. TokenRefused."""
        claims = await self._signed(token)
        _check_claims(claims, self.settings.issuer, client_id, int(now()))
        if claims.get("nonce") != nonce or claims.get("azp", client_id) != client_id:
            raise TokenRefused("the provider's ID token is of another sign-in")

    async def _signed(self, token: str) -> dict[str, Any]:
        """Return the claims of a token whose signature is right. TokenRefused."""
        settings = self.settings
        try:
            header = jws.extract_compact(token.encode(), registry=self._registry).headers()
        except (JoseError, ValueError, RecursionError):
            raise TokenRefused("the token is not a signed JWT") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in settings.algorithms:
            allowed = ", ".join(settings.algorithms)
            raise TokenRefused(f"the token's algorithm is {_shown(algorithm)}; allowed are {allowed}")
        if key_id is not None and not isinstance(key_id, str):
            raise TokenRefused("the token's key id (kid) is not text")
        try:
            key = await self.keys.find(key_id)
        except UnknownKey as error:
            raise TokenRefused(str(error)) from None
        return self._claims(token, key)

    def _claims(self, token: str, key: Key) -> dict[str, Any]:
        try:
            return jwt.decode(token, key, registry=self._registry).claims
        except BadSignatureError:
            raise TokenRefused("the token's signature is wrong") from None
        except (JoseError, ValueError, RecursionError) as error:
            why = error.description if isinstance(error, JoseError) else ""
            raise TokenRefused(f"the token cannot be verified{': ' if why else ''}{why[:120]}") from None


def _user(claims: dict[str, Any], names: tuple[str, ...]) -> str:
    user = next((claims[name] for name in names if isinstance(claims.get(name), str) and claims[name]), None)
    if user is None:
        raise TokenRefused(f"the token names no user: it has no claim {' or '.join(names)}")
    if not user.isprintable() or len(user.encode()) > 255:
        raise TokenRefused("the token's user name is longer than 255 bytes, or has characters that cannot be printed")
    return str(user)


def _check_claims(claims: dict[str, Any], of_issuer: str, for_whom: str, now: int) -> None:
    """TokenRefused: the token is not for this audience, or not for this time. `of_issuer` "": of any."""
    issuer, audience, expires = claims.get("iss"), claims.get("aud"), claims.get("exp")
    if expires is None:
        raise TokenRefused("the token does not expire: it has no claim exp")
    if of_issuer and issuer != of_issuer:
        raise TokenRefused(f"the token's issuer is {_shown(issuer)}, not '{of_issuer}'")
    audiences = audience.split() if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or for_whom not in audiences:
        raise TokenRefused(f"the token's audience is {_shown(audience)}, not '{for_whom}'")
    try:
        jwt.JWTClaimsRegistry(now).validate_exp(expires)
        skewed = jwt.JWTClaimsRegistry(now, SKEW_SECONDS)
        skewed.validate({name: claims[name] for name in ("nbf", "iat") if name in claims})
    except ExpiredTokenError:
        raise TokenRefused(f"the token expired at {written(expires)}") from None
    except JoseError as error:
        text = error.description[:1].lower() + error.description[1:]
        raise TokenRefused(text) from None


def _scopes(claims: dict[str, Any]) -> list[str]:
    """Return the scopes of a token: a list, or a text with blanks between them."""
    given = claims.get("scope", [])
    scopes = given.split(" ") if isinstance(given, str) else given
    if not isinstance(scopes, list) or not all(isinstance(each, str) for each in scopes):
        raise TokenRefused("the token's scope is neither a text nor a list of texts")
    if len(scopes) > MOST_SCOPES:
        raise TokenRefused(f"the token has more than {MOST_SCOPES} scopes")
    return scopes


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:80]
