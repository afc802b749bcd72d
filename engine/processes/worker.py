"""A worker's own part of the configuration: its name, its directory, its ports, and its share of the memory.

The first process starts a worker with the command line that it was started with itself. The variable `WORKER` of the
environment has its order.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rewindmq.engine.config import Config, Worker
from rewindmq.engine.log.embedded.directory import PROCESSES
from rewindmq.engine.reload import Reread
from rewindmq.engine.runtime.watermarks import Limit

WORKER = "REWINDMQ_WORKER"


@dataclass(frozen=True, slots=True)
class Order:
    """What the first process tells a worker. `processes` and `data` are those with which the broker began: the file of
    settings may have changed since."""

    number: int
    descriptor: int
    processes: int
    data: Path

    def __str__(self) -> str:
        return f"{self.number} {self.descriptor} {self.processes} {self.data}"


def taken_from_environment() -> Order | None:
    """The order for this worker; None: this process is none. Its own processes do not see it."""
    found = os.environ.pop(WORKER, None)
    if found is None:
        return None
    number, descriptor, processes, data = found.split(" ", 3)
    return Order(int(number), int(descriptor), int(processes), Path(data))


def name_of(node: str, number: int) -> str:
    """A worker's name: rewindmq-2@localhost."""
    name, at, host = node.partition("@")
    return f"{name}-{number}{at}{host}"


def worker_config(config: Config, order: Order) -> Config:
    """The configuration of a worker of the broker that `config` is of."""
    number = order.number
    memory = config.vm_memory_high_watermark
    if memory.fraction is not None:
        memory = Limit(memory.fraction / order.processes)
    return replace(
        config,
        data=order.data / PROCESSES / str(number),
        node=name_of(config.node, number),
        processes=order.processes,
        worker=Worker(number, order.data, config.node, order.descriptor),
        http_port=_own(config.http_port, number),
        https_port=_own(config.https_port, number),
        prometheus_port=_own(config.prometheus_port, number),
        keys=order.data / "keys" if config.keys is None else config.keys,
        vm_memory_high_watermark=memory,
        standbys=config.standbys or 0,
        partitions=None,
    )


def worker_rereader(reread: Callable[[], Reread], order: Order) -> Callable[[], Reread]:
    """A function that reads the configuration again, for a worker."""

    def reread_by_worker() -> Reread:
        found = reread()
        return replace(found, config=worker_config(found.config, order))

    return reread_by_worker


def _own(port: int | None, number: int) -> int | None:
    """The worker's own port: cookies of a sign-in are of one worker, so these ports are not shared."""
    return None if port is None else port + number - 1
