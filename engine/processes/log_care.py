"""What the first process does for the log besides writing it: it ends old segments, and keeps the archiver.

    archiver, a process of its own (engine/embedded/archive_supervisor.py)
        how it does   ->   status and trims, here   ->   each worker, which shows them (cluster/start.py)
        a trim asked  ->   HistoryTrimmed in the metadata log, durable   ->   the answer

Rules of this file
- The work begins when all workers are ready: a worker that begins may read segments that would go.
- A worker that ends stops nothing of it. One that is started again is told how all stands when it joins.
- What is logged about the archive and about trims is logged here, once.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rewindmq.engine.broker.archive_status import ArchiveStatus
from rewindmq.engine.broker.history_trims import HistoryTrims
from rewindmq.engine.config import Config
from rewindmq.engine.embedded.archive_supervisor import ArchiveSupervisor
from rewindmq.engine.embedded.segment_ages import SegmentAges
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.served.server import LogServer
from rewindmq.engine.process import open_archive
from rewindmq.engine.runtime.log_clock import LogClock
from rewindmq.projections.topology.about_history import AboutHistory, Floor
from rewindmq.schemas.metadata_events import HistoryTrimmed


class ServedTrims:
    """The metadata log that this process serves. Implements `TrimEvents`.

    It knows the floors of this run. The archiver reads those of before in the files, and asks for none again."""

    def __init__(self, server: LogServer) -> None:
        self._server = server
        self._known = AboutHistory()

    @property
    def floors(self) -> Mapping[str, Floor]:
        return self._known.floors

    def append(self, event: HistoryTrimmed, durable: Callable[[], None]) -> None:
        offset, time_ms = self._server.append_event(event, durable)
        self._known.apply(offset, time_ms, "", event)


class LogCare:
    """Looks after the log of a broker in several processes. `clock`: that of the server."""

    def __init__(self, config: Config, log: EmbeddedLog, clock: LogClock, server: LogServer) -> None:
        age_ms, url = config.archive.segment_age_ms, config.archive.url
        self._config = config
        self._server = server
        self._ages = None if age_ms is None else SegmentAges(log, clock, age_ms)
        self._status = None if url is None else ArchiveStatus(url, log.partitions, clock.now_ms)
        self._trims = HistoryTrims(config.keep_history_ms, ServedTrims(server), log.queues)
        self._archiver: ArchiveSupervisor | None = None

    async def open(self) -> None:
        """Start the archiver's process, if there is anything to archive or to trim.

        Failure: there can be no archive."""
        self._archiver = await open_archive(self._config)

    def start(self) -> None:
        """Begin to work."""
        if self._ages is not None:
            self._ages.start()
        if self._archiver is not None:
            self._archiver.start(self._status, self._trims, changed=self._tell)
        self._tell()

    def _tell(self) -> None:
        self._server.tell_history(self._state)

    def _state(self) -> dict[str, Any]:
        archive = None if self._status is None else self._status.state()
        return {"archive": archive, "trims": self._trims.state()}

    def stop(self) -> None:
        """Work no more. What the archiver is working on is given up: another one finds it."""
        self._trims.stop()
        if self._ages is not None:
            self._ages.stop()
        if self._archiver is not None:
            self._archiver.stop()
