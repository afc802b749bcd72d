"""B-54. Addresses of brokers for a shovel, and the password in a file."""

from pathlib import Path

import pytest

from rewindmq.engine.shovel.address import BadAddress, address_from


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("amqp://rabbit", ("rabbit", 5672, "/", "guest", "guest")),
        ("amqps://rabbit/", ("rabbit", 5671, "/", "guest", "guest")),
        ("amqp://mover@rabbit:5673/shop", ("rabbit", 5673, "shop", "mover", "secret")),
        ("amqp://a%40b@[::1]:5673/%2Fshop%2Feu", ("::1", 5673, "/shop/eu", "a@b", "secret")),
    ],
)
def test_an_address_is_read(uri: str, expected: tuple[object, ...]) -> None:
    found = address_from(uri, None if "@" not in uri else "secret", None)
    assert (found.host, found.port, found.vhost, found.user, found.password) == expected
    assert address_from(found.shown, None, None).vhost == found.vhost
    assert "secret" not in f"{found}{found.shown}"


@pytest.mark.parametrize(
    ("uri", "password", "ca", "line"),
    [
        ("http://rabbit", None, None, "not the address of a broker"),
        ("rabbit:5672", None, None, "not the address of a broker"),
        ("amqp://[::1", None, None, "not the address of a broker"),
        ("amqp://u:secret@rabbit", None, None, "put it into a file"),
        ("http://u:secret@rabbit", None, None, "put it into a file"),
        ("amqp://rabbit:99999", None, None, "not a number from 1 to 65535"),
        ("amqp://rabbit/a/b", None, None, "a slash in the name of a vhost is %2F: amqp://rabbit/a%2Fb"),
        ("amqp://rabbit/a?heartbeat=3", None, None, "leave out what follows the vhost"),
        ("amqp://mover@rabbit", None, None, "user 'mover' needs a file with the password"),
        ("amqp://rabbit", None, "ca.pem", "not encrypted"),
    ],
)
def test_a_wrong_address_is_refused(uri: str, password: str | None, ca: str | None, line: str) -> None:
    with pytest.raises(BadAddress, match=line.replace("?", r"\?")) as raised:
        address_from(uri, password, None if ca is None else Path(ca))
    assert "secret" not in str(raised.value)
