"""The first process of a broker in several processes: it writes the log, and looks after its workers.

    prepare -> the log is open -> workers 1 .. N start -> all are ready -> one line on stdout
            -> SIGTERM -> workers stop, each says good-bye in the log -> the log is closed

Rules of this file
- A worker that ends is started again: at once, then after longer and longer waits if it ends again soon.
- A worker reaches the log through a socket that it inherits. It has no name, so no other program can use it. When one
  side ends, the other learns it at once. If this process ends, all workers end.
- Workers listen on the same AMQP ports, and the system gives each connection to one of them. This process looks first
  whether the ports are free: the system would also share them with another broker of the same user.
- What prevents the first start of a worker prevents the start of the broker.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process

import uvloop

from rewindmq import builds
from rewindmq.engine.config import VERSION, Config, bracketed
from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.engine.log.served.server import LogServer
from rewindmq.engine.logging_setup import log_to_stderr
from rewindmq.engine.process import SOFTWARE, UNAVAILABLE, Failure, heed_signals, say_failure
from rewindmq.engine.processes.log_care import LogCare
from rewindmq.engine.processes.prepare import Stopped, prepared
from rewindmq.engine.processes.worker import WORKER, Order, name_of, worker_config
from rewindmq.engine.runtime.admission import bound
from rewindmq.engine.runtime.log_clock import LogClock
from rewindmq.engine.service_manager import ServiceManager

STOP_SECONDS = 60.0
AGAIN_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0)  # before a worker is started again
STEADY_SECONDS = 60.0  # a worker that ran for so long begins with the first of these again
STUCK_SECONDS = 10.0  # from the end of its connection on, a worker has this long to end

logger = logging.getLogger("rewindmq")


def run_processes(config: Config) -> int:
    """Run a broker of `config.processes` workers in the foreground until SIGTERM or SIGINT; the exit code."""
    log_to_stderr(config.log_level, config.log_format)
    try:
        code = prepared(config)
        if code < 0:
            raise Failure(SOFTWARE, f"{config.data}: the process that prepares it ended with {_ending(code)}")
        if code:
            return code
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_main(config))
    except Stopped:
        return 0
    except Failure as error:
        say_failure(config, error)
        return error.code
    return 0


async def _main(config: Config) -> None:
    stopping, hung_up = asyncio.Event(), asyncio.Event()
    heed_signals(stopping, hung_up)
    manager = ServiceManager(os.environ)
    manager.status(f"starting {config.processes} processes on {config.data}")
    require_free(config)
    try:
        log = EmbeddedLog.open(config.data, None, config.segment_bytes)
    except LogError as error:
        raise Failure(UNAVAILABLE, str(error)) from error
    gc.freeze()
    supervisor = Supervisor(config, log)
    passing = asyncio.ensure_future(_pass_on_hangups(hung_up, supervisor))
    try:
        ready = asyncio.ensure_future(supervisor.start())
        stopped = asyncio.ensure_future(stopping.wait())
        await asyncio.wait([ready, stopped], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            _say_ready(config)
            manager.ready(f"running: {config.processes} processes")
            manager.begin_watchdog()
            await stopped
        ready.cancel()
    finally:
        manager.stopping()
        passing.cancel()
        await supervisor.stop()
    logger.info("stopped")


async def _pass_on_hangups(hung_up: asyncio.Event, supervisor: "Supervisor") -> None:
    """Let each worker read the configuration again when SIGHUP comes."""
    while await hung_up.wait():
        hung_up.clear()
        supervisor.hang_up()


def require_free(config: Config) -> None:
    """Check that no other program listens on a port that a worker will use. Failure."""
    for number in range(1, config.processes + 1):
        for protocol, host, port in worker_config(config, order_of(config, number)).listeners:
            if number > 1 and protocol.startswith("amqp"):
                continue
            try:
                for sock in bound(host, port):
                    sock.close()
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno is not None else str(error)
                raise Failure(UNAVAILABLE, f"{protocol} {bracketed(host)}:{port}: {reason}") from error


def _say_ready(config: Config) -> None:
    """The line on stdout when clients may come."""
    found = [(protocol, host, port) for protocol, host, port in config.listeners if protocol.startswith("amqp")]
    for number in range(1, config.processes + 1):
        own = worker_config(config, order_of(config, number)).listeners
        found += [listener for listener in own if not listener[0].startswith("amqp")]
    where = ", ".join(f"{protocol} {bracketed(host)}:{port}" for protocol, host, port in found)
    build = builds.running()
    count = f"{config.processes} processes"
    print(f"RewindMQ {VERSION} is ready: {where}, data {config.data}, {count}, {build.kind} build", flush=True)


class Supervisor:
    """Keeps the workers of a broker running, and the log that they use."""

    def __init__(self, config: Config, log: EmbeddedLog) -> None:
        self._config = config
        clock = LogClock()
        self._server = LogServer(log, clock, config.node_timeout_ms / 1_000, self._disconnected)
        self._care = LogCare(config, log, clock, self._server)
        self._processes: dict[int, Process] = {}
        self._ready: set[int] = set()
        self._keeping: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Start all workers, and return when they are ready. Failure: one of them cannot start, or the archiver."""
        self._server.start()
        await self._care.open()
        ready = []
        for number in range(1, self._config.processes + 1):
            first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            ready.append(first)
            self._keeping.append(asyncio.ensure_future(self._keep(number, first)))
        for code in await asyncio.gather(*ready):
            if code:
                raise Failure(code, "a worker process did not start: its line above says why")
        self._care.start()

    async def _keep(self, number: int, first: "asyncio.Future[int]") -> None:
        """Run a worker, again and again. `first`: 0 when it is ready for the first time, else its exit code."""
        loop = asyncio.get_running_loop()
        tries = 0
        while not self._stopping.is_set():
            began = loop.time()
            try:
                process = await self._started(number)
            except OSError as error:  # no memory, or no descriptor
                logger.error("worker %d cannot be started now: %s", number, error)
                if not first.done():
                    first.set_result(UNAVAILABLE)
                    return
                await asyncio.sleep(AGAIN_SECONDS[-1])
                continue
            assert process.stdout is not None
            if await process.stdout.readline():
                self._ready.add(number)
                if first.done():
                    logger.info("worker %d is ready again", number)
                else:
                    first.set_result(0)
                while await process.stdout.readline():
                    pass
            code = await process.wait()
            del self._processes[number]
            self._ready.discard(number)
            if self._stopping.is_set():
                return
            if not first.done():
                first.set_result(code if code > 0 else UNAVAILABLE)
                return
            tries = 0 if loop.time() - began > STEADY_SECONDS else tries + 1
            wait = AGAIN_SECONDS[min(max(0, tries - 1), len(AGAIN_SECONDS) - 1)]
            logger.error("worker %d ended (%s): it is started again in %g s", number, _ending(code), wait)
            await asyncio.sleep(wait)

    async def _started(self, number: int) -> Process:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(self._server.connection, sock=ours)
            environment = {name: value for name, value in os.environ.items() if name not in NOT_FOR_WORKERS}
            environment[WORKER] = str(order_of(self._config, number, theirs.fileno()))
            process = await asyncio.create_subprocess_exec(
                *command(),
                stdin=DEVNULL,
                stdout=PIPE,
                env=environment,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # what a terminal sends comes to the first process
            )
        finally:
            theirs.close()
        self._processes[number] = process
        if self._stopping.is_set():
            process.terminate()
        return process

    def _disconnected(self, name: str) -> None:
        """The log has nothing to do with this worker any more: it ends, or is ended."""
        for number, process in self._processes.items():
            if name == name_of(self._config.node, number):
                asyncio.get_running_loop().call_later(STUCK_SECONDS, self._end_if_stuck, number, process)

    def _end_if_stuck(self, number: int, process: Process) -> None:
        if self._processes.get(number) is process and not self._stopping.is_set():
            logger.error("worker %d lost the log and does not end: it is killed", number)
            process.kill()

    def hang_up(self) -> None:
        """Let each worker read the configuration again. One that is starting reads it anyway."""
        for number in self._ready:
            self._processes[number].send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """Stop the workers, then close the log. Failure: not all could be written."""
        self._stopping.set()
        self._care.stop()
        for process in self._processes.values():
            process.terminate()
        if self._keeping:
            _, left = await asyncio.wait(self._keeping, timeout=STOP_SECONDS)
            for process in list(self._processes.values()) if left else ():
                logger.error("process %d did not stop in %g s: it is killed", process.pid, STOP_SECONDS)
                process.kill()
            for task in left:
                await asyncio.wait([task], timeout=1.0)
                task.cancel()
        try:
            self._server.close()
        except LogError as error:
            text = f"not stopped cleanly, but all that was confirmed is kept: {error}"
            raise Failure(UNAVAILABLE, text) from error


NOT_FOR_WORKERS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def order_of(config: Config, number: int, descriptor: int = -1) -> Order:
    """The order for a worker."""
    return Order(number, descriptor, config.processes, config.data)


def command() -> list[str]:
    """The command line of this process, which is also a worker's."""
    return [sys.executable, *sys.orig_argv[1:]]


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
