"""B-54. Which messages a shovel acks at its source."""

import random

from rewindmq.engine.shovel.account import TransferAccount


def account(messages: int) -> TransferAccount:
    """An account with so many messages on their way; each looks like its tag."""
    made = TransferAccount()
    for tag in range(1, messages + 1):
        assert made.take(tag) == tag
    return made


def test_the_source_is_acked_up_to_the_first_message_that_has_not_arrived() -> None:
    it = account(5)
    it.confirm(3, multiple=False)
    assert it.ack_up_to() is None
    it.confirm(1, multiple=False)
    assert it.ack_up_to() == 1
    assert it.ack_up_to() is None
    it.confirm(4, multiple=True)
    assert it.ack_up_to() == 4
    assert it.on_the_way == 1
    it.confirm(5, multiple=True)
    assert (it.ack_up_to(), it.on_the_way, it.rest()) == (5, 0, [])


def test_a_refused_message_stays_at_the_source() -> None:
    it = account(6)
    it.nack(3, multiple=False)
    it.confirm(6, multiple=True)
    assert (it.ack_up_to(), it.on_the_way) == (2, 0)
    assert it.rest() == [4, 5, 6]
    assert it.refused == {3}


def test_a_returned_message_is_confirmed_later_and_stays_all_the_same() -> None:
    it = TransferAccount()
    for look in (7, 8, 7):
        it.take(look)
    it.unroutable(7)
    it.unroutable(7)  # both that look so
    it.confirm(3, multiple=True)
    assert it.refused == {1, 3}
    assert (it.ack_up_to(), it.rest()) == (None, [2])


def test_all_stay_if_nobody_knows_which_one_was_returned() -> None:
    it = account(3)
    it.confirm(1, multiple=False)
    it.unroutable(99)
    it.confirm(3, multiple=True)
    assert (it.ack_up_to(), it.rest(), it.refused) == (1, [], {2, 3})


def test_whatever_the_destination_answers_only_arrived_messages_are_acked() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        it, arrived, refused, acked = TransferAccount(), set[int](), set[int](), set[int]()
        for _ in range(60):
            if chance.random() < 0.5:
                it.take(chance.randrange(3))
                continue
            open_ = sorted(set(range(1, it.taken + 1)) - arrived - refused)
            if not open_:
                continue
            tag, multiple = chance.choice(open_), chance.random() < 0.3
            named = {each for each in open_ if each <= tag} if multiple else {tag}
            if chance.random() < 0.1:
                it.nack(tag, multiple)
                refused |= named
            else:
                it.confirm(tag, multiple)
                arrived |= named
            up_to = it.ack_up_to()
            acked |= set(range(1, (up_to or 0) + 1))
            assert acked <= arrived
        assert acked.isdisjoint(rest := it.rest())
        assert acked | set(rest) == arrived
