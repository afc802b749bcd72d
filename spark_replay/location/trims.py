"""Asks a question about a history anew when the history was trimmed meanwhile.

    findings = beside_trims(location, lambda: audited(), doubtful=lambda found: not all(each.ok for each in found))

A job plans what it reads, and reads it for minutes or hours. `--keep-history` beside it removes the oldest segments, or
objects. A job that had planned them fails, or finds that they are missing. It begins anew at the new floor then, a few
times. A trim is no reason for a finding: an answer that is `doubtful` counts only if the history began at the same
offsets all the time.

Nothing of the history is held for a job: a trim is asked for by law or by a full disk, and a job that was killed would
hold it for ever. Trims come seldom enough (engine/keeping/keep_history.py) that a job gets to its end.
"""

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from rewindmq.engine.keeping.location import HistoryPartition, InKafka, Location
from rewindmq.engine.keeping.tiers import TieredPartition
from rewindmq.engine.log.contract import LogError
from rewindmq.projections.rewind import TrimmedMeanwhile
from rewindmq.spark_replay.location.ranges import BadRequest

T = TypeVar("T")

TIMES: Final = 5  # a question is asked at most

logger = logging.getLogger(__name__)


def beside_trims(
    location: Location,
    ask: Callable[[], T],
    doubtful: Callable[[T], bool] = lambda answer: False,
    may_repeat: Callable[[], bool] = lambda: True,
) -> T:
    """Return the answer to a question about the history at a location.

    `may_repeat`: whether the question may be asked again: it may have written something. Raises what `ask` raises;
    TrimmedMeanwhile if the history was trimmed in each of the attempts."""
    for attempt in range(1, TIMES + 1):
        begun = beginnings_of(location)
        try:
            answer = ask()
            if not doubtful(answer) or beginnings_of(location) == begun:
                return answer
        except (BadRequest, TrimmedMeanwhile):
            raise  # the question is wrong, or was asked often enough
        except Exception as error:
            now = beginnings_of(location)
            if now == begun:
                raise
            if not may_repeat():
                raise TrimmedMeanwhile(
                    f"{_moved(begun, now)} while it was read, and a part of the answer is written: run it again, to"
                    " another place"
                ) from error
        now = beginnings_of(location)
        if attempt < TIMES:
            logger.warning(
                "%s while it was read: beginning anew there (%d of %d)", _moved(begun, now), attempt, TIMES - 1
            )
    raise TrimmedMeanwhile(f"{_moved(begun, now)} while it was read, and {TIMES - 1} times before: run it again later")


def beginnings_of(location: Location) -> dict[str, tuple[int, int]]:
    """Return the offset with which each queue partition begins, and the one with which the local part of it begins.

    Nothing for Kafka alone, and where no log can be opened."""
    if isinstance(location, InKafka) and not location.archive:
        return {}
    try:
        return {each.name: (each.start_offset, _local_start(each)) for each in location.open().queues}
    except (LogError, OSError):
        return {}


def _local_start(partition: HistoryPartition) -> int:
    """A floor is in the history before the segments below it go."""
    return (partition.local if isinstance(partition, TieredPartition) else partition).start_offset


def _moved(before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]]) -> str:
    """Which partitions begin elsewhere now."""
    moved = [f"{name} was trimmed up to offset {at[0]}" for name, at in now.items() if before.get(name) != at]
    return ", ".join(moved) or "the history was trimmed"
