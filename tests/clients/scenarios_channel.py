"""Scenarios of connections and channels: opening, closing, confirms, transactions, reply-to, sizes, users. See
scenarios.py."""

import contextlib
from collections.abc import Callable
from typing import Any

import pika
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, NackError

from tests.clients.peer import QUORUM, Peer

REPLY_TO = "amq.rabbitmq.reply-to"


# -- transactions ------------------------------------------------------------------------------------------------------


def transaction(peer: Peer) -> Any:
    """Publishes and acks come with the commit, and go with the rollback; a rollback gives nothing back."""
    queue = peer.queue()
    channel = peer.connect().channel()
    channel.tx_select()
    channel.basic_publish("", queue, b"a")
    channel.basic_publish("", queue, b"b")
    counts = [peer.count(queue)]
    channel.tx_commit()
    counts.append(peer.count(queue))
    channel.basic_publish("", queue, b"gone")
    channel.tx_rollback()
    counts.append(peer.count(queue))
    method, *_ = channel.basic_get(queue)
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    counts.append(peer.count(queue))
    channel.basic_ack(method.delivery_tag)
    channel.tx_commit()
    channel.close()
    peer.until(queue, 1)
    return counts, peer.drain(queue)


def transaction_rejects(peer: Peer) -> Any:
    """basic.reject and nack wait for the commit too; a closed channel takes back what was not committed."""
    queue = peer.queue()
    peer.publish(queue, *"abc")
    peer.until(queue, 3)
    channel = peer.connect().channel()
    channel.tx_select()
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(3)]
    channel.basic_reject(tags[0], requeue=True)
    channel.basic_nack(tags[1], requeue=False)
    channel.basic_qos(prefetch_count=1)
    counts = [peer.count(queue)]
    channel.tx_commit()
    peer.until(queue, 1)
    counts.append(peer.count(queue))
    channel.basic_ack(tags[2])
    channel.basic_publish("", queue, b"never")
    channel.close()
    peer.until(queue, 2)
    return counts, peer.drain(queue)


def transaction_returns(peer: Peer) -> Any:
    """Mandatory messages come back; a message that the queue refuses fails the commit."""
    full = peer.queue({"x-max-length": 0, "x-overflow": "reject-publish"})

    def act(channel: BlockingChannel) -> None:
        channel.tx_select()
        channel.basic_publish("", "nowhere", b"back", mandatory=True)
        channel.tx_commit()

    refused = peer.error(lambda c: (c.tx_select(), c.basic_publish("", full, b"2"), c.tx_commit()))
    return peer.returns(act), refused, peer.drain(full)


def transaction_refusals(peer: Peer) -> Any:
    queue = peer.queue()
    acts: dict[str, Callable[[BlockingChannel], Any]] = {
        "commit without": lambda c: c.tx_commit(),
        "rollback without": lambda c: c.tx_rollback(),
        "select twice": lambda c: (c.tx_select(), c.tx_select(), c.tx_commit(), c.tx_commit()),
        "confirm in tx": lambda c: (c.tx_select(), c.confirm_delivery()),
        "tx in confirm": lambda c: (c.confirm_delivery(), c.tx_select()),
        "unknown exchange": lambda c: (c.tx_select(), c.basic_publish("nowhere", "", b"")),
        "unknown tag": lambda c: (c.tx_select(), c.basic_ack(7)),
        "same tag twice": lambda c: (
            c.tx_select(),
            c.basic_publish("", queue, b""),
            c.tx_commit(),
            c.basic_get(queue),
            c.basic_ack(1),
            c.basic_ack(1),
        ),
    }
    return {name: peer.error(act) for name, act in acts.items()}


# -- confirms ----------------------------------------------------------------------------------------------------------


def confirmed(peer: Peer, channel: BlockingChannel, count: int, act: Callable[[], None]) -> list[Any]:
    """("ack" or "nack", tag) of all `count` messages that `act` publishes, multiple ones told one by one, in order."""
    seen: dict[int, str] = {}

    def on_confirm(frame: Any) -> None:
        method = frame.method
        word = "ack" if isinstance(method, spec.Basic.Ack) else "nack"
        below = range(1, method.delivery_tag + 1) if method.multiple else (method.delivery_tag,)
        for tag in below:
            seen.setdefault(tag, word)

    channel._impl.add_callback(on_confirm, [spec.Basic.Ack, spec.Basic.Nack], one_shot=False)
    channel._impl._send_method(spec.Confirm.Select())
    act()
    peer.pump(lambda: len(seen) >= count, seconds=5)
    return [f"{word} {tag}" for tag, word in sorted(seen.items())]


def confirms(peer: Peer) -> Any:
    """Of all kinds of publishes: routed, unroutable, to several, persistent or not, refused."""
    classic, quorum = peer.queue(), peer.queue(QUORUM, name="quorum")
    full = peer.queue({"x-max-length": 1, "x-overflow": "reject-publish"}, name="full")
    peer.channel.exchange_declare(f"{peer.prefix}.x", "fanout")
    for queue in (classic, quorum):
        peer.channel.queue_bind(queue, f"{peer.prefix}.x")
    channel = peer.connect().channel()

    def act() -> None:
        for mode in (1, 2):
            for exchange, key in (("", classic), ("", quorum), ("", "nowhere"), (f"{peer.prefix}.x", ""), ("", full)):
                channel.basic_publish(exchange, key, b"x", pika.BasicProperties(delivery_mode=mode))

    return confirmed(peer, channel, 10, act), [peer.count(queue) for queue in (classic, quorum, full)]


def confirmed_at_ttl_0(peer: Peer) -> Any:
    queue = peer.queue({"x-message-ttl": 0})
    channel = peer.connect().channel()

    def act() -> None:
        for _ in range(3):
            channel.basic_publish("", queue, b"x")

    return confirmed(peer, channel, 3, act)


def confirm_counts(peer: Peer) -> Any:
    """Confirms count from confirm.select on, without earlier publishes; a second confirm.select changes nothing."""
    queue = peer.queue()
    channel = peer.connect().channel()
    channel.basic_publish("", queue, b"before")

    def act() -> None:
        channel.basic_publish("", queue, b"1")
        channel._impl._send_method(spec.Confirm.Select())
        channel.basic_publish("", queue, b"2")

    return confirmed(peer, channel, 2, act)


def refused_by_two_limits(peer: Peer) -> Any:
    """By bytes; a large one never fits; one nack for each."""
    queue = peer.queue({"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
    channel = peer.connection.channel()
    channel.confirm_delivery()
    told = []
    for body in (b"x" * 11, b"x" * 6, b"x" * 5, b"x" * 4, b""):
        try:
            channel.basic_publish("", queue, body)
            told.append("ack")
        except NackError:
            told.append("nack")
    return told, peer.count(queue)


# -- direct reply-to ---------------------------------------------------------------------------------------------------


def reply_to(peer: Peer) -> Any:
    """A question and two answers over the pseudo queue, then one after the asker has gone."""
    server = peer.queue()
    connection = peer.connect()
    channel = connection.channel()
    taken = peer.consume(REPLY_TO, 0, channel, auto_ack=True)
    channel.basic_publish("", server, b"question", pika.BasicProperties(reply_to=REPLY_TO, correlation_id="1"))
    asked = peer.get(server)
    assert asked
    address = asked[1].reply_to
    for number in range(2):
        peer.channel.basic_publish("", address, f"answer {number}".encode(), pika.BasicProperties(correlation_id="1"))
    peer.pump(lambda: len(taken) == 2)
    there = peer.error(lambda c: c.queue_declare(address, passive=True))
    connection.close()
    peer.pump(lambda: peer.error(lambda c: c.queue_declare(address, passive=True)) is not None)
    gone = peer.error(lambda c: c.queue_declare(address, passive=True))
    late = peer.returns(lambda c: c.basic_publish("", address, b"late", mandatory=True))
    return {
        "prefix": address.startswith(REPLY_TO + "."),
        "answers": [(m.exchange, m.routing_key == address, m.redelivered, p.correlation_id, b) for m, p, b in taken],
        "declared passively": there,
        "declared when gone": gone and gone[0],
        "late": [one[:3] for one in late],
    }


def reply_to_refusals(peer: Peer) -> Any:
    queue = peer.queue()
    ask = pika.BasicProperties(reply_to=REPLY_TO)
    acts: dict[str, Callable[[BlockingChannel], Any]] = {
        "with acks": lambda c: c.basic_consume(REPLY_TO, print),
        "without a consumer": lambda c: c.basic_publish("", queue, b"", ask),
        "twice": lambda c: [c.basic_consume(REPLY_TO, print, auto_ack=True) for _ in range(2)],
        "declare": lambda c: c.queue_declare(REPLY_TO),
        "declare passively": lambda c: c.queue_declare(REPLY_TO, passive=True),
        "declare passively, unknown": lambda c: c.queue_declare(REPLY_TO + ".nobody", passive=True),
        "bind": lambda c: c.queue_bind(REPLY_TO, "amq.topic", "k"),
        "delete": lambda c: c.queue_delete(REPLY_TO),
        "get": lambda c: c.basic_get(REPLY_TO),
        "after cancel": lambda c: (
            c.basic_consume(REPLY_TO, print, auto_ack=True, consumer_tag="t"),
            c.basic_cancel("t"),
            c.basic_publish("", queue, b"", ask),
        ),
    }
    return {name: peer.error(act) for name, act in acts.items()}


# -- users, sizes ------------------------------------------------------------------------------------------------------


def user_id(peer: Peer) -> Any:
    queue = peer.queue()
    name = peer.user("writer", "", ".*", "")
    other = peer.connect(name, "secret")
    return {
        "own": peer.error(lambda c: c.basic_publish("", queue, b"", pika.BasicProperties(user_id="guest"))),
        "else's": peer.error(lambda c: c.basic_publish("", queue, b"", pika.BasicProperties(user_id="else"))),
        "as another": peer.error(
            lambda c: c.basic_publish("", queue, b"", pika.BasicProperties(user_id="guest")), connection=other
        ),
        "none": peer.error(lambda c: c.basic_publish("", queue, b"", pika.BasicProperties(user_id=""))),
    }


def permissions(peer: Peer) -> Any:
    """Each operation without a permission that it needs is refused with its own text."""
    queue = peer.queue(name="shared")
    peer.channel.exchange_declare(f"{peer.prefix}.x", "fanout", durable=True)
    nobody = peer.user("nobody", "", "", "")
    declare: dict[str, Callable[[BlockingChannel], Any]] = {
        "declare": lambda c: c.queue_declare(f"{peer.prefix}.new"),
        "declare, there": lambda c: c.queue_declare(queue, durable=True),
        "passive": lambda c: c.queue_declare(queue, passive=True),
        "server-named": lambda c: c.queue_declare(""),
        "delete": lambda c: c.queue_delete(queue),
        "purge": lambda c: c.queue_purge(queue),
        "bind": lambda c: c.queue_bind(queue, f"{peer.prefix}.x"),
        "unbind": lambda c: c.queue_unbind(queue, f"{peer.prefix}.x"),
        "consume": lambda c: c.basic_consume(queue, print),
        "get": lambda c: c.basic_get(queue),
        "publish": lambda c: c.basic_publish(f"{peer.prefix}.x", "", b""),
        "publish to default": lambda c: c.basic_publish("", queue, b""),
        "exchange": lambda c: c.exchange_declare(f"{peer.prefix}.y"),
        "exchange, there": lambda c: c.exchange_declare(f"{peer.prefix}.x", "fanout", durable=True),
        "exchange passive": lambda c: c.exchange_declare(f"{peer.prefix}.x", passive=True),
        "exchange delete": lambda c: c.exchange_delete(f"{peer.prefix}.x"),
        "exchange bind": lambda c: c.exchange_bind("amq.fanout", f"{peer.prefix}.x"),
    }
    other: dict[str, Any] = {}
    for name, act in declare.items():
        other[name] = peer.error(act, connection=peer.connect(nobody, "secret"))
    other["server-named"] = other["server-named"][0]
    some = peer.user("some", f"^{peer.prefix}.c", f"^{peer.prefix}.w", f"^{peer.prefix}.[cr]")
    letters: dict[str, Callable[[BlockingChannel], Any]] = {
        "allowed": lambda c: c.queue_declare(f"{peer.prefix}.c"),
        "to a dead-letter exchange": lambda c: c.queue_declare(
            f"{peer.prefix}.cr", arguments={"x-dead-letter-exchange": f"{peer.prefix}.w"}
        ),
        "to a forbidden one": lambda c: c.queue_declare(
            f"{peer.prefix}.c2", arguments={"x-dead-letter-exchange": f"{peer.prefix}.x"}
        ),
        "to a forbidden alternate": lambda c: c.exchange_declare(
            f"{peer.prefix}.c3", arguments={"alternate-exchange": f"{peer.prefix}.x"}
        ),
    }
    return {
        **other,
        **{name: peer.error(act, connection=peer.connect(some, "secret")) for name, act in letters.items()},
    }


def topic_permissions(peer: Peer) -> Any:
    """Writing and binding by routing key on a topic exchange, with the user's name in the pattern."""
    queue = peer.queue()
    user = peer.user("u", ".*", ".*", ".*")
    path = f"topic-permissions/%2F/{user.replace(' ', '%20')}"
    status, _ = peer.manage("PUT", path, {"exchange": "amq.topic", "write": "^{username}\\.", "read": "^in\\."})
    acts: dict[str, Callable[[BlockingChannel], Any]] = {
        "write": lambda c: c.basic_publish("amq.topic", f"{user}.a", b""),
        "write forbidden": lambda c: c.basic_publish("amq.topic", "other", b""),
        "write elsewhere": lambda c: c.basic_publish("amq.direct", "other", b""),
        "bind": lambda c: c.queue_bind(queue, "amq.topic", "in.a"),
        "bind forbidden": lambda c: c.queue_bind(queue, "amq.topic", "out.a"),
        "unbind forbidden": lambda c: c.queue_unbind(queue, "amq.topic", "out.a"),
    }
    return status, {name: peer.error(act, connection=peer.connect(user, "secret")) for name, act in acts.items()}


def message_size(peer: Peer) -> Any:
    """Bodies that come in many frames, an empty one; and one of 17 MiB."""
    queue = peer.queue()
    sizes = (0, 1, 131_063, 131_064, 131_065, 1_000_000)
    for size in sizes:
        peer.publish(queue, "x" * size)
    peer.until(queue, len(sizes))
    same = [len(body) for body, _ in peer.drain(queue)] == list(sizes)

    return same, peer.error(lambda c: c.basic_publish("", queue, b"x" * (17 << 20)))


# -- opening and closing -----------------------------------------------------------------------------------------------


def opening(peer: Peer) -> Any:
    """Wrong user, password, vhost; what is told and how it ends."""
    nobody = peer.user("plain", "", "", "")
    peer.manage("PUT", "vhosts/closed")

    def tried(**how: Any) -> str:
        try:
            with contextlib.closing(peer.connect(**how)):
                return "in"
        except AMQPError as error:
            return f"{type(error).__name__}: {error}"[:300]

    return {
        "password": tried(password="wrong"),
        "user": tried(user="nobody"),
        "vhost": tried(vhost="nowhere"),
        "forbidden vhost": tried(user=nobody, password="secret", vhost="closed"),
        "allowed": tried(user=nobody, password="secret"),
        "empty password": tried(password=""),
    }


def raw(*frames: Any) -> Callable[[BlockingChannel], None]:
    """Frames, or bytes, as they are."""

    def act(channel: BlockingChannel) -> None:
        number = channel.channel_number
        data = b"".join(
            one
            if isinstance(one, bytes)
            else pika.frame.Method(number, one).marshal()
            if isinstance(one, pika.amqp_object.Method)
            else one(number).marshal()
            for one in frames
        )
        channel._impl.connection._output_marshaled_frames([data])
        channel.connection.process_data_events(time_limit=0.2)

    return act


def broken(peer: Peer) -> Any:
    """Bytes that are no AMQP, and frames in the wrong order."""
    publish = spec.Basic.Publish(exchange="", routing_key="k")

    def header(number: int) -> Any:
        return pika.frame.Header(number, 3, spec.BasicProperties())

    def body(number: int) -> Any:
        return pika.frame.Body(number, b"abc")

    acts: dict[str, Callable[[BlockingChannel], Any]] = {
        "body without publish": raw(body),
        "header without publish": raw(header),
        "method within content": raw(publish, spec.Basic.Qos()),
        "body without header": raw(publish, body),
        "two headers": raw(publish, header, header),
        "too much body": raw(publish, header, lambda n: pika.frame.Body(n, b"abcd")),
        "unknown frame type": raw(b"\x05\x00\x01\x00\x00\x00\x01x\xce"),
        "no frame end": raw(b"\x01\x00\x01\x00\x00\x00\x04\x00\x0a\x00\x0b\x00"),
        "channel opened twice": raw(spec.Channel.Open()),
        "channel not open": raw(b"\x01\x00\x63\x00\x00\x00\x04\x00\x5a\x00\x0a\xce"),
        "immediate": raw(spec.Basic.Publish(exchange="", routing_key="k", immediate=True), header, body),
        "flow": raw(spec.Channel.Flow(active=False)),
        "access": raw(b"\x01\x00\x01\x00\x00\x00\x04\x00\x1e\x00\x0a\xce"),
    }
    return {name: peer.error(act) for name, act in acts.items()}


def closed_channel_again(peer: Peer) -> Any:
    """After an error the number can be opened again, and the other channels go on."""
    connection = peer.connect()
    other = connection.channel()
    refused = peer.error(lambda c: c.queue_declare("nowhere", passive=True), connection=connection)
    again = connection.channel(channel_number=2)
    queue = again.queue_declare(f"{peer.prefix}.q", exclusive=True).method.queue
    other.basic_publish("", queue, b"x")
    other.basic_qos(prefetch_count=1)
    return refused, again.channel_number, again.queue_declare(queue, passive=True).method.message_count


def properties(peer: Peer) -> Any:
    """The server announces the properties that clients rely on, and the limits that it wants tuned."""
    implementation = peer.connection._impl
    told = implementation.server_properties
    return {
        "product": told["product"],
        "capabilities": told["capabilities"],
        "frame max": implementation.params.frame_max,
        "channel max": implementation.params.channel_max,
        "heartbeat": implementation.params.heartbeat,
    }


def all_properties(kind: dict[str, Any]) -> Callable[[Peer], Any]:
    """All properties and all types in headers, as they come out."""

    def scenario(peer: Peer) -> Any:
        queue = peer.queue(kind)
        table = {
            "int": 1,
            "large": 2**40,
            "negative": -7,
            "text": "ж",
            "bytes": b"\xff\x00",
            "yes": True,
            "none": None,
            "list": [1, "a", [True]],
            "table": {"a": {"b": 1}},
        }
        given = pika.BasicProperties(
            content_type="text/plain",
            content_encoding="gzip",
            headers=table,
            delivery_mode=2,
            priority=7,
            correlation_id="c",
            reply_to="r",
            expiration="60000",
            message_id="m",
            timestamp=1_700_000_000,
            type="t",
            user_id="guest",
            app_id="a",
            cluster_id="k",
        )
        peer.channel.basic_publish("", queue, b"x", given)
        got = peer.get(queue)
        assert got
        return got[1].__dict__

    return scenario


SCENARIOS: dict[str, Callable[[Peer], Any]] = {
    "transaction": transaction,
    "transaction rejects": transaction_rejects,
    "transaction returns": transaction_returns,
    "transaction refusals": transaction_refusals,
    "confirms": confirms,
    "confirmed at ttl 0": confirmed_at_ttl_0,
    "confirm counts": confirm_counts,
    "refused by bytes": refused_by_two_limits,
    "reply-to": reply_to,
    "reply-to refusals": reply_to_refusals,
    "user id": user_id,
    "permissions": permissions,
    "topic permissions": topic_permissions,
    "message size": message_size,
    "opening": opening,
    "broken frames": broken,
    "closed channel again": closed_channel_again,
    "server properties": properties,
    "all properties, classic": all_properties({}),
    "all properties, quorum": all_properties(QUORUM),
}
