"""The number of restorations under way is limited, because each holds its plan in the broker."""

from contextlib import ExitStack
from typing import cast

import pytest

from rewindmq.engine.rewind.restorations import MOST_OF_USER, MOST_RESTORATIONS, Restoration, Restorations
from rewindmq.engine.rewind.restore_plan import Plan
from rewindmq.engine.rewind.worker import TooManyQuestions
from tests.support.broker_harness import Harness


def begun(all_of: Restorations, stack: ExitStack, user: str) -> None:
    plan = cast(Plan, None)  # nothing of it is asked here
    stack.enter_context(all_of.begun(Restoration(user, plan, "q", "name")))


def test_a_user_and_a_broker_have_only_so_many(h: Harness) -> None:
    all_of = h.broker._broker.history.restorations
    with ExitStack() as stack:
        for number in range(MOST_RESTORATIONS):
            begun(all_of, stack, f"user {number // MOST_OF_USER}")
            if number == MOST_OF_USER - 1:
                with pytest.raises(TooManyQuestions):
                    begun(all_of, stack, "user 0")
        with pytest.raises(TooManyQuestions):
            begun(all_of, stack, "another")
    with ExitStack() as stack:
        begun(all_of, stack, "user 0")
