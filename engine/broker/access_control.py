"""Logins and permissions.

Rules of this file
- A password in the form of a signed JWT is a token (engine/identity/tokens.py), where tokens are taken. Then the user,
  the tags and the rights are the token's, and the permissions of a user of that name do not matter.
- Failed passwords are braked (login_brake.py). Failed tokens are not: nobody can guess a signature.
- Refusing an unknown user takes as long as refusing a wrong password (passwords.py), so that nobody can find out by the
  clock which users exist.
- A user's permissions in a vhost are three regular expressions (projections/rules/patterns.py: what they may be). Each
  is searched in the resource's name, not anchored; an empty expression matches the empty name only. The default
  exchange has the name `amq.default`. For topic exchanges a user may also have expressions for routing keys, with the
  variables {username} and {vhost}.
- Texts are RabbitMQ 3.13's (rabbit_access_control.erl, rabbit_auth_backend_internal.erl,
  rabbit_auth_mechanism_plain.erl).
"""

from rewindmq.engine.broker.login_brake import LoginBrake
from rewindmq.engine.broker.passwords import NOBODYS_HASH, Passwords
from rewindmq.engine.errors import AccessRefused, resource
from rewindmq.engine.identity.grants import Identity, Requester
from rewindmq.engine.identity.tokens import Tokens, is_token
from rewindmq.projections.rules.patterns import in_history
from rewindmq.projections.topology.topology import Topology
from rewindmq.schemas.metadata_events import ExchangeDeclared

REMEMBERED_DECISIONS = 65_536
WITHOUT_CONTENTS = "without-contents"  # a tag: the user sees neither bodies nor headers, and consumes nothing
UNMASKED = "unmasked"  # a tag: the user sees what the masks of policies hide
ITSELF = ""  # the user name of the broker itself: it has every permission, and no client can log in with it


class Access:
    def __init__(self, topology: Topology, tokens: Tokens, brake: LoginBrake) -> None:
        self._topology = topology
        self._tokens = tokens
        self._brake = brake
        self._passwords = Passwords()
        self._decisions: dict[tuple[str, str, str, str], bool] = {}

    def changed(self) -> None:
        """Users or permissions changed."""
        self._decisions.clear()

    def hash(self, password: str) -> str:
        return self._passwords.hash(password)

    async def authenticate(self, user: str, password: str, host: str) -> Identity:
        """Log a user in by password, or by a token in its place. `host`: where the client is.

        AccessRefused. LoginsBraked: too many passwords from there were wrong. Waits for a thread that verifies the
        password, or for the keys of the identity provider."""
        if self._tokens.settings is not None and is_token(password):
            return await self.bear(password)
        password_hash = self._hash_of(user)
        tried = password_hash or NOBODYS_HASH

        async def verify() -> bool:
            right = await self._passwords.verify(tried, password)
            return right and bool(password_hash) and bool(password) and user != ITSELF

        right = await self._brake.verified(host, user, self._passwords.proof(tried, password), verify)
        changed = password_hash != self._hash_of(user)  # meanwhile
        if not right or changed:
            raise AccessRefused("the password is not this user's, or there is no such user")
        return Identity(user)

    async def bear(self, token: str) -> Identity:
        """Log the user of a token in. TokenRefused. May wait for the keys of the identity provider."""
        grant = await self._tokens.grant(token)
        return Identity(grant.user, grant)

    def identify(self, user: str) -> Identity:
        """Log a user in whose certificate was verified. AccessRefused: there is no such user."""
        if user == ITSELF or user not in self._topology.users:
            raise AccessRefused(f"user '{user}' of the certificate does not exist")
        return Identity(user)

    def tags(self, who: Requester) -> tuple[str, ...]:
        """The tags of a user, or of a token. A user who is gone has none."""
        if who.grant is not None:
            return who.grant.tags
        known = self._topology.users.get(who.user)
        return () if known is None else known.tags

    async def has_password(self, user: str, password: str) -> bool:
        """Return True if the user has this password. Waits as `authenticate` does."""
        password_hash = self._hash_of(user)
        return password_hash != "" and await self._passwords.verify(password_hash, password)

    def _hash_of(self, user: str) -> str:
        known = self._topology.users.get(user)
        return "" if known is None else known.password_hash

    def may_enter(self, who: Requester, vhost: str) -> bool:
        """Return True if the user has permissions in the vhost, even empty ones, or if a token has a scope there."""
        if who.grant is not None:
            return not self._tokens.has_expired(who.grant) and who.grant.scopes.may_enter(vhost)
        return (vhost, who.user) in self._topology.permissions

    def check(self, who: Requester, vhost: str, permission: str, kind: str, name: str) -> None:
        """AccessRefused: the user lacks the `permission` (configure, write, read) on the `kind` (queue, exchange), or
        the token has expired."""
        name = "amq.default" if kind == "exchange" and name == "" else name
        if who.grant is not None:
            self._tokens.check(who.grant)
            allowed = who.grant.scopes.may(permission, vhost, name)
        else:
            allowed = self._permitted(who.user, vhost, permission, name)
        if not allowed:
            text = f"{permission} access to {resource(kind, name, vhost)} refused for user '{who.user}'"
            raise AccessRefused(text, (kind, name))

    def check_contents(self, who: Requester) -> None:
        """AccessRefused: the user sees no contents of messages, so gets none."""
        if WITHOUT_CONTENTS in self.tags(who):
            raise AccessRefused(f"user '{who.user}' has the tag {WITHOUT_CONTENTS}, and gets no messages")

    def check_topic(self, who: Requester, exchange: ExchangeDeclared, permission: str, routing_key: str) -> None:
        """AccessRefused: the user's topic permissions (`permission`: write or read), or the scopes of the token, leave
        out this routing key. A user without topic permissions for an exchange may use all its keys
        (rabbit_auth_backend_internal.erl `check_topic_access/4`)."""
        if exchange.type != "topic":
            return
        name, vhost = exchange.exchange, exchange.vhost
        if not self._may_use_key(who, vhost, name, permission, routing_key):
            raise AccessRefused(
                f"{permission} access to topic '{routing_key}' in exchange '{name}' in vhost '{vhost}' refused for user"
                f" '{who.user}'",
                ("exchange", name),
            )

    def _may_use_key(self, who: Requester, vhost: str, exchange: str, permission: str, routing_key: str) -> bool:
        if who.grant is not None:
            return who.grant.scopes.may_use_key(permission, vhost, exchange, routing_key)
        granted = self._topology.topic_permissions.get((vhost, who.user, exchange))
        if granted is None:
            return True
        pattern = granted.write if permission == "write" else granted.read
        for variable, value in (("{username}", who.user), ("{vhost}", vhost)):
            pattern = pattern.replace(variable, value)
        return in_history(pattern or "^$").found_in(routing_key)

    def _permitted(self, user: str, vhost: str, permission: str, name: str) -> bool:
        key = (user, vhost, permission, name)
        found = self._decisions.get(key)
        if found is None:
            found = self._decide(user, vhost, permission, name)
            if len(self._decisions) >= REMEMBERED_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = found
        return found

    def _decide(self, user: str, vhost: str, permission: str, name: str) -> bool:
        granted = self._topology.permissions.get((vhost, user))
        if user == ITSELF:
            return True
        if granted is None:
            return False
        patterns = {"configure": granted.configure, "write": granted.write, "read": granted.read}
        return in_history(patterns[permission] or "^$").found_in(name)
