"""A brake for guessed passwords, the same for AMQP, the HTTP API and the desk's login form.

    what fails                              fails so often at once      and then one more every
    one user from one address               OF_USER_AND_ADDRESS         30 seconds
    all users from one address              OF_ADDRESS                   6 seconds
    one user from all addresses             OF_USER                      6 seconds

Beyond that a login is refused before its password is looked at. In the last case only addresses are concerned from
which the user has not logged in yet: each of those has one failure, and then one more every 30 seconds.

Rules of this file
- An attacker locks nobody out elsewhere: the first login of a user from an address is always tried. A user who has
  logged in from an address does not suffer from other users there.
- A password that has logged its user in from an address is looked at there, however many others fail. The brake
  recognizes it by its proof, and finds COMPARED others of the pair wrong in a second at most; some wait for that. It
  forgives no failure, or each login of a service would give its neighbours another OF_USER_AND_ADDRESS guesses.
- The same wrong password again is not a new guess. So a service with an old password does not fill the share of its
  address.
- An address has at most AT_ONCE passwords under verification, and its others wait: verifying takes a thread 20 ms.
- An IPv6 address is its /64. Behind a balancer with the PROXY protocol it is the client's own. Loopback is no
  exception: behind a proxy without that protocol every client comes from there.
- All is in memory, bounded, and forgotten with the process. A table that is full forgets what is oldest.
"""

import asyncio
import hmac
import math
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from rewindmq.engine.errors import LoginsBraked
from rewindmq.engine.host.admission import host_of

OF_USER_AND_ADDRESS: Final = 10
OF_ADDRESS: Final = 50
OF_USER: Final = 100
OF_STRANGER: Final = 1
AT_ONCE: Final = 4
COMPARED: Final = 5
COMPARED_SECONDS: Final = 1.0
MOST_ENTRIES: Final = 10_000  # of each table
MOST_NAME: Final = 100  # characters of a user name that are looked at
PROOF_BYTES: Final = 8  # of a proof that are kept: two passwords have the same ones by chance, once in 2**64
REMEMBERED_GUESSES: Final = 16
SECONDS: Final = 30.0  # until a failure of a user at an address is forgiven
SECONDS_OF_MANY: Final = 6.0  # ... of an address, or of a user

Key = TypeVar("Key")
Entry = TypeVar("Entry")
Pair = tuple[str, str]  # an address and a user


@dataclass(slots=True)
class Failures:
    """Failed logins that are not forgiven yet. `wrong`: proofs of the passwords that were tried last."""

    seconds: float
    count: float = 0.0
    at: float = 0.0
    wrong: deque[bytes] = field(default_factory=lambda: deque(maxlen=REMEMBERED_GUESSES))

    def now(self, now: float) -> float:
        """The failures that are not forgiven at this time."""
        return max(0.0, self.count - (now - self.at) / self.seconds)

    def add(self, now: float) -> None:
        """Count a failure."""
        self.count, self.at = self.now(now) + 1, now

    def wait_seconds(self, most: int, now: float) -> int:
        """Return the seconds until the next login may be tried; 0 if one may be tried now."""
        over = self.now(now) - (most - 1)
        return 0 if over < 1e-9 else math.ceil(over * self.seconds)


class RecentEntries(Generic[Key, Entry]):
    """At most MOST_ENTRIES; the one that was changed longest ago is forgotten first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Entry | None:
        """The entry of a key."""
        return self._entries.get(key)

    def put(self, key: Key, entry: Entry) -> None:
        """Keep an entry as the newest."""
        self._entries[key] = entry
        self._entries.move_to_end(key)
        if len(self._entries) > MOST_ENTRIES:
            self._entries.popitem(last=False)

    def drop(self, key: Key) -> None:
        """Forget an entry, if there is one."""
        self._entries.pop(key, None)


class LoginQueue:
    """The logins of one address that are being verified, and those that wait for them."""

    def __init__(self, places: int = AT_ONCE) -> None:
        self.places = asyncio.Semaphore(places)
        self.members = 0


class Comparisons(LoginQueue):
    """The braked passwords of a user at an address, which are compared with the one that logged in there."""

    def __init__(self) -> None:
        super().__init__(1)
        self.failed: deque[tuple[float, bytes]] = deque(maxlen=COMPARED)  # when, and the proof


class LoginBrake:
    """`now`: seconds of a clock that only goes forward. `braked` is called for each login that is refused here."""

    def __init__(
        self,
        braked: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._braked = braked
        self._now = now
        self._sleep = sleep
        self._pairs: RecentEntries[Pair, Failures] = RecentEntries()
        self._addresses: RecentEntries[str, Failures] = RecentEntries()
        self._users: RecentEntries[str, Failures] = RecentEntries()
        self._known: RecentEntries[Pair, bytes] = RecentEntries()  # the proof of the password that logged in last
        self._comparisons: RecentEntries[Pair, Comparisons] = RecentEntries()
        self._lines: dict[str, LoginQueue] = {}  # only of addresses that have logins under way

    async def verified(self, host: str, user: str, proof: bytes, verify: Callable[[], Awaitable[bool]]) -> bool:
        """Return True if `verify` finds the password right. `proof` stands for the password. Raises LoginsBraked."""
        pair, proof = (host_of(host), user[:MOST_NAME]), proof[:PROOF_BYTES]
        try:
            return await self._in_line(pair, proof, verify, False)
        except LoginsBraked:
            if not await self._has_logged_in(pair, proof):
                self._braked()
                raise
        return await self._in_line(pair, proof, verify, True)

    async def _in_line(self, pair: Pair, proof: bytes, verify: Callable[[], Awaitable[bool]], familiar: bool) -> bool:
        line = self._lines.setdefault(pair[0], LoginQueue())
        line.members += 1
        try:
            async with line.places:
                return await self._tried(pair, proof, verify, familiar)
        finally:
            line.members -= 1
            if not line.members:
                del self._lines[pair[0]]

    async def _has_logged_in(self, pair: Pair, proof: bytes) -> bool:
        """Return True if this password has logged the user in from there. Waits up to COMPARED_SECONDS for its turn,
        behind others a little longer; if as many wait as that time has turns for, the answer is no."""
        known, mine = self._known.get(pair), self._comparisons.get(pair) or Comparisons()
        if known is None or mine.members >= COMPARED or any(proof == wrong for _, wrong in mine.failed):
            return False
        self._comparisons.put(pair, mine)
        mine.members += 1
        try:
            async with mine.places:
                while len(mine.failed) == COMPARED and (wait := mine.failed[0][0] + COMPARED_SECONDS - self._now()) > 0:
                    await self._sleep(wait)
                right = hmac.compare_digest(known, proof)
                if not right:
                    mine.failed.append((self._now(), proof))
                return right
        finally:
            mine.members -= 1

    async def _tried(self, pair: Pair, proof: bytes, verify: Callable[[], Awaitable[bool]], familiar: bool) -> bool:
        mine = self._pairs.get(pair)
        if mine is not None and proof in mine.wrong:
            return False
        seconds = 0 if familiar else self._wait_seconds(pair, mine)
        if seconds:
            raise LoginsBraked(pair[0], seconds)
        right = await verify()
        if right:
            if self._known.get(pair) != proof:
                self._pairs.drop(pair)
            self._known.put(pair, proof)
        else:
            self._failed(pair, proof)
        return right

    def _wait_seconds(self, pair: Pair, mine: Failures | None) -> int:
        address, user = pair
        now, known = self._now(), pair in self._known
        of_address, of_user = self._addresses.get(address), self._users.get(user)
        attacked = of_user is not None and of_user.wait_seconds(OF_USER, now) > 0
        most = OF_STRANGER if attacked and not known else OF_USER_AND_ADDRESS
        waits = [0 if mine is None else mine.wait_seconds(most, now)]
        if of_address is not None and not known:
            waits.append(of_address.wait_seconds(OF_ADDRESS, now))
        return max(waits)

    def _failed(self, pair: Pair, proof: bytes) -> None:
        address, user = pair
        now = self._now()
        mine = self._pairs.get(pair) or Failures(SECONDS)
        mine.add(now)
        mine.wrong.append(proof)
        self._pairs.put(pair, mine)
        for table, key in ((self._addresses, address), (self._users, user)):
            of_all = table.get(key) or Failures(SECONDS_OF_MANY)
            of_all.add(now)
            table.put(key, of_all)
