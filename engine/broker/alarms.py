"""The two resource alarms, by RabbitMQ's names: memory and disk. While one is in effect publishers are held back.

    memory   the process uses more than --vm-memory-high-watermark        "low on memory"
    disk     less than --disk-free-limit is free where the data are       "low on disk"

Both are looked at once a second, and more often while the disk could be full before the next look. Memory that clients
make the broker hold is also seen between two looks (`MemoryAccount.on_high`).

Rules of this file
- An alarm ends when there is more room than when it began (`MEMORY_CLEAR`, `DISK_CLEAR`), so that it does not flap.
- From a little below the limit on, and when the process has grown and then stands still (heap.py), the C
  library is asked to return freed memory. That takes up to a second a gigabyte, so a thread does it.
- The publishers that are held back may hold the memory that keeps the alarm up: parts of bodies, whose rest is not
  read. After `PATIENCE_SECONDS` of alarm the connection that holds most is closed, one a look, as long as that can end
  the alarm. An alarm that comes back sooner is the same one. RabbitMQ would wait for ever; it closes clients that do
  not read after 15 s.
- The log and the state have problems of their own when they cannot be written (engine/broker/turns.py). Listings call
  these the disk's, too.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rewindmq.engine.broker.turns import Turns
from rewindmq.engine.config import Config
from rewindmq.engine.host.heap import Stillness, give_memory_back
from rewindmq.engine.host.memory import MemoryAccount, MemoryKind
from rewindmq.engine.host.watermarks import Limit, Resident, resident_bytes
from rewindmq.engine.partition.partition import Partition
from rewindmq.engine.partition.sessions import Session

LOOK_SECONDS = 1.0
SOONEST_LOOK_SECONDS = 0.1
FAST_DISK_BYTES = 250_000_000  # a second: what a disk is written with at most, as RabbitMQ takes it
MEMORY_CLEAR = 0.95  # of the limit
DISK_CLEAR = 1.05
PATIENCE_SECONDS = 10.0
TRIM = 0.9  # of the limit: from there on the C library is asked to give memory back
TRIM_SECONDS = 10.0  # between two times
CLIENTS = (MemoryKind.BODY, MemoryKind.TRANSACTION, MemoryKind.OUTPUT)  # freed when the connection closes

# Bytes of resident memory, measured: 200 connections, 4,000 channels, 2,000 consumers, 200,000 deliveries.
CONNECTION_BYTES = 100_000
CHANNEL_BYTES = 4_200
CONSUMER_BYTES = 1_800
UNACKED_BYTES = 330

logger = logging.getLogger(__name__)


class Clients(Protocol):
    """The AMQP server, as the alarms know it."""

    def relieve(self) -> None:
        """Close the connection that holds most memory."""

    def grant_credit(self) -> None:
        """A look is over: let consumers that waited for memory go on."""


class Alarms:
    def __init__(
        self,
        config: Config,
        account: MemoryAccount,
        turns: Turns,
        sessions: Mapping[int, Session],
        partitions: Sequence[Partition],
    ) -> None:
        self.account = account
        self._turns = turns
        self._sessions = sessions
        self._partitions = partitions
        self._data = config.data
        self.memory_limit = config.vm_memory_high_watermark
        self.disk_limit = config.disk_free_limit
        self.memory = False  # the alarm is in effect
        self.disk = False
        self.disk_free = 0
        self._clients: Clients | None = None  # once it looks by itself
        self.resident: Callable[[], int] = resident_bytes
        self._resident: Resident | None = None
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self.clock: Callable[[], float] = self._loop.time
        self._timer: asyncio.TimerHandle | None = None
        self._look_asked = False
        self._since = 0.0  # the memory alarm, by the loop's clock
        self._until = -PATIENCE_SECONDS  # it was in effect until then
        self._trimmed_at = -TRIM_SECONDS
        self._disk_failed = False
        self.on_alarm: list[Callable[[str, bool], None]] = []  # called when one begins or ends
        self._stillness = Stillness()

    def start(self, clients: Clients) -> None:
        """Look once a second from now on. The clients are no argument of the constructor: the server is made with the
        broker, and so after it."""
        self._clients = clients
        self._resident = Resident()
        self.resident = self._resident.bytes
        self.look()
        if self.memory:
            logger.warning(
                "the memory limit of %d bytes is less than the broker needs by itself: nobody can publish. Raise"
                " --vm-memory-high-watermark",
                self.account.limit_bytes,
            )

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._resident is not None:
            self._resident.close()

    def set_memory_limit(self, limit: Limit) -> None:
        """Until the broker stops, as rabbitmqctl set_vm_memory_high_watermark."""
        self.memory_limit = limit
        self.account.limit_bytes = limit.of(self.account.machine_bytes)
        logger.info("memory limit: %s, %d bytes", limit, self.account.limit_bytes)
        self.look()

    def set_disk_limit(self, limit: Limit) -> None:
        """Until the broker stops, as rabbitmqctl set_disk_free_limit."""
        self.disk_limit = limit
        logger.info("disk free limit: %s, %d bytes", limit, self.disk_limit_bytes)
        self.look()

    @property
    def disk_limit_bytes(self) -> int:
        return self.disk_limit.of(self.account.machine_bytes)

    def in_effect(self) -> list[tuple[str, str]]:
        """The alarms in effect: (resource, reason)."""
        found = []
        if self.memory:
            used, limit = self.account.used_bytes, self.account.limit_bytes
            found.append(("memory", f"low on memory: {used} bytes are used, the limit is {limit}"))
        if self.disk:
            free, limit = self.disk_free, self.disk_limit_bytes
            found.append(("disk", f"low on disk: {free} bytes are free, the limit is {limit}"))
        return found + [("disk", text) for who, text in self._turns.problems.items() if who != "alarms"]

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Measure memory and disk now, and again after a while."""
        self._look_asked = False
        if self._stopped:
            return
        self._look_at_memory()
        self._look_at_disk()
        low = [name for name, alarm in (("memory", self.memory), ("disk", self.disk)) if alarm]
        self._turns.problem("alarms", "low on " + " & ".join(low) if low else None)
        if self.memory:
            self._have_patience()
        if self._clients is not None:
            self._clients.grant_credit()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._next_look(), self.look)

    def look_soon(self) -> None:
        """Clients hold more than the limit: look in the loop's next turn."""
        if self._clients is not None and not self._stopped and not self.memory and not self._look_asked:
            self._look_asked = True
            self._loop.call_soon(self.look)  # not in the middle of what takes memory

    def _next_look(self) -> float:
        if self.disk or self._disk_failed:
            return LOOK_SECONDS
        until_low = (self.disk_free - self.disk_limit_bytes) / FAST_DISK_BYTES
        return min(LOOK_SECONDS, max(SOONEST_LOOK_SECONDS, until_low))

    def _look_at_memory(self) -> None:
        account = self.account
        least = account.limit_bytes * MEMORY_CLEAR if self.memory else account.limit_bytes
        resident = self.resident()
        now = self.clock()
        still = self._stillness.look(resident)
        if still or (resident > account.limit_bytes * TRIM and now - self._trimmed_at >= TRIM_SECONDS):
            self._trimmed_at = now
            self._loop.run_in_executor(None, give_memory_back)
        account.looked(resident, self._counted())
        before, self.memory = self.memory, account.used_bytes > least
        if self.memory:
            if not before and now - self._until >= PATIENCE_SECONDS:  # else it is the same trouble again
                self._since = now
            self._until = now
        if self.memory != before:
            self._tell("memory", self.memory)
        if self.memory and not before:
            logger.warning("memory alarm: %d bytes are used, the limit is %d", account.used_bytes, account.limit_bytes)
        elif before and not self.memory:
            logger.warning("the memory alarm is over: %d bytes are used", account.used_bytes)

    def _look_at_disk(self) -> None:
        try:
            self.disk_free = shutil.disk_usage(self._data).free
        except OSError as error:  # the alarm stays as it is
            if not self._disk_failed:
                logger.error("free disk space of %s is not known: %s", self._data, error)
            self._disk_failed = True
            return
        self._disk_failed = False
        limit = self.disk_limit_bytes
        before, self.disk = self.disk, self.disk_free < (limit * DISK_CLEAR if self.disk else limit)
        if self.disk != before:
            self._tell("disk", self.disk)
        if self.disk and not before:
            logger.warning("disk alarm: %d bytes are free, the limit is %d", self.disk_free, limit)
        elif before and not self.disk:
            logger.warning("the disk alarm is over: %d bytes are free", self.disk_free)

    def _tell(self, name: str, on: bool) -> None:
        for callback in self.on_alarm:
            callback(name, on)

    def _have_patience(self) -> None:
        if self._clients is None:
            return
        account = self.account
        if self.clock() - self._since < PATIENCE_SECONDS:
            return
        excess = account.used_bytes - account.limit_bytes * MEMORY_CLEAR
        if excess <= sum(account.by_kind[kind] for kind in CLIENTS):
            self._clients.relieve()

    def _counted(self) -> dict[MemoryKind, int]:
        """The bytes of the kinds that nobody tells the account message by message."""
        channels = unacked = 0
        for session in self._sessions.values():
            channels += len(session.channels)
            for channel in session.channels.values():
                unacked += len(channel.settlement.unacked)
        deliveries = [partition.deliveries for partition in self._partitions]
        consumers = sum(len(each.consumers) + len(each.getters) for each in deliveries)
        return {
            MemoryKind.UNACKED: unacked * UNACKED_BYTES,
            MemoryKind.CONNECTION: len(self._sessions) * CONNECTION_BYTES
            + channels * CHANNEL_BYTES
            + consumers * CONSUMER_BYTES,
            MemoryKind.UNWRITTEN: sum(partition.projector.pending_bytes for partition in self._partitions),
        }
