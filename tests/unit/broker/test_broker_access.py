"""Users, permissions and virtual hosts (S-156; RabbitMQ's 403 and 530 texts)."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import VerifyMismatchError

from rewindmq.engine.broker.passwords import VERIFYING_THREADS, Passwords, imported, rabbitmq_hash
from rewindmq.engine.errors import AccessRefused, NotAllowed, NotFound, PreconditionFailed
from rewindmq.engine.host.eager import at_once
from rewindmq.engine.partition.sessions import Session
from rewindmq.schemas.values import Actor
from tests.support.broker_harness import Client, Harness, args, refusal

REFUSED = "the password is not this user's, or there is no such user"


def user(h: Harness, configure: str = "", write: str = "", read: str = "") -> None:
    h.broker.access.users.set(Actor("guest", 0), "u", "secret", ())
    h.broker.access.users.set_permissions(Actor("guest", 0), "/", "u", configure, write, read)


def test_login(h: Harness) -> None:
    assert h.login("guest", "guest") == "guest"
    for name, password in (("guest", "wrong"), ("nobody", "guest"), ("guest", "")):
        with refusal(AccessRefused, REFUSED):
            h.login(name, password)


def test_a_changed_password_counts_at_once(h: Harness) -> None:
    assert h.login("guest", "guest") == "guest"
    h.broker.access.users.set(Actor("guest", 0), "guest", "new", ("administrator",))
    with refusal(AccessRefused, REFUSED):
        h.login("guest", "guest")
    h.broker.access.users.set(Actor("guest", 0), "guest", None, ())
    assert h.login("guest", "new") == "guest"
    h.broker.access.users.set(Actor("guest", 0), "guest", "", ())
    for password in ("", "new"):
        with refusal(AccessRefused, REFUSED):
            h.login("guest", password)


def test_passwords_are_argon2id_and_a_right_one_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = Passwords()
    hashed = passwords.hash("secret")
    assert hashed.startswith("$argon2id$")
    assert "secret" not in hashed
    verified = []

    def verify(hashed: str, password: str) -> None:
        verified.append(password)
        if password != "secret":
            raise VerifyMismatchError

    monkeypatch.setattr(passwords, "hasher", SimpleNamespace(verify=verify))

    async def log_in() -> list[bool]:
        together = await asyncio.gather(*(passwords.verify(hashed, "secret") for _ in range(100)))
        for _ in range(100):
            assert at_once(passwords.verify(hashed, "secret")), "it had to wait"
        return [*together, await passwords.verify(hashed, "wrong"), await passwords.verify(hashed, "wrong")]

    assert asyncio.run(log_in()) == [True] * 100 + [False] * 2
    assert verified.count("secret") <= VERIFYING_THREADS
    assert verified.count("wrong") == 2


def test_who_is_not_there_is_verified_like_who_is(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.broker.access.users.set(Actor("guest", 0), "silent", "", ())
    h.broker.access.users.set_hash(
        Actor("guest", 0), "moved", imported(rabbitmq_hash("secret"), "rabbit_password_hashing_sha256"), ()
    )
    verified = []
    real = PasswordHasher.verify

    def verify(hasher: PasswordHasher, hashed: str, password: str) -> bool:
        verified.append(extract_parameters(hashed))
        return real(hasher, hashed, password)

    monkeypatch.setattr(PasswordHasher, "verify", verify)
    for name in ("guest", "silent", "nobody", "moved"):
        with refusal(AccessRefused, REFUSED):
            h.login(name, "wrong")
    assert len(verified) == 4
    assert len(set(map(str, verified))) == 1, "a hash of another kind takes another time"


def test_a_password_that_changes_while_it_is_verified(h: Harness) -> None:
    async def log_in() -> None:
        verifying = asyncio.ensure_future(h.broker.access.control.authenticate("guest", "guest", "127.0.0.1"))
        await asyncio.sleep(0)
        h.broker.access.users.set(Actor("guest", 0), "guest", "new", ("administrator",))
        with refusal(AccessRefused, REFUSED):
            await verifying

    h.loop.run_until_complete(log_in())


def test_sessions_need_a_vhost_and_permissions_in_it(h: Harness) -> None:
    h.broker.vhosts.create(Actor("guest", 0), "v", "")
    with refusal(NotAllowed, "vhost nope not found"):
        h.session(vhost="nope")
    with refusal(NotAllowed, "access to vhost 'v' refused for user 'guest'"):
        h.session(vhost="v")
    h.broker.access.users.set_permissions(Actor("guest", 0), "v", "guest", "", "", "")
    assert h.session(vhost="v").vhost == "v"


Act = Callable[[Harness, Session], object]
CASES: list[tuple[str, str, Act]] = [
    ("configure", "queue 'q'", lambda h, s: h.declare(s, "q")),
    ("configure", "queue 'mine'", lambda h, s: h.broker.queues.delete(s, "mine", False, False)),
    ("configure", "exchange 'x'", lambda h, s: h.exchange(s, "x", "direct")),
    ("configure", "exchange 'x'", lambda h, s: h.broker.exchanges.delete(s, "x", False)),
    ("write", "exchange 'amq.default'", lambda h, s: h.broker.exchanges.route(s, "", "mine", None)),
    ("write", "exchange 'amq.topic'", lambda h, s: h.broker.exchanges.route(s, "amq.topic", "k", None)),
    ("write", "queue 'mine'", lambda h, s: h.bind(s, "amq.topic", "mine")),
    ("read", "queue 'mine'", lambda h, s: h.consume(s, "mine", Client())),
    ("read", "queue 'mine'", lambda h, s: h.broker.consumers.fetch(s, 1, Client(), "mine", True)),
    ("read", "queue 'mine'", lambda h, s: h.broker.queues.purge(s, "mine")),
]


@pytest.mark.parametrize(("permission", "what", "act"), CASES)
def test_each_permission(h: Harness, permission: str, what: str, act: Act) -> None:
    h.declare(h.session(), "mine")
    user(h)
    with refusal(AccessRefused, f"{permission} access to {what} in vhost '/' refused for user 'u'"):
        act(h, h.session("u"))
    user(h, **{"read": "amq", permission: ".*"})
    act(h, h.session("u"))


def test_binding_also_reads_the_source(h: Harness) -> None:
    h.declare(h.session(), "mine")
    user(h, write="mine")
    with refusal(AccessRefused, "read access to exchange 'amq.topic' in vhost '/' refused for user 'u'"):
        h.bind(h.session("u"), "amq.topic", "mine")
    user(h, write="mine", read="topic")
    h.bind(h.session("u"), "amq.topic", "mine")


def test_s156_a_dead_letter_exchange_needs_two_permissions(h: Harness) -> None:
    arguments = args(x_dead_letter_exchange="dlx")
    user(h, configure="^q$")
    with refusal(AccessRefused, "read access to queue 'q' in vhost '/' refused for user 'u'"):
        h.declare(h.session("u"), "q", arguments)
    user(h, configure="^q$", read="^q$")
    with refusal(AccessRefused, "write access to exchange 'dlx' in vhost '/' refused for user 'u'"):
        h.declare(h.session("u"), "q", arguments)
    user(h, configure="^q$", read="^q$", write="dlx")
    h.declare(h.session("u"), "q", arguments)
    text = "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'p' in vhost '/'"
    with refusal(PreconditionFailed, text):
        h.declare(h.session(), "p", args(x_dead_letter_exchange=1))


def test_s068_passive_needs_no_permission(h: Harness) -> None:
    queue = h.declare(h.session(), "q")
    user(h)
    assert h.declare(h.session("u"), "q", passive=True) is queue


def test_taking_a_permission_away_moves_the_routing_version(h: Harness) -> None:
    user(h, write=".*")
    session = h.session("u")
    h.broker.exchanges.route(session, "amq.topic", "k", None)
    version = h.broker.router.version
    h.broker.access.users.clear_permissions(Actor("guest", 0), "/", "u")
    assert h.broker.router.version > version
    with pytest.raises(AccessRefused):
        h.broker.exchanges.route(session, "amq.topic", "k", None)


def test_refusals_of_the_administration(h: Harness) -> None:
    with refusal(NotFound, "user 'nobody' does not exist"):
        h.broker.access.users.delete(Actor("guest", 0), "nobody")
    with refusal(NotFound, "user 'nobody' does not exist"):
        h.broker.access.users.set_permissions(Actor("guest", 0), "/", "nobody", "", "", "")
    with refusal(NotFound, "vhost 'nope' does not exist"):
        h.broker.vhosts.delete(Actor("guest", 0), "nope")
    with pytest.raises(PreconditionFailed, match=r"invalid regular expression '\('"):
        h.broker.access.users.set_permissions(Actor("guest", 0), "/", "guest", "(", "", "")


def test_a_deleted_vhost_takes_everything_with_it(h: Harness) -> None:
    h.broker.vhosts.create(Actor("guest", 0), "v", "soon gone")
    h.broker.access.users.set_permissions(Actor("guest", 0), "v", "guest", ".*", ".*", ".*")
    session = h.session(vhost="v")
    closed: list[str] = []
    session.close = closed.append
    for number in range(4):
        h.declare(session, f"q{number}")
        h.bind(session, "amq.fanout", f"q{number}")
    h.declare(h.session(), "other")
    h.broker.vhosts.delete(Actor("guest", 0), "v")
    h.settle()
    assert closed == ["vhost 'v' is deleted"]
    assert [queue.name for queue in h.broker.queues.all()] == ["other"]
    h.broker.sessions.close(session)
    h.restart()
    assert "v" not in h.broker.topology.vhosts
