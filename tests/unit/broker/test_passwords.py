"""Hashes that come from RabbitMQ and go there (rabbit_password.erl, and the example that its guide documents)."""

import asyncio
import base64
import hashlib

import pytest

from rewindmq.engine.broker.passwords import Passwords, exported, imported, rabbitmq_hash
from rewindmq.engine.broker.users import hash_of_user
from rewindmq.engine.errors import PreconditionFailed

SHA256, SHA512, MD5 = (f"rabbit_password_hashing_{name}" for name in ("sha256", "sha512", "md5"))
# Its salt is 908D C60A, its password test12: the example that RabbitMQ documents.
DOCUMENTED = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def verified(kept: str, password: str) -> bool:
    return asyncio.run(Passwords().verify(kept, password))


def test_a_hash_of_rabbitmq_lets_its_user_in() -> None:
    kept = imported(DOCUMENTED, SHA256)
    assert kept == f"$rabbitmq-sha256${DOCUMENTED}"
    assert verified(kept, "test12")
    assert not verified(kept, "test13")
    assert exported(kept) == (DOCUMENTED, SHA256)


@pytest.mark.parametrize("algorithm", [SHA256, SHA512, MD5])
def test_every_algorithm_of_rabbitmq(algorithm: str) -> None:
    salt = b"\x00\xff\x10$"
    digest = hashlib.new(algorithm.rpartition("_")[2], salt + "pässword".encode()).digest()
    given = base64.b64encode(salt + digest).decode()
    kept = imported(given, algorithm)
    assert verified(kept, "pässword")
    assert not verified(kept, "password")
    assert exported(kept) == (given, algorithm)


def test_a_history_that_no_broker_wrote() -> None:
    for kept in ("$rabbitmq-sha256$!", "$rabbitmq-rot13$" + DOCUMENTED, "$rabbitmq-sha256$", "$argon2id$?", "?"):
        assert not verified(kept, "test12"), kept


def test_our_hashes_go_out_and_come_in() -> None:
    ours = Passwords().hash("secret")
    encoded, algorithm = exported(ours)
    assert (base64.b64decode(encoded).decode(), algorithm) == (ours, "argon2id")
    assert imported(encoded, algorithm) == imported(ours, algorithm) == ours
    assert imported(*exported("")) == ""
    for given in (ours, encoded):
        assert hash_of_user({"password_hash": given}) == ours, "tools leave hashing_algorithm out"
    assert hash_of_user({"password_hash": DOCUMENTED}) == imported(DOCUMENTED, SHA256)


def test_a_new_hash_for_rabbitmq_is_right_and_never_the_same() -> None:
    assert verified(imported(rabbitmq_hash("x"), SHA256), "x")
    assert rabbitmq_hash("x") != rabbitmq_hash("x")


@pytest.mark.parametrize(
    ("given", "algorithm", "text"),
    [
        ("!!!", SHA256, "not_base64"),
        ("AAAA", SHA256, "has 36 bytes, this one 3"),
        (DOCUMENTED, SHA512, "has 68 bytes"),
        (DOCUMENTED, "rabbit_password_hashing_rot13", "'rabbit_password_hashing_rot13' is not known"),
        (DOCUMENTED, "argon2id", "no PHC string of argon2id"),
        ("$argon2i$v=19$m=16,t=1,p=1$c29tZXNhbHQ$aGFzaGhhc2hoYXNoaGFzaA", "argon2id", "no PHC string of argon2id"),
        ("$argon2id$v=19$m=99999999,t=1,p=1$c29tZXNhbHQ$aGFzaGhhc2hoYXNoaGFzaA", "argon2id", "more memory or time"),
    ],
)
def test_what_is_no_hash_is_refused(given: str, algorithm: str, text: str) -> None:
    with pytest.raises(PreconditionFailed, match=text):
        imported(given, algorithm)
