"""Guessed passwords are braked, and nobody else is (B-56)."""

import asyncio
from hashlib import sha256

import pytest

from rewindmq.engine.broker import login_brake
from rewindmq.engine.broker.login_brake import (
    AT_ONCE,
    COMPARED,
    COMPARED_SECONDS,
    MOST_ENTRIES,
    OF_ADDRESS,
    OF_USER,
    OF_USER_AND_ADDRESS,
    SECONDS,
    SECONDS_OF_MANY,
    LoginBrake,
)
from rewindmq.engine.errors import LoginsBraked

ATTACKER, OFFICE, HOME = "203.0.113.7", "198.51.100.1", "2001:db8:1:2::3"


class Door:
    """Logins through a brake. The password is right if it is "right". `looked`: passwords that were verified."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.looked: list[str] = []
        self.braked = 0
        self.brake = LoginBrake(self.count, lambda: self.now_s, self.sleep)
        self.guesses = 0

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    def count(self) -> None:
        self.braked += 1

    async def logs_in(self, host: str, user: str, password: str) -> bool:
        async def verify() -> bool:
            self.looked.append(password)
            await asyncio.sleep(0)
            return password == "right"

        return await self.brake.verified(host, user, sha256(f"{user} {password}".encode()).digest(), verify)

    def tries(self, host: str, user: str, password: str = "") -> str:
        """Try to log in, and return "in", "wrong" or "braked". Without a password, each call makes another guess."""
        self.guesses += 1
        try:
            return "in" if asyncio.run(self.logs_in(host, user, password or f"guess {self.guesses}")) else "wrong"
        except LoginsBraked:
            return "braked"


def test_b56_guesses_from_one_address_are_braked_and_forgiven_one_by_one() -> None:
    door = Door()
    found = [door.tries(ATTACKER, "ann") for _ in range(OF_USER_AND_ADDRESS + 5)]
    assert found == ["wrong"] * OF_USER_AND_ADDRESS + ["braked"] * 5
    assert len(door.looked) == OF_USER_AND_ADDRESS
    assert door.braked == 5
    assert door.tries(ATTACKER, "ann", "right") == "braked", "the answer must not say that the guess was right"
    with pytest.raises(LoginsBraked) as refused:
        asyncio.run(door.logs_in(ATTACKER, "ann", "right"))
    assert refused.value.seconds == SECONDS
    assert refused.value.text == "too many logins from 203.0.113.7 failed: try again in 30 seconds"
    door.now_s += SECONDS
    assert door.tries(ATTACKER, "ann") == "wrong"
    assert door.tries(ATTACKER, "ann") == "braked"
    door.now_s += SECONDS
    assert door.tries(ATTACKER, "ann", "right") == "in"
    assert door.tries(ATTACKER, "ann", "an old one") == "wrong", "a login forgives the failures of its user there"


def test_b56_a_right_user_elsewhere_is_not_locked_out() -> None:
    door = Door()
    assert door.tries(OFFICE, "ann", "right") == "in"
    for number in range(OF_USER + 50):
        door.tries(f"203.0.113.{number}", "ann")
    assert door.tries(OFFICE, "ann", "mistyped") == "wrong"
    assert door.tries(OFFICE, "ann", "right") == "in"
    assert door.tries(HOME, "ann", "right") == "in", "a new address has a first login"
    assert door.tries("192.0.2.1", "ann", "mistyped") == "wrong"
    assert door.tries("192.0.2.1", "ann", "right") == "braked", "a stranger to an attacked user has only one"
    assert door.tries("192.0.2.1", "bob", "right") == "in"


def test_b56_many_names_from_one_address_are_braked_but_not_known_users() -> None:
    door = Door()
    assert door.tries(OFFICE, "ann", "right") == "in"
    found = [door.tries(OFFICE, f"name {number}") for number in range(OF_ADDRESS + 10)]
    assert found == ["wrong"] * OF_ADDRESS + ["braked"] * 10
    assert door.tries(OFFICE, "bob", "right") == "braked"
    assert door.tries(OFFICE, "ann", "right") == "in"
    assert door.tries(HOME, "bob", "right") == "in"
    door.now_s += SECONDS_OF_MANY
    assert door.tries(OFFICE, "bob", "right") == "in"


def test_b56_a_service_with_an_old_password_counts_once() -> None:
    door = Door()
    assert [door.tries(OFFICE, "service", "old") for _ in range(1_000)] == ["wrong"] * 1_000
    assert door.looked == ["old"]
    assert door.tries(OFFICE, "service", "right") == "in"


def test_b56_an_ipv6_address_is_its_network() -> None:
    door = Door()
    for number in range(OF_USER_AND_ADDRESS):
        assert door.tries(f"2001:db8:1:2::{number:x}", "ann") == "wrong"
    assert door.tries("2001:db8:1:2:ffff::1", "ann", "right") == "braked"
    assert door.tries("2001:db8:1:3::1", "ann", "right") == "in"
    assert door.tries("::ffff:198.51.100.1", "bob") == "wrong"
    assert [door.tries("198.51.100.1", "bob") for _ in range(10)] == ["wrong"] * 9 + ["braked"]


def test_b56_few_passwords_of_an_address_are_verified_at_once() -> None:
    door = Door()

    async def together() -> list[bool | BaseException]:
        under_way = most = 0
        slow = asyncio.Event()

        async def verify() -> bool:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await slow.wait()
            under_way -= 1
            return False

        tries = [door.brake.verified(ATTACKER, "ann", bytes([number]), verify) for number in range(200)]
        tasks = [asyncio.ensure_future(each) for each in tries]
        for _ in range(5):
            await asyncio.sleep(0)
        assert most == AT_ONCE
        assert await door.logs_in(OFFICE, "ann", "right"), "another address need not wait"
        slow.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(together())
    assert found.count(False) < OF_USER_AND_ADDRESS + AT_ONCE
    assert sum(isinstance(each, LoginsBraked) for each in found) == 200 - found.count(False)
    assert not door.brake._lines


def test_b56_the_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_brake, "MOST_ENTRIES", 100)
    assert MOST_ENTRIES == 10_000
    door = Door()
    for number in range(300):
        door.tries(f"203.0.{number % 256}.{number // 256}", f"user {number}" * 100)
        door.tries(f"203.1.{number % 256}.{number // 256}", f"user {number}", "right")
    brake = door.brake
    assert [len(table) for table in (brake._pairs, brake._addresses, brake._users, brake._known)] == [100] * 4
    assert all(len(name) <= 100 for name in brake._users._entries)


def familiar() -> Door:
    """Ann has logged in at the office, where others have used up what may fail for her."""
    door = Door()
    assert door.tries(OFFICE, "ann", "right") == "in"
    assert [door.tries(OFFICE, "ann") for _ in range(OF_USER_AND_ADDRESS)] == ["wrong"] * OF_USER_AND_ADDRESS
    assert door.tries(OFFICE, "ann") == "braked"
    door.now_s += COMPARED_SECONDS
    door.looked.clear()
    return door


def test_b56_a_known_password_passes_soon_beside_five_wrong_ones_a_second() -> None:
    door = familiar()
    for _ in range(60):
        began = door.now_s
        for number in range(COMPARED):
            door.tries(OFFICE, "ann")
            door.now_s += number % 2 * 0.1
        asked = door.now_s
        assert door.tries(OFFICE, "ann", "right") == "in"
        assert door.now_s - asked <= COMPARED_SECONDS
        door.now_s = max(door.now_s, began + 1)
    assert door.looked.count("right") == 60
    assert len(door.looked) - 60 <= (door.now_s - COMPARED_SECONDS) / SECONDS, "others have the tries of before"
    assert door.tries(OFFICE, "bob", "right") == "in"


def test_b56_a_days_guesses_beside_a_busy_user_are_few() -> None:
    door = familiar()
    looked = braked = 0
    for _ in range(24 * 60):
        door.now_s += 60
        found = door.tries(OFFICE, "ann")
        looked, braked = looked + (found == "wrong"), braked + (found == "braked")
        assert door.tries(OFFICE, "ann", "right") == "in"
    assert looked <= 24 * 3600 / SECONDS + 1
    assert looked + braked == 24 * 60


def test_b56_five_others_a_second_are_compared_and_no_more_wait() -> None:
    door = familiar()

    async def together() -> list[bool | BaseException]:
        tries = [door.logs_in(OFFICE, "ann", f"flood {number}") for number in range(200)]
        return await asyncio.gather(*tries, return_exceptions=True)

    began, counted = door.now_s, door.braked
    found = asyncio.run(together())
    assert all(isinstance(each, LoginsBraked) for each in found)
    assert door.braked - counted == 200
    assert door.now_s == began + COMPARED_SECONDS, "five were compared, and five others waited for a second"
    comparisons, comparisons_last = door.brake._comparisons.get((OFFICE, "ann")), "flood 9"
    assert comparisons is not None
    assert (len(comparisons.failed), comparisons.members) == (COMPARED, 0)
    assert door.tries(OFFICE, "ann", comparisons_last) == "braked"
    assert door.now_s == began + COMPARED_SECONDS, "the same wrong password again is not compared again"
    assert door.tries(OFFICE, "ann") == "braked"
    assert door.now_s == began + 2 * COMPARED_SECONDS
    assert door.looked == []


def test_b56_the_stored_hash_decides_also_about_a_password_that_was_right() -> None:
    door = familiar()

    async def refused() -> bool:
        async def verify() -> bool:
            return False

        return await door.brake.verified(OFFICE, "ann", sha256(b"ann right").digest(), verify)

    assert not asyncio.run(refused())
    assert door.tries(OFFICE, "ann", "new") == "braked", (
        "a password that has not logged in there has no line of its own"
    )
    assert door.tries(HOME, "ann", "right") == "in"
    assert [door.tries(HOME, "ann") for _ in range(12)] == ["wrong"] * 10 + ["braked"] * 2
    assert door.tries("192.0.2.1", "ann", "right") == "in", "another address has its own count"
