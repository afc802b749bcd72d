"""Products that take runs make the rows that they make of the same events one by one."""

import random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from rewindmq.projections.history import outcome_rows, outcomes
from rewindmq.projections.history.product import Product, fold_events
from rewindmq.projections.machine.machine import Machine
from rewindmq.schemas.codec import Decoder
from rewindmq.schemas.service_records import SharedDecoder
from rewindmq.spark_replay.history.outcomes import HistoryProduct
from rewindmq.spark_replay.history.waits import SloOptions, WaitsProduct
from tests.support.examples import examples
from tests.support.repetition import RepeatedLog, Repetition
from tests.support.repetition_stories import Story, logs


class HistoryByEvent(HistoryProduct):
    """The product without runs."""

    @property
    def run(self) -> None:
        return None


class WaitsByEvent(WaitsProduct):
    """The product without runs."""

    @property
    def run(self) -> None:
        return None


def rows(product: Product[Any], log: RepeatedLog, times: bool, size: int) -> list[dict[str, Any]]:
    decoder = SharedDecoder() if times else Decoder()
    batches = fold_events(product, Machine("queues-0"), log.groups(size, times), decoder)
    return [row for batch in batches for row in batch.to_pylist()]


def check(log: RepeatedLog, times: bool, size: int, every_ms: int | None = None) -> int:
    """Compare all products; returns the number of rows of the history."""
    whole = rows(HistoryByEvent("queues-0"), log, times, size)
    assert rows(HistoryProduct("queues-0"), log, times, size) == whole
    for queue, moves in (("a", False), (None, True), ("q", True)):
        expected = rows(HistoryByEvent("queues-0", queue, moves=moves), log, times, size)
        assert rows(HistoryProduct("queues-0", queue, moves=moves), log, times, size) == expected
    for by_consumer in (False, True):
        for goes_on in (False, True):
            options = SloOptions(None, None, by_consumer, every_ms)
            expected = rows(WaitsByEvent("queues-0", options, goes_on), log, times, size)
            found = rows(WaitsProduct("queues-0", options, goes_on), log, times, size)
            assert sorted(found, key=repr) == sorted(expected, key=repr)  # sums, which are in no order
    return len(whole)


@pytest.mark.long
@settings(max_examples=examples(25), deadline=None, phases=(Phase.generate,))  # no seed is smaller than another
@given(st.integers(0, 1 << 32), st.booleans(), st.sampled_from((1, 3, 7, 10_000)))
def test_the_rows_are_those_of_the_events(seed: int, times: bool, batch: int) -> None:
    log = Repetition(seed).log(300)
    with pytest.MonkeyPatch.context() as patch:
        for module in (outcome_rows, outcomes):
            patch.setattr(module, "BATCH_ROWS", batch)
        check(log, times, random.Random(seed).randrange(1, 300), every_ms=1_000)


def test_in_each_story_the_rows_are_those_of_the_events() -> None:
    for name, log in logs():
        try:
            assert check(log, False, 1_000), "there are no rows"
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def test_a_product_does_not_see_the_events_of_a_run() -> None:
    """The tests above would prove little if it saw them all."""
    seen: list[int] = []

    class Seeing(HistoryProduct):
        def event(self, offset: int, *given: Any) -> None:
            seen.append(offset)
            super().event(offset, *given)

    story = Story()
    story.declare()
    held = story.publish(100)
    story.consume(1)
    story.ack(*held)
    found = rows(Seeing("queues-0"), story.log, False, 1_000)
    assert len(found) == 300
    assert len(seen) == 102


def test_a_run_fills_batches_and_makes_none_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    story.declare()
    story.consume(1)
    story.publish(100)
    for module in (outcome_rows, outcomes):
        monkeypatch.setattr(module, "BATCH_ROWS", 30)
    product = HistoryProduct("queues-0")
    batches = list(fold_events(product, Machine("queues-0"), story.log.groups(1_000, False), Decoder()))
    assert [batch.num_rows for batch in batches] == [30] * 6 + [20]
