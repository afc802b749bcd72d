"""what_if: who would have ended otherwise under another policy, argument or profile (B-04)."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rewindmq.projections.what_if.alternative import Candidate
from rewindmq.schemas.events import Acked
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.location.ranges import BadRequest
from rewindmq.spark_replay.what_if.candidates import parse_candidate
from rewindmq.spark_replay.what_if.what_if import WhatIf, what_if
from tests.support.spark.histories import ANN, START_MS, Recorder


def try_out(spark: SparkSession, data: Path, *candidates: Candidate, **options: Any) -> WhatIf:
    return what_if(spark, str(data), candidates, **options)


def fates(tried: WhatIf) -> Counter[tuple[str, str, str]]:
    return Counter((row.queue, row.before, row.after) for row in tried.fates.collect())


def test_b04_a_candidate_that_changes_nothing_changes_nothing(spark: SparkSession, busy: Path) -> None:
    """Over a history in which everything happens: every ack finds its message, every queue is as long at any time."""
    tried = try_out(spark, busy, Candidate("same", ".", arguments={"x-queue-master-locator": None}), every_ms=20)
    assert tried.fates.count() == 0
    depths = tried.depth.collect()
    assert len({row.at for row in depths}) > 10
    assert [row for row in depths if row.before != row.after] == []
    assert max(row.before for row in depths) > 3
    [assumed] = tried.assumptions.collect()
    assert (assumed.late_reactions, assumed.guessed_acks) == (0, 0)


def test_b04_limits_that_were_not_there(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    told.declare("other")
    ids = [told.publish("orders", b"%d" % n) for n in range(10)]
    told.publish("other", b"x")
    told.get("orders", 1)
    told.ack("orders", 1, ids[0])  # in both worlds
    told.close()
    shorter = Candidate("shorter", "^orders$", {"max-length": 3})
    strict = Candidate("strict", "^orders$", {"max-length": 3, "overflow": "reject-publish"})
    tried = try_out(spark, tmp_path, shorter, strict)
    rows = tried.fates.collect()
    of = {name: {row.message_id: row for row in rows if row.candidate == name} for name in ("shorter", "strict")}
    # shorter: 0 to 6 are dropped; the get takes 7, but what was acked is 0, which is gone
    assert {n: row.after for n, row in of["shorter"].items()} == dict.fromkeys(ids[:7], "maxlen")
    assert of["shorter"][ids[0]].before == "acked"
    assert of["shorter"][ids[1]].before == "ready"
    assert of["shorter"][ids[1]].after_rule == "policy shorter.max-length"
    assert {n: row.after for n, row in of["strict"].items()} == dict.fromkeys(ids[3:], "refused")
    assumed = {row.candidate: row for row in tried.assumptions.collect()}
    assert (assumed["shorter"].lost_reactions, assumed["strict"].lost_reactions) == (1, 0)
    last = {row.candidate: (row.before, row.after) for row in tried.depth.collect()}
    assert last == {"shorter": (9, 3), "strict": (9, 2)}


def test_b04_what_was_lost_would_have_been_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Dropped in fact, and in the world without a limit delivered: it is taken as acked, and said to be a guess."""
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders", {"x-max-length": 1, "x-message-ttl": 500})
    ids = [told.publish("orders", b"%d" % n) for n in range(3)]
    told.consume("orders", 1, prefetch=1)
    told.wait(100)
    told.ack("orders", 1, ids[2])
    told.wait(1_000)
    expired = told.publish("orders", b"late")
    told.close()
    generous = Candidate("generous", "orders", arguments={"x-max-length": None})
    tried = try_out(spark, tmp_path, generous)
    assert {row.message_id: (row.before, row.after) for row in tried.fates.collect()} == {
        ids[0]: ("maxlen", "acked"),
        ids[1]: ("maxlen", "acked"),
    }
    [assumed] = tried.assumptions.collect()
    assert (assumed.guessed_acks, assumed.late_reactions, assumed.lost_reactions) == (2, 0, 0)
    assert expired not in {row.message_id for row in tried.fates.collect()}


def test_b04_a_reaction_waits_for_the_delivery(spark: SparkSession, tmp_path: Path) -> None:
    """The message is delivered later in the world (more is before it), and acked as soon as it is."""
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders", {"x-max-length": 1})
    first, second = told.publish("orders", b"a"), told.publish("orders", b"b")  # drops the first
    told.get("orders", 1)
    told.ack("orders", 1, second)
    told.get("orders", 2)
    told.close()
    tried = try_out(spark, tmp_path, Candidate("both", ".", arguments={"x-max-length": 2}))
    assert {row.message_id: (row.before, row.after) for row in tried.fates.collect()} == {first: ("maxlen", "acked")}
    [assumed] = tried.assumptions.collect()
    assert (assumed.late_reactions, assumed.guessed_acks) == (1, 1)


def test_b04_an_ack_that_settled_nothing_settles_nothing_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    """The consumer holds another message in the world. What it never held in fact is still ready there, and here it
    stays with the consumer, unacked. Nonsense may name more messages than a machine can count."""
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    first, second = told.publish("orders", b"a"), told.publish("orders", b"b")
    told.get("orders", 1)
    told.append(0, ANN, Acked("/", "orders", 1, ((second, second),)))
    told.append(0, ANN, Acked("/", "orders", 1, ((second, 10**12),)))
    told.close()
    tried = try_out(spark, tmp_path, Candidate("one", ".", {"max-length": 1}))
    assert {row.message_id: (row.before, row.after) for row in tried.fates.collect()} == {first: ("unacked", "maxlen")}
    [assumed] = tried.assumptions.collect()
    assert (assumed.guessed_acks, assumed.late_reactions, assumed.lost_reactions) == (0, 0, 0)


def test_b04_from_a_time_on(spark: SparkSession, tmp_path: Path) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    for _ in range(5):
        told.publish("orders", b"before")
    told.wait(1_000)
    for _ in range(2):
        told.publish("orders", b"after")
    told.close()
    limit = Candidate("limit", "orders", {"max-length": 4})
    tried = try_out(spark, tmp_path, limit, start=str(START_MS + 500))
    assert fates(tried) == {("orders", "ready", "maxlen"): 3}
    lengths = state_at(spark, str(tmp_path)).queues.collect()[0].messages
    assert lengths - tried.fates.count() == 4
    with pytest.raises(BadRequest, match="hold from a queue's declaration on"):
        try_out(spark, tmp_path, Candidate("late", "orders", arguments={"x-max-length": 1}), start=str(START_MS))


def test_b12_an_upgrade_is_rehearsed(spark: SparkSession, tmp_path: Path) -> None:
    """In 3.13 a nack raises the delivery count, in 4.3 it is no failure: whose fate changes, message by message."""
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders", {"x-delivery-limit": 1}, "quorum")
    told.declare("letters")
    unlucky, lucky = told.publish("orders", b"unlucky"), told.publish("orders", b"lucky")
    told.consume("orders", 1, prefetch=2)
    told.nack("orders", 1, unlucky)
    told.nack("orders", 1, unlucky)  # the second time is one too many
    told.ack("orders", 1, lucky)
    told.publish("letters", b"of a classic queue")
    told.close()
    profiles = [Candidate(name, ".", semantics=name) for name in ("rabbitmq-3.13", "rabbitmq-4.3")]
    tried = try_out(spark, tmp_path, *profiles)
    found = {(row.candidate, row.message_id, row.before, row.after) for row in tried.fates.collect()}
    assert found == {("rabbitmq-4.3", unlucky, "delivery_limit", "unacked")}


def test_the_command_line(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Recorder(tmp_path, partitions=1)
    told.declare("orders")
    for _ in range(5):
        told.publish("orders", b"x")
    told.close()
    shorter = '{"name": "shorter", "pattern": "^orders$", "definition": {"max-length": 2}}'
    arguments = ["what-if", "--data", str(tmp_path), "--candidate", shorter, "--format", "json"]
    assert cli.run(arguments) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"candidate": "shorter", "vhost": "/", "queue": "orders", "before": "ready", "after": "maxlen", "messages": 3}
    ]
    for show, rows in (("fates", 3), ("depth", 1), ("assumptions", 1)):
        assert cli.run([*arguments, "--show", show]) == 0
        assert len(json.loads(capsys.readouterr().out)) == rows
    assert cli.run(["what-if", "--data", str(tmp_path), "--candidate", '{"pattern": "q"}']) == 64
    assert "has neither definition nor arguments nor semantics" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "is not an object"),
        ('{"pattern": "(", "definition": {}}', "is no regular expression"),
        ('{"definition": {"max-length": 1}}', "names no queues: give a pattern"),
        ('{"pattern": "q", "policy": {}}', "has the unknown key 'policy'"),
        ('{"pattern": "q", "definition": 3}', "the definition is no object"),
        ('{"pattern": "q", "arguments": {"x-queue-type": "quorum"}}', "arguments are an object, without x-queue-type"),
    ],
)
def test_candidates_that_make_no_sense(spark: SparkSession, busy: Path, text: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        try_out(spark, busy, parse_candidate(text))
