"""Who may come in, and what they may do.

Rules of this file
- An unknown user costs what a wrong password does (passwords.py): how long a refusal takes does not tell who exists.
- Permissions are three regular expressions per user and vhost (projections/rules/patterns.py has what they may be),
  searched in the resource's name (not anchored; empty matches nothing but the empty name), the default exchange under
  the name `amq.default`. On topic exchanges a user may have expressions for routing keys besides, with the variables
  {username} and {vhost}. Texts are RabbitMQ 3.13's (rabbit_access_control.erl, rabbit_auth_backend_internal.erl,
  rabbit_auth_mechanism_plain.erl).
"""

from rewindmq.engine.broker.passwords import NOBODYS_HASH, Passwords
from rewindmq.engine.errors import AccessRefused, resource
from rewindmq.projections.rules.patterns import in_history
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.metadata_events import ExchangeDeclared

REMEMBERED_DECISIONS = 65_536
ITSELF = ""  # the broker, as a user: may do everything, and nobody can log in as it


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
        password_hash = self._hash_of(user)
        right = await self._passwords.verify(password_hash or NOBODYS_HASH, password)
        changed = password_hash != self._hash_of(user)  # meanwhile
        if not right or not password_hash or not password or changed or user == ITSELF:
            raise AccessRefused("the password is not this user's, or there is no such user")
        return user

    def identify(self, user: str) -> str:
        """Who came with a certificate that was verified. AccessRefused when there is no such user."""
        if user == ITSELF or user not in self._topology.users:
            raise AccessRefused(f"user '{user}' of the certificate does not exist")
        return user

    async def has_password(self, user: str, password: str) -> bool:
        """The user has this password; waits, as `authenticate` does."""
        password_hash = self._hash_of(user)
        return password_hash != "" and await self._passwords.verify(password_hash, password)

    def _hash_of(self, user: str) -> str:
        known = self._topology.users.get(user)
        return "" if known is None else known.password_hash

    def may_enter(self, user: str, vhost: str) -> bool:
        return (vhost, user) in self._topology.permissions

    def check(self, user: str, vhost: str, permission: str, kind: str, name: str) -> None:
        """`permission`: configure, write or read; `kind`: queue or exchange. AccessRefused without it."""
        name = "amq.default" if kind == "exchange" and name == "" else name
        key = (user, vhost, permission, name)
        allowed = self._decisions.get(key)
        if allowed is None:
            allowed = self._decide(user, vhost, permission, name)
            if len(self._decisions) >= REMEMBERED_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = allowed
        if not allowed:
            raise AccessRefused(f"{permission} access to {resource(kind, name, vhost)} refused for user '{user}'")

    def check_topic(self, user: str, exchange: ExchangeDeclared, permission: str, routing_key: str) -> None:
        """Topic permissions: `permission` write or read. Who has none for a topic exchange may use every key of it
        (rabbit_auth_backend_internal.erl `check_topic_access/4`)."""
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
                f" '{user}'"
            )

    def _decide(self, user: str, vhost: str, permission: str, name: str) -> bool:
        granted = self._topology.permissions.get((vhost, user))
        if user == ITSELF:
            return True
        if granted is None:
            return False
        patterns = {"configure": granted.configure, "write": granted.write, "read": granted.read}
        return in_history(patterns[permission] or "^$").found_in(name)
