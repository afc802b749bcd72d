"""The composition root: log, broker, AMQP server and management API in one uvloop loop, until a signal ends them.
`open_broker`, `open_node` and `open_read_only` put a broker together, by the kind of its log.

Rules of this file
- Two lines on stdout when clients may come: the first one says where, and names the build; the second one has the
  desk's address. Everything else goes to the log on stderr (logging_setup.py). If there is a compiled build that does
  not run, the log says why, once.
- SIGTERM and SIGINT stop cleanly: connections are closed with 320, everything is durable and persisted.
- SIGHUP reads the configuration again (reload.py). A terminal that is closed sends SIGHUP, too: that stops.
- A manager of services is told each step (service_manager.py).
- What prevents a start is one line on stderr and an exit code of sysexits.h: 64 the URL names no archive, 65 the data
  are damaged, 69 a port is taken, another broker has the data directory or Kafka is not there, 78 the directory cannot
  be used, or its history is a newer version's. The same when a running node has to give up: 69 with Kafka, 70 when its
  own fold fails, 78 when other nodes have gone on to a newer version.
"""

import asyncio
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import uvloop

from rewindmq import builds
from rewindmq.engine.amqp.server import AmqpServer
from rewindmq.engine.broker.broker import Broker
from rewindmq.engine.broker.followers import Fenced, Followers
from rewindmq.engine.cluster import start as cluster
from rewindmq.engine.cluster.metadata import ReadBackMetadata
from rewindmq.engine.cluster.node import ClusterKeeper
from rewindmq.engine.cluster.partition import ReadBackPartition
from rewindmq.engine.cluster.store_copy import remove_leftovers
from rewindmq.engine.config import EVERYWHERE, LOCALHOST, VERSION, Config, bracketed
from rewindmq.engine.definitions.document import load
from rewindmq.engine.embedded import read_only
from rewindmq.engine.embedded import start as embedded
from rewindmq.engine.embedded.archive_supervisor import ArchiveRefused, ArchiveSupervisor, order_of
from rewindmq.engine.embedded.beside_log import LostEnd, note_history, open_store, require_directories, require_end
from rewindmq.engine.embedded.lifecycle import EmbeddedKeeper
from rewindmq.engine.embedded.metadata import SoleWriterMetadata
from rewindmq.engine.embedded.partition import SoleWriterPartition
from rewindmq.engine.embedded.segment_ages import SegmentAges
from rewindmq.engine.errors import AmqpError
from rewindmq.engine.file_modes import close_to_others
from rewindmq.engine.host.admission import bound, shares
from rewindmq.engine.host.heap import collect_seldom, keep_freed_memory, share_one_heap
from rewindmq.engine.host.loop_share import switch_threads
from rewindmq.engine.host.ports import why_not_bound
from rewindmq.engine.http.app import make_app
from rewindmq.engine.http.live import Live
from rewindmq.engine.http.logins import Logins
from rewindmq.engine.http.server import Listening, serve
from rewindmq.engine.identity.settings import BadKeys
from rewindmq.engine.keeping.location import InDirectory
from rewindmq.engine.log.contract import CorruptLog, LogError, NewerSchema
from rewindmq.engine.log.embedded.cut import end_trims
from rewindmq.engine.log.embedded.lock import lock
from rewindmq.engine.log.embedded.reader import EmbeddedLogReader
from rewindmq.engine.logging_setup import escaped, log_to_stderr
from rewindmq.engine.partition.log_clock import ElapsedClock, LogClock, WallClock
from rewindmq.engine.reload import Reread, apply_settings
from rewindmq.engine.rewind.worker import NICENESS, WorkerPool
from rewindmq.engine.service_manager import ServiceManager
from rewindmq.engine.standby.refusal import RefusedByLeader
from rewindmq.engine.tls import LiveContext, TlsListener
from rewindmq.engine.upgrades.finalize import tell_due
from rewindmq.projections import system_calls
from rewindmq.projections.machine.machine import NewerHistory
from rewindmq.projections.rewind import format_time
from rewindmq.projections.store.snapshots import Snapshots
from rewindmq.projections.store.store import StateStore, StoreError
from rewindmq.schemas.codec import UndecodableRecord

USAGE, DATA_ERROR, UNAVAILABLE, SOFTWARE, CONFIG_ERROR = 64, 65, 69, 70, 78

logger = logging.getLogger("rewindmq")


class Failure(Exception):
    """The broker can't start, or can't stop cleanly; `code` is the exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def run(config: Config, reread: Callable[[], Reread] | None = None) -> int:
    """Run a broker in the foreground until SIGTERM or SIGINT; the exit code. `reread` reads the configuration again."""
    log_to_stderr(config.log_level, config.log_format)
    if config.kafka is None:  # librdkafka has many threads, which allocate with each message
        share_one_heap()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_main(config, reread))
    except Failure as error:
        if config.log_format == "json":
            logger.error("%s", error)
        else:
            print(f"rewindmq: {escaped(str(error))}", file=sys.stderr)
        return error.code
    return 0


async def _main(config: Config, reread: Callable[[], Reread] | None) -> None:
    archiver = await _open_archive(config)
    try:
        await _run_broker(config, archiver, reread)
    finally:
        if archiver is not None:
            archiver.stop()


async def _run_broker(config: Config, archiver: ArchiveSupervisor | None, reread: Callable[[], Reread] | None) -> None:
    stopping, hung_up = asyncio.Event(), asyncio.Event()
    _heed_signals(stopping, hung_up)
    manager = ServiceManager(os.environ)
    manager.status(f"opening {config.data}")
    failures: list[Exception] = []

    def failed(error: Exception) -> None:
        failures.append(error)
        stopping.set()

    descriptors = system_calls.take_descriptors()
    opening = asyncio.ensure_future(_open(config, failed, archiver.ends if archiver else {}))
    if await _stopped_before(opening, stopping):  # a follower's first copy may take hours, and Kafka may be away
        return
    broker = await opening
    keep_freed_memory(broker.host.memory.limit_bytes)
    collect_seldom()
    broker.host.loop_share.start(switch_threads)
    try:
        if not config.read_only:
            _look_after_keys(broker)
            broker.history.expiry.start()
            await _load_definitions(broker)
        amqp_door, http_door = shares(descriptors, len(broker.partitions))
        server = AmqpServer(broker, amqp_door)
        broker.host.alarms.start(server)
        if broker.keeper.holds_log:
            broker.history.size.start()
        _start_tokens(broker)
        if archiver is not None:
            owned = partial(_owned, broker) if config.kafka is not None else lambda: None
            archiver.start(broker.history.archive, broker.history.trims, owned)
        contexts: list[LiveContext] = []
        await _listen(server, config, contexts)
        broker.serve(server, (amqp_door, http_door))
        body_workers = WorkerPool()
        live = Live(broker, Logins())
        app = make_app(broker, body_workers, live)
        listening = _listen_http(config, contexts)
        end = partial(_end_streams, broker, live)
        serving = serve(app, listening, http_door, broker.host.loop_share, end, config.http_balancers)
        http = asyncio.create_task(serving)
        reloads = asyncio.create_task(_reload(broker, contexts, reread, hung_up, manager))
        try:
            broker.history.id_index.start()
            where = ", ".join(f"{protocol} {bracketed(address)}:{port}" for protocol, address, port in config.listeners)
            await _say_ready(broker, where)
            manager.ready(f"running: {where}")
            manager.begin_watchdog()
            if config.loop_warning_ms:
                broker.host.loop_watch.start()
            await _until_stopped(stopping, http)
        finally:
            manager.stopping()
            broker.host.loop_watch.stop()
            reloads.cancel()
            await server.stop()
            http.cancel()
            await asyncio.wait([http])
            body_workers.close()
            broker.history.id_index.stop()
        if not http.cancelled():
            _raise_http(http)
    finally:
        _close(broker)
    if failures:
        raise Failure(_code(failures[0]), f"stopped: {failures[0]}")
    logger.info("stopped")


async def _say_ready(broker: Broker, where: str) -> None:
    """The lines on stdout when clients may come. They have no password but the one that everybody knows."""
    config = broker.config
    log = "" if config.kafka is None else f", log {config.kafka_prefix}.* at {config.kafka}"
    log += ", read-only" if config.read_only else ""
    log += f", follows {config.follow}" if config.follow is not None else ""
    build = builds.running()
    if build.unused:
        logger.warning("the pure build runs: %s", build.unused)
    scheme, port = ("http", config.http_port) if config.http_port else ("https", config.https_port)
    host = LOCALHOST if config.host in EVERYWHERE else bracketed(config.host)
    may_log_in = host in (LOCALHOST, "127.0.0.1", "[::1]") or "guest" not in config.loopback_users
    known = may_log_in and await broker.access.control.has_password("guest", "guest")
    login = ", user guest, password guest" if known else ""
    print(
        f"RewindMQ {VERSION} is ready: {where}, data {config.data}{log}, {build.kind} build\n"
        f"The desk is at {scheme}://{host}:{port}/{login}",
        flush=True,  # both in one write: a program that waits for the first line may close the pipe
    )


def _end_streams(broker: Broker, live: Live) -> None:
    """End the answers that never end by themselves; a follower that waits gets an empty one."""
    live.close()
    if broker.followers is not None:
        broker.followers.landed()


def _start_tokens(broker: Broker) -> None:
    try:
        broker.access.tokens.start()
    except (BadKeys, OSError) as error:
        raise Failure(CONFIG_ERROR, f"oauth_keys: {error}") from error


def _heed_signals(stopping: asyncio.Event, hung_up: asyncio.Event) -> None:
    """SIGTERM and SIGINT stop. SIGHUP asks for a reload, or stops where a terminal was closed."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    at_terminal = _has_terminal()

    def heed_hangup() -> None:
        (stopping if at_terminal and not _has_terminal() else hung_up).set()

    loop.add_signal_handler(signal.SIGHUP, heed_hangup)


def _has_terminal() -> bool:
    """Return True if a terminal controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


async def _reload(
    broker: Broker,
    contexts: list[LiveContext],
    reread: Callable[[], Reread] | None,
    hung_up: asyncio.Event,
    manager: ServiceManager,
) -> None:
    """Take the configuration over each time that SIGHUP came. Several signals at once are one."""
    while await hung_up.wait():
        hung_up.clear()
        manager.reloading()
        outcome = "running; there is no configuration to read again"
        try:
            if reread is not None:
                outcome = await apply_settings(broker, contexts, reread)
        except Exception:  # a defect of a reload is no reason to stop
            logger.exception("the configuration was not read again")
            outcome = "running, with the configuration of before"
        manager.ready(outcome)


async def _open_archive(config: Config) -> ArchiveSupervisor | None:
    """Start the process that archives and trims, before anything is written: a URL that names no archive prevents the
    start. Failure."""
    if config.archive.url is None and config.keep_history_ms is None:
        return None
    archiver = ArchiveSupervisor(config.archive, order_of(config))
    try:
        await archiver.open()
    except ArchiveRefused as refused:
        raise Failure(USAGE if refused.wrong_url else UNAVAILABLE, f"archive: {refused}") from None
    except (EOFError, OSError) as error:
        raise Failure(UNAVAILABLE, f"archive: its process ended: {_reason(error)}") from None
    return archiver


def _owned(broker: Broker) -> frozenset[str]:
    """The partitions that this node archives. Called in a thread."""
    return frozenset(partition.name for partition in broker.partitions if partition.owned)


async def _open(config: Config, failed: Callable[[Exception], None], archived: Mapping[str, int]) -> Broker:
    """Open the broker that the configuration describes. `archived`: as `open_broker`. Failure."""
    try:
        if config.read_only and config.follow is None:
            return open_read_only(config)
        config.data.mkdir(parents=True, exist_ok=True)
        require_directories(config.data)
        close_to_others(config.data)
        if config.kafka is not None:
            return await open_node(config, failed)
        if config.follow is not None:
            return await open_follower(config, failed)
        return open_broker(config, failed=failed, archived=archived)
    except (CorruptLog, UndecodableRecord, StoreError) as error:
        raise Failure(DATA_ERROR, str(error)) from error
    except (LogError, NewerHistory) as error:
        raise Failure(_code(error), str(error)) from error
    except OSError as error:
        raise Failure(CONFIG_ERROR, f"{error.filename or config.data}: {_reason(error)}") from error


# -- how a broker is put together -------------------------------------------------------------------------------------
#
# Each part is made with the parts that it calls: log -> metadata, partitions -> keeper -> broker, on Kafka the node
# before its partitions. Where a part has to tell what happens to a part that is made after it, that one is its listener
# and comes by `start(listener)`: these calls are all here.


def open_broker(
    config: Config,
    wall_ms: WallClock | None = None,
    elapsed_ns: ElapsedClock | None = None,
    failed: Callable[[Exception], None] = lambda error: None,
    archived: Mapping[str, int] | None = None,
) -> Broker:
    """Open a broker on an embedded log: recover what the data directory holds, or begin a history. Call it in the loop
    that will run the broker. Clocks as `LogClock.made_of`. `failed` is called when one of its followers was promoted.
    `archived`: where the archive of this history ends, by partition.

    LogError, CorruptLog, StoreError, UndecodableRecord: the text says what is wrong, and where."""
    clock = LogClock.made_of(wall_ms, elapsed_ns)
    with ExitStack() as opened:
        log = embedded.open_log(config)
        opened.callback(log.close)
        metadata = SoleWriterMetadata(log.metadata, clock.now_ms)
        snapshots = embedded.open_snapshots(config, log)
        metadata.fold(snapshots)
        history = metadata.topology.history
        store = open_store(config.data, [each.name for each in log.partitions], history.forks)
        opened.callback(store.close)
        require_end(config, log, store, snapshots, history, archived or {})
        embedded.grow(config, log, metadata.topology)
        end_trims(config.data, log.queues, metadata.topology)
        embedded.tell_fork(history)
        embedded.keep_layout(config, log, history)
        recoveries = [embedded.recovered(queue_log, store) for queue_log in log.queues]
        gap_ms = embedded.begin_clock(clock, metadata, recoveries)
        partitions = [
            SoleWriterPartition(index, queue_log, each.machine, each.projector, clock.now_ms)
            for index, (queue_log, each) in enumerate(zip(log.queues, recoveries, strict=True))
        ]
        age_ms = config.archive.segment_age_ms
        ages = None if age_ms is None else SegmentAges(log, clock, age_ms)
        followers = Followers(config, log, history, [metadata, *partitions], failed)
        keeper = EmbeddedKeeper(config, log, metadata, store, partitions, snapshots, ages, followers)
        broker = Broker(config, clock, metadata, partitions, keeper, WorkerPool(NICENESS))
        log.start(keeper)
        keeper.start(broker)
        _start(broker)
        embedded.adopt_state(broker, keeper)
        note_history(config.data, store, history.forks)
        broker.lead(followers)
        if ages is not None:
            ages.start()
        tell_due(broker.topology)
        broker.host.clock_watch.start(gap_ms)
        broker.repartition.start()
        opened.pop_all()
    return broker


def open_read_only(config: Config) -> Broker:
    """Open a broker that serves the history of a data directory and changes nothing. Call it in the loop that will run
    the broker.

    LogError, CorruptLog, UndecodableRecord: the text says what is wrong, and where."""
    log, snapshots = InDirectory(config.data).open(), Snapshots(config.data / "snapshots")
    stored = read_only.stored_quarantine(config.data / "state", log.queues)
    ends = [read_only.at_end(queue_log, snapshots, stored.get(queue_log.name)) for queue_log in log.queues]
    metadata = read_only.ReadOnlyMetadata(log.metadata, lambda: end_ms)
    metadata.fold(snapshots)
    end_ms = read_only.end_ms(metadata, [machine for machine, _ in ends])
    embedded.tell_fork(metadata.topology.history)
    partitions = [
        read_only.UnstoredPartition(index, queue_log, *end, config)
        for index, (queue_log, end) in enumerate(zip(log.queues, ends, strict=True))
    ]
    onlooker = read_only.ReadOnlyKeeper(config, metadata)
    clock = LogClock.made_of(lambda: end_ms, None)
    broker = Broker(config, clock, metadata, partitions, onlooker, WorkerPool(NICENESS))
    onlooker.start(broker)
    _start(broker)
    logger.info("read-only: time stands still at %s, the end of the log; nothing is written", format_time(end_ms))
    return broker


async def open_follower(config: Config, failed: Callable[[Exception], None]) -> Broker:
    """Open a broker that copies the log of a leader and folds along. It returns when the copy is at a whole moment for
    the first time. `failed` is called when the follower cannot go on. Call it in the loop that will run the broker.

    LogError, CorruptLog, UndecodableRecord, StoreError: the text says what is wrong."""
    # Loaded only where a broker follows: an HTTP client takes 0.2 s, and memory.
    from rewindmq.engine.standby.node import CopiedMetadata, CopiedPartition, FollowerKeeper
    from rewindmq.engine.standby.start import open_copy

    with ExitStack() as opened:
        descriptor = lock(config.data)
        opened.callback(os.close, descriptor)
        follower = await open_copy(config)
        opened.callback(follower.close)
        log = EmbeddedLogReader(config.data)
        metadata = CopiedMetadata(log.metadata, lambda: keeper.end_ms)
        metadata.fold(Snapshots(config.data / "snapshots"))
        forks = metadata.topology.history.forks
        store = open_store(config.data, [log.metadata.name, *(each.name for each in log.queues)], forks)
        opened.callback(store.close)
        note_history(config.data, store, forks)
        partitions = [
            CopiedPartition(index, queue_log, embedded.recovered(queue_log, store))
            for index, queue_log in enumerate(log.queues)
        ]
        keeper = FollowerKeeper(config, metadata, partitions, store, opened.pop_all().close)
        clock = LogClock.made_of(lambda: keeper.end_ms, None)
        broker = Broker(config, clock, metadata, partitions, keeper, WorkerPool(NICENESS))
        keeper.start(broker)
        _start(broker)
        broker.follow(follower.status)
        follower.start(keeper, broker, failed)
    return broker


async def open_node(
    config: Config,
    failed: Callable[[Exception], None],
    wall_ms: WallClock | None = None,
    elapsed_ns: ElapsedClock | None = None,
) -> Broker:
    """Open a node on Kafka, and join the others. `failed` is called when the node cannot go on and has to be stopped.
    Clocks as `LogClock.made_of`.

    LogError: Kafka or the data directory can't be used. StoreError as `open_broker`."""
    clock = LogClock.made_of(wall_ms, elapsed_ns)
    with ExitStack() as opened:
        log = await cluster.open_log(config)
        opened.callback(log.close)
        config = cluster.fitted(config, log)
        store = StateStore.open(config.data / "state")
        opened.callback(store.close)
        remove_leftovers(config.data)
        node = ClusterKeeper(config, log, store, failed)
        metadata = ReadBackMetadata(log.metadata, clock.now_ms, node.nodes_changed)
        offsets = {metadata.name: metadata.fold(node.snapshots)}
        placement = metadata.topology.placement
        cluster.use_all_of(log, config, placement)
        histories = cluster.histories(log, config)
        recoveries = cluster.recovered(log, histories, store, config, placement)
        config = replace(config, partitions=len(recoveries))  # should Kafka be given more while this node runs
        partitions = [
            ReadBackPartition(index, queue_log, each.machine, each.projector, clock.now_ms, config.node, node, history)
            for index, (queue_log, each, history) in enumerate(zip(log.queues, recoveries, histories, strict=True))
        ]
        broker = Broker(config, clock, metadata, partitions, node, WorkerPool(NICENESS))
        node.start(broker, metadata, partitions)
        _start(broker)
        log.follow(offsets | {partition.name: partition.next_offset for partition in partitions}, node)
        await cluster.join(broker, node)
        tell_due(broker.topology)
        broker.host.clock_watch.start()
        broker.repartition.start()
        opened.pop_all()
    return broker


def _start(broker: Broker) -> None:
    broker.metadata.start(broker)
    for partition in broker.partitions:
        partition.start(broker)


def _look_after_keys(broker: Broker) -> None:
    config = broker.config
    try:
        if config.encrypts:
            broker.subjects.keys.prepare()
            _look_after_vault(broker)
        if broker.subjects.keys.vault() is None:
            broker.subjects.destroy_what_came_back()
        else:  # a thread waits for the Vault
            broker.subjects.erased(broker.subjects.keys.came_back())
    except OSError as error:
        raise Failure(CONFIG_ERROR, f"keys: {config.keys_directory}: {_reason(error)}") from error


def _look_after_vault(broker: Broker) -> None:
    """Note where the Vault is, and check that it takes the token. If it does not answer the broker begins without it.

    OSError."""
    keys, place = broker.subjects.keys, broker.config.vault
    if place is not None:
        keys.use_vault(place)
    vault = keys.vault()
    away = "" if vault is None else vault.check()
    if away:
        logger.warning("keys of bodies: %s (messages that need new keys are refused until it does)", away)


async def _listen(server: AmqpServer, config: Config, contexts: list[LiveContext]) -> None:
    """For AMQP clients, and for those over TLS. Its context is added to `contexts`."""
    context = None if config.tls is None or config.tls.port is None else _context(TlsListener.context, config.tls)
    contexts += [] if context is None else [context]
    for protocol, host, port in config.listeners:
        if protocol.startswith("amqp"):
            try:
                await server.listen(host, port, context if protocol == "amqp/ssl" else None)
            except OSError as error:
                raise Failure(UNAVAILABLE, why_not_bound(protocol, bracketed(host), port, error)) from error
    server.begin()


def _listen_http(config: Config, contexts: list[LiveContext]) -> list[Listening]:
    """The management API, over TLS too, and its metrics. Its context is added to `contexts`."""
    listening: list[Listening] = []
    context = None
    if config.https_port is not None:
        if config.tls is None:
            raise Failure(CONFIG_ERROR, "tls: https needs a certificate and its key")
        context = _context(TlsListener.http_context, config.tls)
        contexts.append(context)
    try:
        for protocol, host, port in config.listeners:
            if protocol.startswith("http"):
                try:
                    listening += ((sock, context if protocol == "https" else None) for sock in bound(host, port))
                except OSError as error:
                    raise Failure(UNAVAILABLE, why_not_bound(protocol, bracketed(host), port, error)) from error
    except Failure:
        for sock, _ in listening:
            sock.close()
        raise
    return listening


def _context(make: Callable[[TlsListener], ssl.SSLContext], tls: TlsListener) -> LiveContext:
    try:
        return LiveContext(make, tls)
    except OSError as error:
        raise Failure(CONFIG_ERROR, f"tls: {error}") from error


async def _load_definitions(broker: Broker) -> None:
    path = broker.config.load_definitions
    if path is None:
        return
    try:
        await load(broker, path)
    except AmqpError as error:
        raise Failure(DATA_ERROR, f"definitions: {error.text}") from error
    except OSError as error:
        raise Failure(CONFIG_ERROR, f"definitions: {path}: {_reason(error)}") from error


def _code(error: Exception) -> int:
    if isinstance(error, NewerHistory | NewerSchema | Fenced):
        return CONFIG_ERROR
    if isinstance(error, RefusedByLeader | CorruptLog | LostEnd):
        return DATA_ERROR
    return UNAVAILABLE if isinstance(error, LogError) else SOFTWARE


def _close(broker: Broker) -> None:
    try:
        broker.close()
    except LogError as error:
        raise Failure(UNAVAILABLE, f"not stopped cleanly, but all that was confirmed is kept: {error}") from error


async def _stopped_before(opening: "asyncio.Task[Broker]", stopping: asyncio.Event) -> bool:
    """Wait until the broker is open, or until a signal comes: then the opening is cancelled."""
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait([stop, opening], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if opening.done():
        return False
    opening.cancel()
    await asyncio.wait([opening])
    return True


async def _until_stopped(stopping: asyncio.Event, http: "asyncio.Task[None]") -> None:
    """Until a signal comes, or the management API ends by itself, which it never should."""
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait([stop, http], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()


def _raise_http(http: "asyncio.Task[None]") -> None:
    error = http.exception()
    assert error is not None, "the management API ended without being asked to"
    raise Failure(UNAVAILABLE, f"management API: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
