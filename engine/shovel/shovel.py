"""A shovel: session after session until all is moved, or until it is stopped.

A broker that is away is tried again, with longer and longer pauses, for as long as it takes. Nothing is in memory
meanwhile: the messages are in the source's queue.
"""

import asyncio
import logging

from rewindmq.engine.shovel.link import Ended, keep_properties
from rewindmq.engine.shovel.session import DestinationFull, Figures, Job, ShovelSession, Unroutable

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
REPORT_SECONDS = 10.0
PASSING_CODES = (320, 506, 541)  # it is being stopped, has no room, or a fault
# Replies of a destination to a publish that no time mends. Trying again would double the messages before that one.
FINAL_CODES = (403, 406)

log = logging.getLogger("rewindmq.shovel")


class ShovelRefused(Exception):
    """A broker refused the shovel, and will again. `is_permission`: for want of a login or a permission."""

    def __init__(self, text: str, is_permission: bool = False) -> None:
        super().__init__(text)
        self.is_permission = is_permission


class Shovel:
    """`only_waiting`: it moves as many messages as wait when it begins, and ends."""

    def __init__(self, job: Job, only_waiting: bool) -> None:
        self.job = job
        self.figures = Figures()
        self.stop = asyncio.Event()
        self._only_waiting = only_waiting
        self._began = False

    async def run(self) -> None:
        """Move. ShovelRefused: by one of the brokers, before the first message or because of a message."""
        keep_properties()
        reports = asyncio.create_task(self._report())
        pause = FIRST_PAUSE_SECONDS
        try:
            while not self.stop.is_set():
                moved = self.figures.moved
                session = ShovelSession(self.job, self.figures, self._only_waiting, self.stop)
                try:
                    await session.run()
                    return
                except (Ended, DestinationFull) as error:
                    if isinstance(error, Ended) and self._is_final(error):
                        raise ShovelRefused(str(error), error.is_permission) from None
                    if self.figures.moved > moved:
                        pause = FIRST_PAUSE_SECONDS
                    log.warning("%s. Trying again in %.0f s", error, pause)
                except Unroutable as error:
                    raise ShovelRefused(str(error)) from None
                finally:
                    self._began = self._began or session.began
                await self._wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        finally:
            reports.cancel()
            log.info("the shovel ends: %s", self._counted())

    def _is_final(self, ended: Ended) -> bool:
        if ended.code is None or ended.code in PASSING_CODES:
            return False
        return not self._began or (ended.side == "destination" and ended.code in FINAL_CODES)

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.stop.wait(), seconds)
        except TimeoutError:
            return

    async def _report(self) -> None:
        """Log the figures now and then, if they changed."""
        said, moved = "", 0
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            counted = self._counted()
            if counted != said:
                log.info("%s, %.0f a second", counted, (self.figures.moved - moved) / REPORT_SECONDS)
            said, moved = counted, self.figures.moved

    def _counted(self) -> str:
        figures = self.figures
        left = "" if figures.left is None else f", {figures.left} left"
        return (
            f"{figures.moved} messages moved, {figures.under_way} on their way, {figures.repeats} may be repeats{left}"
        )
