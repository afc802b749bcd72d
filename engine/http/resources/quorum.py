"""Members and leaders of quorum queues (S-111 to S-130), by RabbitMQ's paths.

- With a log in Kafka a queue's members are the replicas of its partition on Kafka's brokers. RewindMQ's own nodes hold
  no part of a queue that others lack, so none of them is ever needed for a quorum.
- The queues of a partition have their members and their leader in common.
- Leaders are moved from here. A change of members is Kafka's own tool's: the answer (501) has its input and its command
  line. On an embedded log there is one of everything, and nothing to change.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from starlette.responses import Response

from rewindmq.engine.http.call import ApiError, Call, bad_request, reply, text
from rewindmq.engine.http.filters import NameFilter
from rewindmq.engine.http.listing import Item, listed_queues
from rewindmq.engine.http.reference.operation import ADMINISTRATOR, Folds, Query, operation
from rewindmq.engine.http.shapes.node import FailedView, PassedView
from rewindmq.engine.http.shapes.queues import ByKafka, GrowWish, Led, Member, MemberWish, RebalanceWish
from rewindmq.engine.log.contract import LogError

if TYPE_CHECKING:
    from rewindmq.engine.log.kafka.replicas import KafkaReplicas, Placed
    from rewindmq.engine.partition.queue_counters import Listed
    from rewindmq.engine.partition.reading import PartitionReading
    from rewindmq.projections.machine.data.queue import Queue

T = TypeVar("T")
H = TypeVar("H", bound=Callable[..., object])
Change = tuple["Placed", tuple[int, ...]]  # a partition and the replicas that it is to have

NO_MEMBERS = (
    "the log is in this node's data directory, and there is one of everything: members are the replicas of a log in"
    " Kafka (rewindmq start --kafka, docs/cluster/quorum-queues.md)"
)
BY_KAFKA = (
    "members are replicas of Kafka's partitions, and kafka-reassign-partitions.sh changes them: it is to be run with"
    " this reassignment"
)


def change(summary: str, folds: Folds, body: object = None) -> Callable[[H], H]:
    """Declare an operation that moves leaders or members: 501 is the answer where Kafka's own tool has to do it."""
    return operation(summary, folds=folds, who=ADMINISTRATOR, body=body, answers={204: None, 501: ByKafka})


# -- status -----------------------------------------------------------------------------------------------------------


def quorum_queue(call: Call, refusal: str) -> "Queue":
    """Return the quorum queue in the path. Raises ApiError with `refusal` for another type."""
    queue = call.queue()
    if queue.type != "quorum":
        raise ApiError(503, "failed", refusal)
    return queue


@operation("Shows the members of a quorum queue", folds=Folds.QUEUE, answer=list[Member])
async def status(call: Call) -> Response:
    """Answer with a row for each member, with RabbitMQ's names.

    A member in sync has everything that is confirmed. Of other members Kafka reports nothing."""
    queue = quorum_queue(call, "Cannot get quorum status of a classic queue")
    partition = call.broker.queues.partition_for(queue.vhost, queue.name)
    members = call.broker.nodes.members(partition)
    return reply(
        [
            member_item(partition, member, member == members.leader, member in members.online)
            for member in sorted(members.members)
        ]
    )


def member_item(partition: "PartitionReading", member: str, leads: bool, online: bool) -> Item:
    """Return a member of a quorum queue as JSON."""
    committed = partition.durable_offset - 1
    known = {
        "Last Log Index": partition.next_offset - 1 if leads else committed,
        "Last Written": committed,
        "Last Applied": partition.machine.next_offset - 1,
        "Commit Index": committed,
    }
    state = "leader" if leads else "follower" if online else "noproc"
    return {
        "Node Name": member,
        "Raft State": state,
        "Membership": "voter",
        **(known if online else dict.fromkeys(known, "")),
        "Snapshot Index": "",
        "Term": "",
        "Machine Version": partition.machine.machine_version,
    }


@operation(
    "Checks that no quorum is lost without a member",
    folds=Folds.COUNTERS,
    query=(Query("member", str, "A broker of Kafka's; else this node"),),
    answers={200: PassedView, 503: FailedView},
    errors=(501,),
)
async def critical(call: Call) -> Response:
    """Answer the health check that no quorum is lost without a member.

    `?member=`: without this broker of Kafka's; else without this node, which holds no member of any queue."""
    asked_for = call.request.query_params.get("member")
    replicas = call.broker.nodes.replicas()
    if asked_for is None or replicas is None:
        if len(call.broker.topology.nodes) > 1:
            return reply({"status": "ok"})
        return reply({"status": "ok", "reason": "single node cluster"})
    placed, member = await placed_and_member(replicas, asked_for)
    needed = {each.name for each in placed if member in each.in_sync and len(each.in_sync) <= each.least_in_sync}
    lost = [
        {
            "name": queue.name,
            "virtual_host": queue.vhost,
            "type": queue.type,
            "partition": partition.name,
            "readable_name": f"queue '{queue.name}' in vhost '{queue.vhost}'",
        }
        for partition, queue in await matching(call, ".*", ".*")
        if partition.name in needed
    ]
    if not needed:
        return reply({"status": "ok"})
    reason = f"Kafka would take nothing more without this broker: {', '.join(sorted(needed))}"
    return reply({"status": "failed", "reason": reason, "queues": lost}, 503)


# -- moving leaders ---------------------------------------------------------------------------------------------------


@operation("Lets preferred leaders lead", folds=Folds.COUNTERS, who=ADMINISTRATOR, body=RebalanceWish, answer=list[Led])
async def rebalance(call: Call) -> Response:
    """Answer POST .../rebalance: the preferred leader of each partition leads.

    `vhost_pattern` and `queue_pattern` choose partitions by their quorum queues; without them all are chosen. The
    answer counts the quorum queues that each broker leads then, as far as the asked broker knows."""
    call.require()
    content = await call.body()
    patterns = text(content, "vhost_pattern", ".*"), text(content, "queue_pattern", ".*")
    chosen = await matching(call, *patterns)
    replicas = call.broker.nodes.replicas()
    if replicas is None:
        return reply([{"Node name": call.broker.config.node, "Number of quorum queues": len(chosen)}])
    placed = await ask(replicas.placed)
    names = {partition.name for partition, _ in chosen}
    moving = placed if patterns == (".*", ".*") else [each for each in placed if each.name in names]
    if moving:
        await ask(lambda: replicas.elect_preferred(moving))
        placed = await ask(replicas.placed)
    addresses = await ask(replicas.brokers)
    leaders = {each.name: each.leader for each in placed}
    counts = dict.fromkeys(addresses, 0)
    for partition, _ in chosen:
        leader = leaders[partition.name]
        counts[leader] = counts.get(leader, 0) + 1
    return reply(
        [
            {"Node name": addresses.get(number, str(number)), "Number of quorum queues": count}
            for number, count in counts.items()
        ]
    )


@change("Lets a broker of Kafka's lead the partition of a queue", Folds.QUEUE, MemberWish)
async def transfer(call: Call) -> Response:
    """Answer POST .../leader: `node` leads the queue's partition.

    Only the first of the replicas can be made leader from here."""
    call.require()
    queue = quorum_queue(call, "Cannot transfer leadership of a non-quorum queue")
    replicas = replicas_of(call)
    node = text(await call.body("node"), "node", "")
    placed, member = await placed_and_member(replicas, node)
    mine = of_queue(call, queue, placed)
    if member == mine.leader:
        raise ApiError(503, "failed", "The target node is already the leader of this queue")
    if member not in mine.replicas:
        raise bad_request(f"{node} is not a member of the queue")
    if mine.replicas[0] == member:
        await ask(lambda: replicas.elect_preferred([mine]))
        return Response(status_code=204)
    first = (member, *(each for each in mine.replicas if each != member))
    why, then = "the preferred leader is the first replica", "'rewindmq rebalance quorum' makes it lead"
    return by_kafka(replicas, [(mine, first)], f"{why}; {BY_KAFKA}; then {then}")


# -- changing members -------------------------------------------------------------------------------------------------


@change("Says how a queue gets a member", Folds.QUEUE, MemberWish)
async def add(call: Call) -> Response:
    """Answer POST /api/queues/quorum/{vhost}/{queue}/replicas/add."""
    call.require()
    queue = quorum_queue(call, "Cannot add members to a classic queue")
    replicas = replicas_of(call)
    placed, member = await placed_and_member(replicas, text(await call.body("node"), "node", ""))
    return by_kafka(replicas, with_member([of_queue(call, queue, placed)], member))


@change("Says how a queue loses a member", Folds.QUEUE, MemberWish)
async def delete(call: Call) -> Response:
    """Answer DELETE /api/queues/quorum/{vhost}/{queue}/replicas/delete."""
    call.require()
    queue = quorum_queue(call, "Cannot delete members of a classic queue")
    replicas = replicas_of(call)
    placed, member = await placed_and_member(replicas, text(await call.body("node"), "node", ""), gone=True)
    return by_kafka(replicas, without_member([of_queue(call, queue, placed)], member))


@change("Says how queues get a member on a broker of Kafka's", Folds.COUNTERS, GrowWish)
async def grow(call: Call) -> Response:
    """Answer POST .../grow: a member on this broker for each partition that has a matching quorum queue.

    `even`: only where the number of members is even. The metadata, without which no queue can be used, gets a member
    too."""
    call.require()
    replicas = replicas_of(call)
    content = await call.body("strategy", "queue_pattern", "vhost_pattern")
    strategy = text(content, "strategy", "")
    if strategy not in ("all", "even"):
        raise bad_request(f"strategy '{strategy}' is not recognised.")
    placed, member = await placed_and_member(replicas, call.segment("node"))
    chosen = await matching(call, text(content, "vhost_pattern", ".*"), text(content, "queue_pattern", ".*"))
    names = {partition.name for partition, _ in chosen} | {"metadata-0", "nodes-0"}
    of_these = [each for each in placed if each.name in names and (strategy == "all" or len(each.replicas) % 2 == 0)]
    return by_kafka(replicas, with_member(of_these, member))


@change("Says how a broker of Kafka's loses its members", Folds.NONE)
async def shrink(call: Call) -> Response:
    """Answer DELETE .../shrink: remove every member from this broker, before it is removed for good (S-130)."""
    call.require()
    replicas = replicas_of(call)
    placed, member = await placed_and_member(replicas, call.segment("node"), gone=True)
    return by_kafka(replicas, without_member(placed, member))


def with_member(placed: "Iterable[Placed]", member: int) -> list[Change]:
    """Return the partitions that gain a member, with their new members."""
    return [(each, (*each.replicas, member)) for each in placed if member not in each.replicas]


def without_member(placed: "Iterable[Placed]", member: int) -> list[Change]:
    """Return the partitions that lose a member, with those left. Raises ApiError (503) if too few are."""
    changes: list[Change] = []
    for each in placed:
        if member in each.replicas:
            left = tuple(other for other in each.replicas if other != member)
            if len(left) < max(1, each.least_in_sync):
                raise ApiError(
                    503,
                    "failed",
                    f"{each.name} would have {len(left)} replicas, and Kafka takes nothing"
                    f" with fewer than {max(1, each.least_in_sync)}: add another first",
                )
            changes.append((each, left))
    return changes


def by_kafka(replicas: "KafkaReplicas", changes: Sequence[Change], reason: str = BY_KAFKA) -> Response:
    """Return the answer to a change of members: 204 if nothing has to change, otherwise the remaining work (501)."""
    if not changes:
        return Response(status_code=204)
    return reply(
        {
            "error": "not_implemented",
            "reason": reason,
            "reassignment": replicas.reassignment(changes),
            "command": f"{replicas.tool} --reassignment-json-file reassignment.json --execute",
            "partitions": [
                {"partition": each.name, "members": list(each.replicas), "wanted": list(wanted)}
                for each, wanted in changes
            ],
        },
        501,
    )


# -- shared by all of them -----------------------------------------------------------------------------------------


def replicas_of(call: Call) -> "KafkaReplicas":
    """Return the replicas on Kafka. Raises ApiError (501) on an embedded log."""
    replicas = call.broker.nodes.replicas()
    if replicas is None:
        raise ApiError(501, "not_implemented", NO_MEMBERS)
    return replicas


async def ask(question: Callable[[], T]) -> T:
    """Ask Kafka in a thread beside the loop: it may take its time."""
    try:
        return await asyncio.to_thread(question)
    except LogError as error:
        raise ApiError(503, "service_unavailable", str(error)) from None


async def placed_and_member(replicas: "KafkaReplicas", named: str, gone: bool = False) -> "tuple[list[Placed], int]":
    """Return the replicas of all partitions, and the id of the broker that is named by its id or address.

    A broker that is `gone` is known by its id alone, as long as a replica is placed on it."""
    placed, addresses = await ask(replicas.placed), await ask(replicas.brokers)
    for number, address in addresses.items():
        if named in (str(number), address):
            return placed, number
    if gone and named.isascii() and named.isdigit() and any(int(named) in each.replicas for each in placed):
        return placed, int(named)
    known = ", ".join(f"{address} (id {number})" for number, address in addresses.items())
    raise bad_request(f"node '{named}' is not a member of the cluster; Kafka's brokers are {known}")


def of_queue(call: Call, queue: "Queue", placed: "Sequence[Placed]") -> "Placed":
    """Return the partition of a queue with its members."""
    name = call.broker.queues.partition_for(queue.vhost, queue.name).name
    return next(each for each in placed if each.name == name)


async def matching(call: Call, vhost_pattern: str, queue_pattern: str) -> list[tuple["PartitionReading", "Listed"]]:
    """Return the quorum queues whose names and vhosts match the patterns, as they are listed."""
    vhosts, names = NameFilter(vhost_pattern), NameFilter(queue_pattern)
    chosen = {vhost for vhost in call.broker.topology.vhosts if vhosts.fits(vhost)}
    return [
        (partition, queue)
        async for partition, queue in call.work.over(await listed_queues(call, chosen))
        if queue.type == "quorum" and names.fits(queue.name)
    ]
