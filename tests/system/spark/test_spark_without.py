"""A history without one message, one user or one deployment: the differences, and the resulting queue (B-11)."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pika
import pytest
from pyspark.sql import SparkSession

from rewindmq.projections.rules.partition_hash import partition_of
from rewindmq.projections.what_if.exclusion import Rule
from rewindmq.schemas.events import Published, Purged, QueueDeclared
from rewindmq.schemas.values import BROKER, Actor, Argument, Origin, Route
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.restore import pages
from rewindmq.spark_replay.what_if.candidates import candidate_without
from rewindmq.spark_replay.what_if.exclusion import descendants_of, parse_rule
from rewindmq.spark_replay.what_if.what_if import what_if
from tests.support.running import RunningBroker
from tests.support.spark.forging import DEAD, WORK, write_sound
from tests.support.spark.histories import ANN, START_MS, Recorder

pytestmark = pytest.mark.long

EVE = Actor("eve", 9)


def differences(spark: SparkSession, data: Path, *rules: str) -> dict[tuple[str, int], tuple[str, str]]:
    tried = what_if(spark, str(data), [candidate_without(rules)])
    return {(row.queue, row.message_id): (row.before, row.after) for row in tried.fates.collect()}


def published(queue: str, body: bytes) -> Published:
    return Published(Route("/", "", queue, (queue,)), b"\x10\x00\x02", persistent=True, body=body, body_size=len(body))


def test_b11_without_a_message_the_difference_is_what_came_of_it(spark: SparkSession, tmp_path: Path) -> None:
    """It died, and its dead letter went to a queue in another partition: both go, and nothing else changes."""
    told = write_sound(tmp_path)
    found = differences(spark, tmp_path, f"message=queues-{told.home}:{told.dead}")
    assert found == {(WORK, told.dead): ("rejected", "left_out"), (DEAD, told.came): ("ready", "left_out")}


def test_b11_without_a_user_and_without_a_message_in_anothers_place(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("short", {"x-max-length": 1})
    told.declare("plain")
    first, poison = told.publish("short", b"first"), told.publish("short", b"poison")
    ids = [told.publish("plain", b"%d" % n) for n in range(3)]
    of_eve = told.append(0, EVE, published("plain", b"eve's"))
    told.wait(10)
    told.append(0, EVE, Purged("/", "plain"))
    told.wait(10)
    told.publish("plain", b"after")
    told.close()
    found = differences(spark, tmp_path, f"message=queues-0:{poison}")
    assert found == {("short", poison): ("ready", "left_out"), ("short", first): ("maxlen", "ready")}
    kept = dict.fromkeys([("plain", n) for n in ids], ("purged", "ready"))
    assert differences(spark, tmp_path, "user=eve") == kept | {("plain", of_eve): ("purged", "left_out")}
    late = START_MS + 10
    only_the_purge = kept | {("plain", of_eve): ("purged", "ready")}
    assert differences(spark, tmp_path, f"user=eve,from={late},to={late}") == only_the_purge
    both = (f"message=queues-0:{poison}", f"from={late},to={late}")
    assert differences(spark, tmp_path, *both) == found | only_the_purge
    with pytest.raises(BadRequest, match="the history has no user 'nobody'"):
        differences(spark, tmp_path, "user=eve", "user=nobody")


def test_what_a_left_out_consumer_settled_goes_to_the_next_as_a_guess(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    one, two = told.publish("orders", b"1"), told.publish("orders", b"2")
    told.consume("orders", 1, prefetch=5, session=9)
    told.ack("orders", 1, one, two)
    told.close()
    # the acks are by the session 7 of Recorder, which did not consume: without the consumer they find nobody
    tried = what_if(spark, str(tmp_path), [candidate_without(["session=9"]), candidate_without(["user=ann"])])
    rows = {(row.candidate, row.message_id): (row.before, row.after) for row in tried.fates.collect()}
    assert rows == {("without session=9", n): ("acked", "ready") for n in (one, two)} | {
        ("without user=ann", n): ("acked", "left_out") for n in (one, two)
    }
    assumed = {row.candidate: row.lost_reactions for row in tried.assumptions.collect()}
    assert assumed == {"without session=9": 2, "without user=ann": 0}


def test_without_what_came_between_two_marks(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path)
    found = {}
    for number, queue in enumerate(("rest", "calm", "still", "quiet") * 3):
        if number < 4:
            told.declare(queue)
        elif number in (4, 8):
            told.mark(f"mark {number}")
        found[number] = queue, told.publish(queue, b"x")
    told.close()
    for rule, numbers in (
        ("from=mark:mark 4,to=mark:mark 8", range(4, 8)),
        (f"from=mark:mark 4,to={START_MS}", range(4, 12)),
    ):
        assert differences(spark, tmp_path, rule) == {found[number]: ("ready", "left_out") for number in numbers}


def test_letters_of_a_topic_that_has_grown_since_go_too(spark: SparkSession, tmp_path: Path) -> None:
    """The queue lies where two partitions would have put it, and there are three now. Of its message came a dead
    letter, and of another of the same id in another partition there came none."""
    told = Recorder(tmp_path, partitions=3)
    name = next(f"work{n}" for n in range(99) if partition_of("/", f"work{n}", 2) != partition_of("/", f"work{n}", 3))
    home, elsewhere = partition_of("/", name, 2), partition_of("/", name, 3)
    dead = next(f"dead{n}" for n in range(99) if partition_of("/", f"dead{n}", 3) == elsewhere)
    declared = QueueDeclared(
        "/",
        name,
        type="classic",
        durable=True,
        exclusive=False,
        auto_delete=False,
        owner=0,
        arguments=(Argument("x-dead-letter-exchange", "longstr", ""),),
        semantics="rabbitmq-3.13",
    )
    queue_id = told.append(home, ANN, declared)
    message = told.append(home, ANN, published(name, b"poison"))
    told.declare(dead)
    same_id = told.append(elsewhere, ANN, published(dead, b"another"))
    while same_id < message:
        same_id = told.append(elsewhere, ANN, published(dead, b"another"))
    told.append(home, ANN, Purged("/", name))
    origin = Origin("/", name, queue_id, message, "expired", 1)
    came = told.append(elsewhere, BROKER, replace(published(dead, b"poison"), origin=origin))
    told.close()
    found = differences(spark, tmp_path, f"message=queues-{home}:{message}")
    assert found == {(name, message): ("purged", "left_out"), (dead, came): ("ready", "left_out")}
    assert differences(spark, tmp_path, f"message=queues-{elsewhere}:{same_id}") == {
        (dead, same_id): ("ready", "left_out")
    }


def test_the_closure_goes_on_from_letter_to_letter() -> None:
    letters = [
        ("a", 10, "b", 3, True),  # of a message that is left out
        ("b", 20, "a", 10, False),  # of that letter
        ("b", 21, "a", 10, False),
        ("a", 30, "b", 21, False),
        ("a", 31, "b", 4, False),  # of another
        ("a", 32, "a", 31, False),
    ]
    assert descendants_of(letters) == {"a": frozenset({10, 30}), "b": frozenset({20, 21})}
    assert descendants_of([]) == {}


def test_rules_say_what_is_left_out() -> None:
    assert parse_rule("message=queues-0:12") == Rule(message=("queues-0", 12))
    assert parse_rule("user=eve,session=9,from=5,to=7") == Rule(None, "eve", 9, 5, 7)
    rule = parse_rule("from=5,to=7")
    assert [rule.fits("queues-0", 0, at, EVE) for at in (4, 5, 7, 8)] == [False, True, True, False]
    assert not rule.fits("queues-0", 0, 6, BROKER)  # time passes even if its user is left out
    assert parse_rule("from=mark:a,to= mark:b") == Rule(start="a", end="b")
    marked = Rule(start={"queues-0": 5}, end={"queues-0": 7})
    assert [marked.fits("queues-0", offset, 0, EVE) for offset in (4, 5, 6, 7)] == [False, True, True, False]
    for wrong in ("", "eve", "user=", "user=a,user=b", "message=12", "message=q:1,user=eve", "session=x", "colour=red"):
        with pytest.raises(BadRequest, match="--without"):
            parse_rule(wrong)


def test_pages_ascend_whatever_the_order_of_the_queue() -> None:
    assert list(pages([5, 6, 9, 1, 2, 0])) == [[5, 6, 9], [1, 2], [0]]
    assert list(pages([])) == []


@pytest.fixture
def broker(tmp_path: Path, start_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return start_broker(tmp_path / "data")


def test_b11_the_queue_that_would_be_is_put_beside_by_a_running_broker(
    spark: SparkSession, broker: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True, arguments={"x-max-length": 2})
    channel.queue_declare("orders.without", durable=True)
    for body in (b"first", b"poison", b"second"):
        channel.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))
    command = ["--data", str(broker.data), "--without"]
    assert cli.run(["history", "--data", str(broker.data), "--queue", "orders", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    poison = [f"{row['partition']}:{row['message_id']}" for row in rows if row["outcome"] == "published"][1]
    aside = [
        "restore",
        *command,
        f"message={poison}",
        "--queue",
        "orders",
        "--to",
        "orders.without",
        "--url",
        broker.http_url,
    ]
    assert cli.run([*aside, "--dry-run"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["messages"], row["to"], row["name"]) == (2, "orders.without", f"orders without message={poison}")
    assert channel.queue_declare("orders.without", passive=True).method.message_count == 0
    for restored, duplicates in ((2, 0), (0, 2)):
        assert cli.run(aside) == 0
        [row] = json.loads(capsys.readouterr().out)
        assert (row["restored"], row["duplicates"]) == (restored, duplicates)
    assert [channel.basic_get("orders.without", auto_ack=True)[2] for _ in range(2)] == [b"first", b"second"]
    assert channel.queue_declare("orders", passive=True).method.message_count == 2  # as it was
    connection.close()
    assert cli.run(["restore", *command, "user=eve", "--queue", "orders"]) == 64
    assert "--to" in capsys.readouterr().err
    assert cli.run(["what-if", *command, "colour=red"]) == 64
    assert "--without 'colour=red'" in capsys.readouterr().err
