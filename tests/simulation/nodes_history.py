"""A seed makes a history of several nodes; it is run, healed, drained and judged; one that fails is cut.

python -m tests.simulation.nodes_history 0 5000            seeds 0 to 4999; those that fail are named
"""

import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import rewindmq.engine.broker.broker
import rewindmq.engine.cluster.partition_pausing
from rewindmq.engine.partition.queue_counters import Listed
from rewindmq.engine.placement.request import ask_for
from rewindmq.schemas.values import Actor
from tests.simulation.clients import ARGUMENTS, DEAD, PATIENCE, QUEUES, arguments
from tests.simulation.history import Failure, shorten
from tests.simulation.nodes_clients import EXCHANGES, Step, broker_of
from tests.simulation.nodes_connections import Client, Taker
from tests.simulation.nodes_judge import judge
from tests.simulation.nodes_moves import MovingClients, followed, unmoved
from tests.simulation.nodes_world import Life, Record, World

WEIGHTS = {
    "publish": 30,
    "settle": 20,
    "consume": 9,
    "fetch": 4,
    "credit": 4,
    "cancel": 2,
    "declare": 6,
    "delete": 2,
    "purge": 1,
    "bind": 3,
    "policy": 3,
    "connect": 3,
    "close": 3,
    "wait": 12,
    "kill": 2,
    "stop": 1,
    "start": 6,
    "cut": 2,
    "mend": 3,
    "owners": 3,
    "foreign": 1,
    "clock": 1,
    "exchange": 2,
    "vhost": 3,
    "hold": 4,
}
STEPS = 100


def history_of(seed: int, steps: int = STEPS) -> list[Step]:
    dice = random.Random(f"nodes' steps {seed}")
    kinds = dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps)
    return [(kind, dice.getrandbits(32)) for kind in kinds]


def run(seed: int, history: Sequence[Step], look: Callable[[Any], object] = lambda shared: None) -> Record:
    """AssertionError (or whatever a node fails with) when something is wrong; its note tells the story. `look` is given
    the log when it was judged."""
    directory = Path(tempfile.mkdtemp(prefix="simulation-"))
    world = World(seed, directory)
    try:
        with world.running():
            drive = Drive(world)
            drive.prepare()
            for number, step in enumerate(history):
                drive.clients.do(step)
                if number % 8 == 0:
                    drive.claim()
                assert not world.defects, world.defects[0]
            drive.heal()
            drive.end_moves()
            drive.drain()
            drive.check_nothing_half_done()
            drive.claim()
            for life in list(world.lives.values()):
                world.loop.inside(partial(world.stop, life))
                world.loop.run(1)
            accounts = judge(world, drive.clients.publishes, drive.clients.takers)
            assert not world.defects, world.defects[0]
            look(world.history)
            for account in accounts:
                world.record.counts.update(account.ended)
                world.record.counts["dead letters"] += len(account.letters)
                world.record.counts["dead letters seen before"] += account.duplicates
                world.record.counts["publishes refused"] += len(account.refused)
                world.record.counts["ignored, of a lost life"] += len(account.void)
                world.record.counts["declared lost"] += account.lapsed
                world.record.counts["checkpoints"] += account.checkpoints
                world.record.counts["ticks"] += account.ticks
                world.record.counts["idle ticks"] += account.idle_ticks
    except BaseException as error:
        error.add_note("\n".join(world.record.trace))
        raise
    finally:
        shutil.rmtree(directory)
    return world.record


def check(seed: int, steps: int = STEPS) -> Record:
    """Run the seed's history. Failure with the shortest history that fails alike."""
    history = history_of(seed, steps)

    def fails(shorter: Sequence[Step]) -> Exception | None:
        try:
            run(seed, shorter)
        except Exception as error:
            return error
        return None

    try:
        return run(seed, history)
    except Exception as error:
        shortest, why = shorten(history, error, fails)
        raise Failure(
            f"seed {seed}: python -m pytest tests/simulation/test_simulation_nodes.py --seed {seed}\n"
            f"{len(shortest)} of {steps} steps are enough; at the end is what they did.\n\n"
            + "".join(traceback.format_exception(why, chain=False))
        ) from None


class Drive:
    """The beginning and the end of a history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients = MovingClients(world)

    def prepare(self) -> None:
        world = self.world
        world.history.may_drop = False  # a node that is overtaken ends, and nobody starts it again here
        for node in world.nodes:
            world.loop.inside(partial(world.start, node))
        self.until(self.all_serve, 70)
        clients = self.clients
        clients.dice = world.dice
        client = clients.open(world.lives[world.nodes[0]])
        broker, session = broker_of(client.life), client.session
        kind: dict[str, bool | int | str] = {"x-queue-type": "quorum"} if world.dice.random() < 0.5 else {}

        chosen = [world.dice.choice(ARGUMENTS) for _ in QUEUES[:5]]

        async def declare() -> None:
            await broker.exchanges.declare(session, "dlx", "fanout", False, True, False, False, ())
            await broker.queues.declare(session, DEAD, False, True, False, False, arguments(kind))
            await broker.exchanges.bind(session, "dlx", "queue", DEAD, "", ())
            for name, given in zip(QUEUES, chosen, strict=False):
                await broker.queues.declare(session, name, False, True, False, False, arguments(given))

        self.asked(client, declare())
        world.loop.run(10)
        self.until(self.all_serve, 70)  # one may have been declared lost meanwhile, and join again
        world.history.may_drop = True
        for life in world.lives.values():
            clients.open(life)

    def all_serve(self) -> bool:
        """Return True if every node runs, and clients may come to it."""
        lives = self.world.lives
        return all(node in lives and lives[node].serves for node in self.world.nodes)

    def asked(self, client: Client, work: Coroutine[Any, Any, object]) -> None:
        self.clients.ask(client, work)
        self.until(lambda: not client.asking, 90)

    def until(self, done: Callable[[], bool], seconds: float) -> None:
        for _ in range(int(seconds * 5)):
            if done():
                return
            self.world.loop.run(0.2)
        lives = {life.name: (life.serves, str(life.failure)) for life in self.world.lives.values()}
        raise AssertionError(f"it does not come to that within {seconds} s: {lives}")

    def claim(self) -> None:
        for life in self.world.lives.values():
            self.world.claim(life)

    # -- healing ------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """The log works, all nodes run, and who had been asking is answered."""
        world = self.world
        world.record.trace.append("    healing")
        world.history.heal()
        rewindmq.engine.cluster.partition_pausing.UNUSED_SECONDS = 1e9  # draining needs every fold
        rewindmq.engine.broker.open_sessions.EPOCH_IDS = (
            1 << 24
        )  # as `running` leaves it: who drains does not have to join again
        if len(world.nodes) > 2 and world.dice.random() < 0.3:  # one is gone for good
            node = world.nodes.pop()
            if node in world.lives:
                world.loop.inside(lambda: world.kill(world.lives[node]))
        for _ in range(3):  # who gives up now (it was cut off too long while it started) is started again
            for node in world.nodes:
                if node not in world.lives:
                    world.loop.inside(partial(world.start, node))
            world.loop.run(25)
        self.until(lambda: all(node in world.lives and world.lives[node].serves for node in world.nodes), 90)
        world.loop.run(10)
        self.until(self.counters_agree, 60)
        for life in list(world.lives.values()):
            world.loop.inside(partial(life.begin, broker_of(life).queues.enter_all()))
        world.loop.run(10)
        for life in world.lives.values():
            assert all(partition.current for partition in broker_of(life).partitions), f"{life.name} does not fold all"
        for client in self.clients.clients:
            assert not client.asking or client.closed or client.life.ended, f"{client.life.name} does not answer"
            for publish in self.clients.publishes:
                if publish.client is client and not client.closed and not client.life.ended:
                    assert len(publish.answers) == len(publish.places), f"{publish.body!r} was never answered"

        for taker in self.clients.takers:
            if taker.consumes and taker.attached and taker.may_settle and taker.queue_is_there:
                assert taker.queue is not None
                told = f"{taker.client.life.name}: consumer {taker.consumer_id} is nobody's, and was not told"
                assert taker.consumer_id in taker.queue.holders, told

    def end_moves(self) -> None:
        """Queues that were asked to move have moved, or stay."""
        world = self.world
        life = next(iter(world.lives.values()))
        wanted = broker_of(life).topology.placement.wanted
        if wanted > len(world.history.queues):  # it was cut short: the operator asks again
            self.asked(self.clients.open(life), ask_for(broker_of(life).repartition, Actor("guest", 0), wanted))
            assert wanted == len(world.history.queues)
        while smaller := [life for life in world.lives.values() if len(life.machines) < len(world.history.queues)]:
            world.loop.inside(lambda life=smaller[0]: world.stop(life))  # type: ignore[misc]
            world.loop.inside(lambda life=smaller[0]: world.start(life.node))  # type: ignore[misc]
            self.until(lambda: all(life.serves for life in world.lives.values()), 90)
        for _ in range(600):
            if not any(unmoved(broker_of(life)) for life in world.lives.values()):
                break
            world.loop.run(0.2)
        left = {life.name: unmoved(broker_of(life)) for life in world.lives.values()}
        assert not any(left.values()), f"the repartition does not come to its end: {left}"
        world.loop.run(3)
        for taker in self.clients.takers:
            other = taker.successor
            waits = taker.leaves and taker.attached if other is None else other.partition is None
            told = f"{taker.client.life.name}: consumer {taker.tag} did not follow its queue, and was not told"
            assert not waits or taker.told or not taker.may_settle, told

    def counters_agree(self) -> bool:
        """Return True if, for each partition that a node does not fold, its counters are those of the owner's state."""
        lives = self.world.lives.values()
        owners = {
            partition.name: partition
            for life in lives
            for partition in broker_of(life).partitions
            if partition.owned and self.world.standbys.get(life.node) is not None
        }
        for life in lives:
            for partition in broker_of(life).partitions:
                owner = owners.get(partition.name)
                if partition.current or owner is None:
                    continue  # or the owner folds everything, and publishes nothing
                if partition.counted is None or figures_of(partition.counted.queues) != figures_of(
                    owner.machine.by_name
                ):
                    return False
        return True

    def drain(self) -> None:
        """No policies: everything that is left must come out, be acked, and leave nothing behind."""
        world, clients = self.world, self.clients
        clients.dice = world.dice
        for client in clients.clients:
            world.loop.inside(client.ends)
        world.loop.run(8)
        client = clients.open(world.dice.choice(list(world.lives.values())))
        broker = broker_of(client.life)
        for name in ("a", "b"):
            if ("/", name) in broker.topology.policies:
                self.asked(client, broker.policies.clear(Actor("guest", 0), "/", name))
            if ("/", name) in broker.topology.operator_policies:
                self.asked(client, broker.operator_policies.clear(Actor("guest", 0), "/", name))
        world.loop.run(8)
        for queue in list(broker.queues.all("/")):
            clients.consume_as(client, queue.name, 3, False, 0, False, ())
            self.until(lambda: not client.asking, 30)
        quiet = 0
        for _ in range(400):
            world.loop.run(0.5)
            busy = [taker for taker in clients.takers if taker.outstanding and taker.client is client]
            for taker in busy:
                world.loop.inside(partial(self.ack, taker))
            if not busy:
                if self.drained():
                    return
                world.loop.run(61)
                quiet += 1
                if quiet == PATIENCE:
                    self.delete_what_waits_for_itself(client)
                assert quiet < 2 * PATIENCE, f"not drained: {self.left()}"
        raise AssertionError(f"not drained: {self.left()}")

    def ack(self, taker: Taker) -> None:
        self.clients.settle_these(taker, taker.outstanding, "ack")
        taker.outstanding = []
        broker_of(taker.client.life).turns.end()

    def delete_what_waits_for_itself(self, client: Client) -> None:
        """See clients.py."""
        broker = broker_of(client.life)
        for queue in list(broker.queues.all("/")):
            bound = [bound.source for bound in broker.topology.bindings_to("/", "queue", queue.name)]
            if queue.outbox and queue.settings.at_least_once and "dlx" in bound:
                self.asked(client, broker.queues.delete(client.session, queue.name, False, False))

    def drained(self) -> bool:
        return not self.left()

    def left(self) -> str:
        moving = {unmoved(broker_of(life), strays=True) for life in self.world.lives.values()} - {""}
        return "; ".join(sorted(moving)) + "; ".join(
            f"{life.name}: {queue.name} (gone: {queue.gone}): {queue.messages_ready} ready, {queue.messages_unacked}"
            f" unacked, outbox {list(queue.outbox)}, at rest {broker_of(life).turns.at_rest}"
            for life in self.world.lives.values()
            for machine in life.machines
            for queue in machine.by_id.values()
            if queue.messages_ready or queue.messages_unacked or queue.outbox
        )

    def check_nothing_half_done(self) -> None:
        self.world.loop.run(10)
        lives: list[Life] = list(self.world.lives.values())
        for life in lives:
            broker = broker_of(life)
            for bound in broker.topology.bindings("/"):
                assert broker.queues.get("/", bound.destination) is not None, f"{life.name}: {bound} is of a queue gone"
            for (source, key, name), incarnation in self.clients.bound.items():
                found, home = broker.queues.get("/", name), broker.homes.of("/", name).index
                if found is not None and followed(broker.topology.placement, name, *incarnation) == (
                    home,
                    found.queue_id,
                ):
                    there = any(
                        (bound.source, bound.routing_key) == (source, key)
                        for bound in broker.topology.bindings_to("/", "queue", name)
                    )
                    assert there, f"{life.name}: {source} {key} {name} was bound, and is no longer"
            for queue in broker.queues.all():
                assert queue.vhost in broker.topology.vhosts, f"{life.name}: {queue.name} outlived its vhost"
                assert broker.effective_policies.outstanding(queue) is None, (
                    f"{life.name}: {queue.name} has other policies"
                )
            alive = {joined.node for joined in broker.topology.nodes.values()}
            assert alive == set(self.world.nodes), f"{life.name}: alive are {alive}"
            for machine in life.machines:
                for session in [*machine.sessions, *machine.owned]:
                    served = any(session in broker_of(each).sessions.by_id for each in lives)
                    assert served, f"{life.name}: session {session} is nobody's"
                for epoch in broker.topology.ended:
                    assert epoch in machine.lost_epochs, f"{life.name}: epoch {epoch} is not over in a partition"
            for partition in broker.partitions:
                assert not partition._waiting, f"{life.name}: confirms of {partition.name} are waited for"
                assert not partition._refusals, f"{life.name}: nobody asked for refusals: {partition._refusals}"
            assert broker.turns.blocked is None
            self.check_routes(life)
        states: set[object] = {tuple((m.next_offset, m.digest()) for m in life.machines) for life in lives}
        assert len(states) == 1, "the nodes differ"

    def check_routes(self, life: Life) -> None:
        """Check that the routes that the node remembers are those that it would compute now."""
        router = broker_of(life).router
        for exchange in ("", "amq.fanout", "dlx", "amq.topic", *EXCHANGES):
            for key in QUEUES:
                remembered = router.route("/", exchange, key, None)
                router.exchanges_changed()
                assert remembered == router.route("/", exchange, key, None), f"{life.name}: {exchange}, {key}"


def figures_of(queues: Mapping[tuple[str, str], Listed]) -> dict[tuple[str, str], tuple[int, ...]]:
    return {
        name: (
            each.queue_id,
            each.messages_ready,
            each.messages_unacked,
            each.message_bytes_ready,
            each.consumer_count(),
            each.paused,
        )
        for name, each in queues.items()
    }


def main(first: int, end: int) -> int:
    """The number of seeds that fail."""
    failed, met = 0, Counter[str]()
    for seed in range(first, end):
        try:
            met += run(seed, history_of(seed)).counts
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
        if (seed - first) % 100 == 99:
            print(f"{seed - first + 1} seeds, {failed} failed", flush=True)
    print(f"{end - first} seeds, {failed} failed", *sorted(met.items()), sep="\n")
    return failed


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]), int(sys.argv[2]))))
