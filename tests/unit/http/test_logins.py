"""Logins of browsers end after a time, and no user takes the logins of others (B-30)."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from rewindmq.engine.http.call import ApiError
from rewindmq.engine.http.login import form as login
from rewindmq.engine.http.logins import IDLE_SECONDS, LONGEST_SECONDS, MOST_LOGINS, MOST_OF_USER, Logins


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def test_b30_a_login_ends_when_it_is_idle_or_old() -> None:
    clock = Clock()
    logins = Logins(clock)
    idle, used = logins.open("u", "h"), logins.open("u", "h")
    while clock.time <= LONGEST_SECONDS - IDLE_SECONDS / 2:
        clock.time += IDLE_SECONDS / 2
        assert logins.find(used) is not None
    assert logins.find(idle) is None
    clock.time = LONGEST_SECONDS + 1
    assert logins.find(used) is None
    assert len(logins) == 0


def test_b30_a_user_who_logs_in_without_end_ends_no_login_of_others() -> None:
    logins = Logins()
    other, first, second = logins.open("other", "h"), logins.open("u", "h"), logins.open("u", "h")
    for _ in range(MOST_OF_USER - 2):
        logins.open("u", "h")
    assert logins.find(first) is not None
    logins.open("u", "h")
    assert logins.find(second) is None, "it was idle longest"
    assert logins.find(first) is not None
    assert logins.find(other) is not None


def test_b30_the_logins_of_a_node_are_bounded() -> None:
    logins = Logins()
    first = logins.open("first", "h")
    for number in range(MOST_LOGINS):
        logins.open(f"u{number}", "h")
    assert len(logins) == MOST_LOGINS
    assert logins.find(first) is None


def test_b30_a_login_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "BODY_SECONDS", 0.01)
    parts: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()
        return parts.pop()

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(ApiError) as raised:
        asyncio.run(login.name_and_password(request))
    assert raised.value.status == 408
