"""The sign-in of a browser at an identity provider, without a browser: what is refused, and what it costs (B-66)."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from rewindmq.engine.identity import sign_in as module
from rewindmq.engine.identity.grants import TokenRefused
from rewindmq.engine.identity.settings import TokenSettings, scopes_of
from rewindmq.engine.identity.sign_in import SignIn, SignInFailed
from rewindmq.engine.identity.tokens import Tokens
from tests.support.identity_provider import Provider, running_provider

HERE = "http://desk/sign-in/callback"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider() as made:
        yield made


class Signing:
    """A sign-in that is under way. `query`: what a right provider would send back."""

    def __init__(self, url: str, ticket: str) -> None:
        self.asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        self.ticket = ticket
        self.query = {"code": "a code", "state": self.asked["state"]}


def signing(provider: Provider, work: Callable[[SignIn, Signing], Coroutine[Any, Any, None]], **changed: Any) -> None:
    """Begin a sign-in, and go on with it."""

    async def run() -> None:
        now = changed.pop("now", lambda: 1_000.0)
        tokens = Tokens(TokenSettings("rabbitmq", provider.issuer, client_id="desk", **changed))
        tokens.start()
        try:
            made = SignIn(tokens, now)
            await work(made, Signing(*await made.begin(HERE)))
        finally:
            tokens.stop()

    asyncio.run(run())


def test_b66_a_code_becomes_a_token(provider: Provider) -> None:
    async def work(sign_in: SignIn, begun: Signing) -> None:
        assert begun.asked["x"] == "1", "what the provider's address has stays"
        access = provider.token()
        provider.given = {"access_token": access, "id_token": provider.token(aud="desk", nonce=begun.asked["nonce"])}
        assert await sign_in.finish(begun.ticket, begun.query) == access
        [form] = provider.forms
        assert (form["redirect_uri"], form["client_id"], len(form["code_verifier"])) == (HERE, "desk", 43)
        assert form["code_verifier"] not in str(begun.asked)
        assert len({begun.asked["state"], begun.asked["nonce"], form["code_verifier"]}) == 3

    signing(provider, work)


def test_b66_what_is_no_answer_to_this_sign_in_is_refused(provider: Provider) -> None:
    now = [1_000.0]

    async def work(sign_in: SignIn, begun: Signing) -> None:
        _, other = await sign_in.begin(HERE)
        moved = begun.ticket.replace("1000.", "1500.")
        for ticket, query, said in (
            (None, begun.query, "of this browser"),
            ("", begun.query, "of this browser"),
            ("é", begun.query, "of this browser"),
            (other, begun.query, "of this browser"),
            (moved, begun.query, "of this browser"),
            (begun.ticket, {"code": "x"}, "of this browser"),
            (begun.ticket, begun.query | {"state": "é"}, "of this browser"),
            (begun.ticket, begun.query | {"iss": "https://evil.example"}, "of another identity provider"),
            (begun.ticket, begun.query | {"code": ""}, "sent no code"),
            (begun.ticket, begun.query | {"code": "x" * 5_000}, "sent no code"),
            (begun.ticket, begun.query | {"error": "access_denied"}, "refused: access_denied"),
            (begun.ticket, begun.query | {"error": "a\x00\nb" * 500}, "refused: aba"),
        ):
            with pytest.raises(SignInFailed, match=said) as caught:
                await sign_in.finish(ticket, query)
            assert len(str(caught.value)) < 300
        now[0] += module.SECONDS + 1
        with pytest.raises(SignInFailed, match="took longer than 10 minutes"):
            await sign_in.finish(begun.ticket, begun.query)
        assert provider.forms == [], "the provider was not asked"

    signing(provider, work, now=lambda: now[0])


def test_b66_an_id_token_of_another_sign_in_is_refused(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAILED_SECONDS", 0.0)

    async def work(sign_in: SignIn, begun: Signing) -> None:
        nonce = begun.asked["nonce"]
        for identity, said in (
            (provider.token(aud="desk", nonce="another"), "of another sign-in"),
            (provider.token(aud="desk"), "of another sign-in"),
            (provider.token(aud=["desk", "x"], azp="x", nonce=nonce), "of another sign-in"),
            (provider.token(aud="x", nonce=nonce), "audience is 'x', not 'desk'"),
            (provider.token(aud="desk", nonce=nonce, iss="https://x"), "issuer is"),
            (provider.token(aud="desk", nonce=nonce, seconds=-2_000_000_000), "expired"),
            (provider.unsigned(), "allowed are"),
            ("opaque", "is not a signed JWT"),
        ):
            provider.given = {"access_token": provider.token(), "id_token": identity}
            with pytest.raises(TokenRefused, match=said):
                await sign_in.finish(begun.ticket, begun.query)

    signing(provider, work)


def test_b66_a_nonsense_of_the_provider_is_one_line(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAILED_SECONDS", 0.0)

    async def work(sign_in: SignIn, begun: Signing) -> None:
        nonsense: tuple[object, ...] = (
            [],
            {},
            {"access_token": "x"},
            {"access_token": 1, "id_token": 2},
            "x" * 600_000,
        )
        for each in nonsense:
            provider.given = each
            with pytest.raises(SignInFailed, match=r"gave no tokens|more than 524288 bytes"):
                await sign_in.finish(begun.ticket, begun.query)
        provider.status, provider.given = 400, {"error": "invalid_grant", "error_description": "used"}
        with pytest.raises(SignInFailed, match="refuses the code: invalid_grant: used"):
            await sign_in.finish(begun.ticket, begun.query)
        provider.status = 302  # a redirect is not followed
        with pytest.raises(SignInFailed, match="refuses the code"):
            await sign_in.finish(begun.ticket, begun.query)
        provider.away = True
        with pytest.raises(SignInFailed, match="does not answer"):
            await sign_in.finish(begun.ticket, begun.query)

    signing(provider, work)


def test_b66_the_provider_is_asked_for_its_configuration_once(provider: Provider) -> None:
    discovery = "/.well-known/openid-configuration"

    async def run() -> None:
        sign_in = SignIn(Tokens(TokenSettings("rabbitmq", provider.issuer, client_id="desk")))
        provider.away = True
        for _ in range(20):
            with pytest.raises(SignInFailed, match="does not answer"):
                await sign_in.begin(HERE)
        assert provider.asked.count(discovery) == 1, "it is left alone for a while"
        sign_in = SignIn(Tokens(TokenSettings("rabbitmq", provider.issuer, client_id="desk")))
        provider.away = False
        await asyncio.gather(*(sign_in.begin(HERE) for _ in range(20)))
        assert provider.asked.count(discovery) == 2

    asyncio.run(run())


def test_b66_few_codes_are_exchanged_at_a_time(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """A code that the provider refuses keeps its place, so that no other code takes it at once."""
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(module, "FAILED_SECONDS", 60.0)

    async def work(sign_in: SignIn, begun: Signing) -> None:
        provider.status = 400
        asking = [sign_in.finish(begun.ticket, begun.query) for _ in range(20)]
        said = [str(each) for each in await asyncio.gather(*asking, return_exceptions=True)]
        assert sum("refuses the code" in each for each in said) == len(provider.forms) == module.MOST_EXCHANGES
        assert sum("too many sign in at the moment" in each for each in said) == 20 - module.MOST_EXCHANGES

    signing(provider, work)


def test_b66_scopes_have_openid() -> None:
    assert scopes_of("openid  a:*/* ") == "openid a:*/*"
    with pytest.raises(ValueError, match="'openid' has to be one of them"):
        scopes_of("profile")
