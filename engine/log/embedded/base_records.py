"""Records of queued messages below the beginning of a partition, from its base (projections/store/bases.py).

    BaseRecords(directory).record(start, 17)

The loop asks for a record that the state store has lost (Partition.message). Opening a base checks all of it, and it
may be large, so a thread opens it, and the loop waits for at most `WAIT_SECONDS`. While another process cuts the log,
the base is the one at the end of that cut.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rewindmq.engine.log.contract import LogError, NoAnswer
from rewindmq.engine.log.embedded.log_start import base_at_start, bases_of, unfinished_cut
from rewindmq.projections.store.bases import Base, BaseError

WAIT_SECONDS: Final = 1.0


class BaseRecords:
    """The records in the base at the beginning of a partition. Used by one thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._start = 0  # the beginning for which the base was made
        self._base: Future[Base | None] | None = None

    def record(self, start: int, offset: int) -> bytes | None:
        """Return the record at `offset` of a partition that begins at `start`; None if the base has no such record.

        Raises LogError; NoAnswer while the base is being read, after which the caller may ask again."""
        if self._base is None or self._start != start:
            thread = ThreadPoolExecutor(1, thread_name_prefix="base")
            self._start, self._base = start, thread.submit(_base, self._directory)
            thread.shutdown(wait=False)
        try:
            base = self._base.result(WAIT_SECONDS)
        except TimeoutError:
            raise NoAnswer(f"{self._directory.name}: the base at offset {start} is being read: try again") from None
        except BaseError as error:
            self._base = None
            raise LogError(str(error)) from None
        except BaseException:
            self._base = None
            raise
        try:
            return None if base is None else base.record(offset)
        except BaseError as error:
            raise LogError(str(error)) from None


def _base(directory: Path) -> Base | None:
    """Return the base with which a partition begins; while another process cuts the log, that at the end of the cut.

    None if it begins at offset 0. Raises LogError, BaseError."""
    cut = unfinished_cut(directory)
    return base_at_start(directory) if cut is None else bases_of(directory).open(directory.name, cut)
