"""Tokens of an identity provider: which are taken, for whom, and for what (B-55)."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OctKey, RSAKey

from rewindmq.engine.identity import provider_keys
from rewindmq.engine.identity.exchange import MOST_BYTES
from rewindmq.engine.identity.grants import TokenRefused
from rewindmq.engine.identity.provider_keys import keys_in
from rewindmq.engine.identity.scopes import Scopes
from rewindmq.engine.identity.settings import ALGORITHMS, BadKeys, TokenSettings, algorithms_of, checked_url
from rewindmq.engine.identity.tokens import Tokens, is_token
from tests.support.identity_provider import Provider, encoded, running_provider

WRONG_TYPE = "the token cannot be verified: Algorithm 'RS256' requires 'RSA' key"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


def settings(provider: Provider, **changed: Any) -> TokenSettings:
    return TokenSettings(**{"resource_server_id": "rabbitmq", "issuer": provider.issuer} | changed)


def in_loop(
    provider: Provider,
    test: Callable[[Tokens], Awaitable[None]],
    now: Callable[[], float] = time.time,
    **changed: Any,
) -> None:
    """Run a test with the tokens of a broker."""

    async def run() -> None:
        tokens = Tokens(settings(provider, **changed), now)
        tokens.start()
        try:
            await test(tokens)
        finally:
            tokens.stop()

    asyncio.run(run())


def refusal(provider: Provider, token: str, **changed: Any) -> str:
    """The reason for which a token is refused."""
    found = []

    async def test(tokens: Tokens) -> None:
        with pytest.raises(TokenRefused) as refused:
            await tokens.grant(token)
        found.append(refused.value.text)

    in_loop(provider, test, **changed)
    return found[0]


def test_b55_a_token_grants_its_scopes_to_its_user(provider: Provider) -> None:
    scope = "openid rabbitmq.tag:monitoring rabbitmq.read:v1/q-* rabbitmq.write:%2F/amq.topic/a.* other.write:*/*"

    async def test(tokens: Tokens) -> None:
        for given in (scope, scope.split()):
            grant = await tokens.grant(provider.token(given))
            assert (grant.user, grant.tags) == ("ann", ("monitoring",))
            scopes = grant.scopes
            assert [scopes.may_enter(vhost) for vhost in ("v1", "/", "v2")] == [True, True, False]
            assert scopes.may("read", "v1", "q-1")
            assert not scopes.may("write", "v1", "q-1")
            assert not scopes.may("configure", "/", "amq.topic")
            assert scopes.may_use_key("write", "/", "amq.topic", "a.b")
            assert not scopes.may_use_key("write", "/", "amq.topic", "b")
            assert not scopes.may_use_key("read", "v1", "q-1", "a.b"), "it has no part about keys"
        assert provider.asked == ["/.well-known/openid-configuration", "/keys"], "once for all tokens"

    in_loop(provider, test)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*", ("", "a"), ()),
        ("", ("",), ("a",)),
        ("a*", ("a", "ab"), ("", "ba")),
        ("*a", ("a", "ba"), ("ab", "aba")),  # the first a is taken, as in RabbitMQ
        ("a*c*e", ("ace", "abcde"), ("ae", "acef")),
        ("a**", ("ab",), ("a",)),  # also this
        ("%2F", ("/",), ("%2F",)),
        ("%2a", ("*",), ("a",)),
        ("a+b", ("a b",), ("a+b",)),
        ("a%", (), ("a%", "a")),
        ("%ff", (), ("%ff",)),
    ],
)
def test_b55_wildcards(pattern: str, matching: tuple[str, ...], others: tuple[str, ...]) -> None:
    scopes = Scopes([f"r.read:v/{pattern}"], "r")
    assert [name for name in (*matching, *others) if scopes.may("read", "v", name)] == list(matching)


def test_b55_scopes_of_another_form_allow_nothing() -> None:
    scopes = Scopes(["r.read:v", "r.read:a/b/c/d", "r.delete:*/*", "read:*/*", "r.", "r.read", "s.read:*/*"], "r")
    assert not scopes.may_enter("v")
    assert not any(scopes.may(each, "v", "q") for each in ("configure", "write", "read"))


def test_b55_a_token_that_is_not_right_is_refused_with_the_reason(provider: Provider) -> None:
    provider.add("second", "RS256")
    allowed = "allowed are RS256, ES256"
    expected = (
        (provider.unsigned(), f"the token's algorithm is 'none'; {allowed}"),
        (provider.confused(), f"the token's algorithm is 'HS256'; {allowed}"),
        (provider.forged(), "the token's signature is wrong"),
        (provider.token()[:-8] + "AAAAAAAA", "the token's signature is wrong"),
        (
            provider.token(iss="https://elsewhere"),
            f"the token's issuer is 'https://elsewhere', not '{provider.issuer}'",
        ),
        (provider.token(iss=None), f"the token's issuer is missing, not '{provider.issuer}'"),
        (provider.token(aud="others"), "the token's audience is 'others', not 'rabbitmq'"),
        (provider.token(aud=["a", "b"]), "the token's audience is ['a', 'b'], not 'rabbitmq'"),
        (provider.token(aud=None), "the token's audience is missing, not 'rabbitmq'"),
        (provider.token(exp=1_600_000_000), "the token expired at 2020-09-13T12:26:40+00:00"),
        (provider.token(exp=None), "the token does not expire: it has no claim exp"),
        (provider.token(exp="tomorrow"), "claim 'exp' must be a NumericDate value"),
        (provider.token(exp=True), "claim 'exp' must be a NumericDate value"),
        (provider.token(nbf=int(time.time()) + 600), "the token is not yet valid"),
        (provider.token(sub=None), "the token names no user: it has no claim sub or client_id"),
        (provider.token(sub=["ann"]), "the token names no user: it has no claim sub or client_id"),
        (
            provider.token(sub="a\nb"),
            "the token's user name is longer than 255 bytes, or has characters that cannot be printed",
        ),
        (provider.token({"read": 1}), "the token's scope is neither a text nor a list of texts"),
        (provider.token(["s"] * 2_049), "the token has more than 2048 scopes"),
        (provider.token("s" * 12_000), "the token is longer than 12288 bytes"),
        (f"{encoded({'alg': 'ES256', 'kid': 7})}.e30.AAAA", "the token's key id (kid) is not text"),
        (
            f"{encoded({'alg': 'ES256'})}.e30.AAAA",
            "the token names no key (kid), and the identity provider has several",
        ),
        (f"{encoded({'alg': 'RS256', 'kid': 'first'})}.e30.AAAA", WRONG_TYPE),
        ("eyJ" + "W1tb" * 2_900 + ".e30.AAAA", "the token is not a signed JWT"),
        ("eyJ.x.y", "the token is not a signed JWT"),
        ("", "the token is not a signed JWT"),
    )

    async def test(tokens: Tokens) -> None:
        for token, reason in expected:
            with pytest.raises(TokenRefused) as refused:
                await tokens.grant(token)
            assert refused.value.text == reason, token[:60]

    in_loop(provider, test)


def test_b55_the_refusal_names_the_user_of_a_signed_token(provider: Provider) -> None:
    async def test(tokens: Tokens) -> None:
        for token, user in ((provider.token(seconds=-1), "ann"), (provider.forged(), "")):
            with pytest.raises(TokenRefused) as refused:
                await tokens.grant(token)
            assert refused.value.user == user

    in_loop(provider, test)


def test_b55_the_provider_may_be_ahead_but_a_token_expires_on_time(provider: Provider) -> None:
    now = int(time.time())
    clock = {"now": float(now)}

    async def test(tokens: Tokens) -> None:
        token = provider.token(nbf=now + 20, iat=now + 20, exp=now + 60)
        grant = await tokens.grant(token)
        assert tokens.seconds_left(grant) == 60
        clock["now"] = now + 60
        assert tokens.has_expired(grant)
        with pytest.raises(TokenRefused, match="the token expired at"):
            await tokens.grant(token)

    in_loop(provider, test, lambda: clock["now"])


def test_b55_claims_and_algorithms_are_as_they_are_set(provider: Provider) -> None:
    provider.add("rsa", "RS256")

    async def test(tokens: Tokens) -> None:
        assert (await tokens.grant(provider.token(key_id="rsa", user_name="bob"))).user == "bob"
        with pytest.raises(TokenRefused, match="the token's algorithm is 'ES256'; allowed are RS256"):
            await tokens.grant(provider.token())

    in_loop(provider, test, username_claims=("user_name", "sub"), algorithms=("RS256",))
    assert algorithms_of("RS256, PS256") == ("RS256", "PS256")
    for wrong in ("HS256", "none", "RS256,none", ""):
        with pytest.raises(ValueError, match=r"is none of|at least one"):
            algorithms_of(wrong)


def test_b55_every_algorithm_that_may_be_set_is_verified(provider: Provider) -> None:
    for algorithm in ALGORITHMS:
        provider.add(algorithm, algorithm)

    async def test(tokens: Tokens) -> None:
        for algorithm in ALGORITHMS:
            token = provider.token(key_id=algorithm, nonce="n", sub=algorithm)
            assert (await tokens.grant(token)).user == algorithm

    in_loop(provider, test, algorithms=ALGORITHMS)


def test_b55_nobody_makes_a_node_ask_the_provider_again_and_again(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still after the first fetch, then the rest is over."""

    async def test(tokens: Tokens) -> None:
        await tokens.grant(provider.token())
        assert provider.asked == ["/keys"]
        provider.add("new")
        strange = [f"{encoded({'alg': 'ES256', 'kid': f'k{number}'})}.e30.AAAA" for number in range(50)]
        for token in strange:
            with pytest.raises(TokenRefused, match=r"has no key 'k\d+' \(kid\)"):
                await tokens.grant(token)
        assert provider.asked == ["/keys"], "it rests"
        assert tokens._verifier is not None
        tokens._verifier.keys.rested_until = 0.0
        asked = [asyncio.ensure_future(tokens.grant(token)) for token in (*strange, provider.token(key_id="new"))]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each).__name__ for each in found] == ["TokenRefused"] * 50 + ["Grant"]
        assert provider.asked == ["/keys"] * 2, "all wait for the same answer"

    in_loop(provider, test, keys=provider.issuer + "/keys")


def test_b55_keys_stay_while_the_provider_is_away_or_talks_nonsense(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(tokens: Tokens) -> None:
        await tokens.grant(provider.token())
        assert tokens._verifier is not None
        source = tokens._verifier.keys
        troubles: list[tuple[Callable[[], None], str]] = [
            (lambda: setattr(provider, "away", True), "RemoteProtocolError"),
            (lambda: setattr(provider, "status", 500), "answers 500"),
            (lambda: setattr(provider, "status", 302), "answers 302"),  # it is not followed
            (lambda: setattr(provider, "document", b"<html>"), "not a JSON Web Key Set"),
            (lambda: setattr(provider, "document", b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'), "no public key"),
            (lambda: setattr(provider, "document", b"[" * 100_000), "not a JSON Web Key Set"),
            (lambda: setattr(provider, "document", b" " * (MOST_BYTES + 1)), f"more than {MOST_BYTES} bytes"),
        ]
        for cause, text in troubles:
            provider.away, provider.status, provider.document = False, 200, None
            cause()
            caplog.clear()
            source.rested_until = 0.0
            with pytest.raises(TokenRefused, match="has no key 'x'"):
                await tokens.grant(f"{encoded({'alg': 'ES256', 'kid': 'x'})}.e30.AAAA")
            assert text in caplog.text
            assert "1 keys stay" in caplog.text
            assert (await tokens.grant(provider.token(sub=text))).user == text

    in_loop(provider, test, keys=provider.issuer + "/keys")


def test_b55_a_silent_provider_holds_a_login_up_for_a_time_only(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_keys, "FETCH_SECONDS", 0.1)
    provider.gate.clear()
    assert refusal(provider, provider.token()) == "the keys of the identity provider could not be fetched yet"


def test_b55_a_key_that_the_provider_withdrew_verifies_nothing_more(provider: Provider) -> None:
    provider.add("second")
    token = provider.token()

    async def test(tokens: Tokens) -> None:
        await tokens.grant(token)
        del provider.keys["first"]
        assert tokens._verifier is not None
        tokens._verifier.keys.rested_until = 0.0
        with pytest.raises(TokenRefused, match="has no key 'x'"):
            await tokens.grant(f"{encoded({'alg': 'ES256', 'kid': 'x'})}.e30.AAAA")
        with pytest.raises(TokenRefused, match="has no key 'first'"):
            await tokens.grant(token)
        assert (await tokens.grant(provider.token(key_id="second"))).user == "ann"

    in_loop(provider, test)


def test_b55_the_configuration_of_another_issuer_is_not_believed(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    real, provider.issuer = provider.issuer, "https://somebody.else"
    found = refusal(provider, provider.token(), issuer=real)
    assert found == "the keys of the identity provider could not be fetched yet"
    assert "is of issuer 'https://somebody.else'" in caplog.text


def test_b55_keys_of_a_file_and_other_settings_are_taken_over(provider: Provider, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(provider.jwks())

    async def test(tokens: Tokens) -> None:
        await tokens.grant(provider.token())
        provider.add("second")
        with pytest.raises(TokenRefused, match="has no key 'second'"):
            await tokens.grant(provider.token(key_id="second"))
        same = settings(provider, keys=str(file))
        file.write_bytes(b"{}")
        with pytest.raises(BadKeys, match=r"keys\.json: it is not a JSON Web Key Set"):
            tokens.changed_to(same)
        file.write_bytes(provider.jwks())
        tokens.changed_to(same)()
        await tokens.grant(provider.token(key_id="second"))
        tokens.changed_to(settings(provider, keys=str(file), issuer="https://other"))()
        with pytest.raises(TokenRefused, match="issuer is"):
            await tokens.grant(provider.token())
        tokens.changed_to(None)()
        with pytest.raises(TokenRefused, match="tokens are not taken here"):
            await tokens.grant(provider.token())
        assert not provider.asked

    in_loop(provider, test, keys=str(file))


def test_b55_fetched_keys_stay_when_other_settings_change(provider: Provider) -> None:
    async def test(tokens: Tokens) -> None:
        await tokens.grant(provider.token())
        asked = len(provider.asked)
        tokens.changed_to(settings(provider, resource_server_id="others"))()
        with pytest.raises(TokenRefused, match="audience"):
            await tokens.grant(provider.token())
        assert (await tokens.grant(provider.token(aud="others"))).user == "ann"
        assert len(provider.asked) == asked

    in_loop(provider, test)


def test_b55_only_strong_public_keys_for_signatures_are_taken() -> None:
    good = RSAKey.generate_key(2048, {"kid": "good"}).as_dict(private=True)
    short = good | {"kid": "short", "n": str(good["n"])[:171]}
    long = good | {"kid": "long", "n": str(good["n"]) * 8}
    shared = OctKey.generate_key(256, {"kid": "shared"}).as_dict(private=True)
    for_encryption = good | {"kid": "enc", "use": "enc"}
    broken = {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "broken"}
    listed = [short, long, shared, for_encryption, broken, {"kty": "future"}, 7, good]
    found = keys_in(json.dumps({"keys": listed}).encode())
    assert list(found) == ["good"]
    assert not found["good"].is_private
    with pytest.raises(BadKeys, match="at most 100"):
        keys_in(json.dumps({"keys": [good] * 101}).encode())


def test_b55_keys_come_over_https_or_from_this_machine() -> None:
    for fine in (
        "https://login.example.com/realms/a",
        "http://127.0.0.1:8080",
        "http://localhost/",
        "http://[::1]:1/k",
    ):
        assert checked_url(fine) == fine
    for wrong in ("http://login.example.com", "ftp://127.0.0.1/k", "https://", "file:///etc/keys", "login"):
        with pytest.raises(ValueError, match="is not an https URL"):
            checked_url(wrong)


def test_b55_a_password_is_not_taken_for_a_token(provider: Provider) -> None:
    assert is_token(provider.token())
    assert is_token(provider.unsigned())
    for password in ("guest", "", "a.b.c", "eyJhbGciOiJub25lIn0", "eyJ hbGci.e30.x", provider.token() + "\n"):
        assert not is_token(password)
