"""Identity from tokens: what a JWT of an identity provider (OAuth 2.0, OpenID Connect) lets its user do.

    settings.py       which tokens are taken
    scopes.py         rabbitmq.read:VHOST/NAME[/KEY] and rabbitmq.tag:NAME, as RabbitMQ's plugin reads them
    grants.py         what one token grants, to which user, until when
    provider_keys.py  the provider's public keys, from a file or fetched from a URL
    verifier.py       a token becomes a grant, or is refused with a reason
    tokens.py         the tokens of a broker: those that were verified are remembered
    sign_in.py        signs a browser in at the provider
    exchange.py       asks the provider over HTTP

Only exchange.py, provider_keys.py and verifier.py import httpx2 and joserfc. They are loaded when tokens are taken,
which costs 0.3 s.
"""
