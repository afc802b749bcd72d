"""Logins and permissions.

Rules of this file
- Refusing an unknown user takes as long as refusing a wrong password (passwords.py), so that nobody can find out by the
  clock which users exist.
- A user's permissions in a vhost are three regular expressions (projections/rules/patterns.py: what they may be). Each
  is searched in the resource's name, not anchored; an empty expression matches the empty name only. The default
  exchange has the name `amq.default`. For topic exchanges a user may also have expressions for routing keys, with the
  variables {username} and {vhost}.
- Texts are RabbitMQ 3.13's (rabbit_access_control.erl, rabbit_auth_backend_internal.erl,
  rabbit_auth_mechanism_plain.erl).
"""

from rewindmq.engine.broker.passwords import NOBODYS_HASH, Passwords
from rewindmq.engine.errors import AccessRefused, resource
from rewindmq.projections.rules.patterns import in_history
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.metadata_events import ExchangeDeclared

REMEMBERED_DECISIONS = 65_536
ITSELF = ""  # the user name of the broker itself: it has every permission, and no client can log in with it


class Access:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._passwords = Passwords()
        self._decisions: dict[tuple[str, str, str, str], bool] = {}

    def changed(self) -> None:
        """Users or permissions changed."""
        self._decisions.clear()

    def hash(self, password: str) -> str:
        return self._passwords.hash(password)

    async def authenticate(self, user: str, password: str) -> str:
        """Log a user in by password: the user's name. AccessRefused. Waits for a thread that verifies the password."""
        password_hash = self._hash_of(user)
        right = await self._passwords.verify(password_hash or NOBODYS_HASH, password)
        changed = password_hash != self._hash_of(user)  # meanwhile
        if not right or not password_hash or not password or changed or user == ITSELF:
            raise AccessRefused("the password is not this user's, or there is no such user")
        return user

    def identify(self, user: str) -> str:
        """Log a user in whose certificate was verified: the user's name. AccessRefused: there is no such user."""
        if user == ITSELF or user not in self._topology.users:
            raise AccessRefused(f"user '{user}' of the certificate does not exist")
        return user

    async def has_password(self, user: str, password: str) -> bool:
        """Whether the user has this password. Waits as `authenticate` does."""
        password_hash = self._hash_of(user)
        return password_hash != "" and await self._passwords.verify(password_hash, password)

    def _hash_of(self, user: str) -> str:
        known = self._topology.users.get(user)
        return "" if known is None else known.password_hash

    def may_enter(self, user: str, vhost: str) -> bool:
        """Whether the user has any permissions in the vhost, even empty ones."""
        return (vhost, user) in self._topology.permissions

    def check(self, user: str, vhost: str, permission: str, kind: str, name: str) -> None:
        """AccessRefused: the user lacks the `permission` (configure, write, read) on the `kind` (queue, exchange)."""
        name = "amq.default" if kind == "exchange" and name == "" else name
        key = (user, vhost, permission, name)
        allowed = self._decisions.get(key)
        if allowed is None:
            allowed = self._decide(user, vhost, permission, name)
            if len(self._decisions) >= REMEMBERED_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = allowed
        if not allowed:
            text = f"{permission} access to {resource(kind, name, vhost)} refused for user '{user}'"
            raise AccessRefused(text, (kind, name))

    def check_topic(self, user: str, exchange: ExchangeDeclared, permission: str, routing_key: str) -> None:
        """AccessRefused: the user's topic permissions (`permission`: write or read) leave out this routing key. A user
        without topic permissions for an exchange may use all its keys (rabbit_auth_backend_internal.erl
        `check_topic_access/4`)."""
        if exchange.type != "topic":
            return
        name, vhost = exchange.exchange, exchange.vhost
        granted = self._topology.topic_permissions.get((vhost, user, name))
        if granted is None:
            return
        pattern = granted.write if permission == "write" else granted.read
        for variable, value in (("{username}", user), ("{vhost}", vhost)):
            pattern = pattern.replace(variable, value)
        if not in_history(pattern or "^$").found_in(routing_key):
            raise AccessRefused(
                f"{permission} access to topic '{routing_key}' in exchange '{name}' in vhost '{vhost}' refused for user"
                f" '{user}'",
                ("exchange", name),
            )

    def _decide(self, user: str, vhost: str, permission: str, name: str) -> bool:
        granted = self._topology.permissions.get((vhost, user))
        if user == ITSELF:
            return True
        if granted is None:
            return False
        patterns = {"configure": granted.configure, "write": granted.write, "read": granted.read}
        return in_history(patterns[permission] or "^$").found_in(name)
