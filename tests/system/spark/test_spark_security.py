"""`security`: who came, who was refused what, and who read the past, with OCSF's names (B-28)."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from rewindmq.schemas.access_events import AccessRefused, LoginRefused, SessionOpened
from rewindmq.schemas.events import PastRead, PolicyApplied, Purged, SessionClosed
from rewindmq.schemas.metadata_events import PolicyCleared, UserDeleted, UserSet
from rewindmq.schemas.operator_events import QueuePaused
from rewindmq.schemas.values import BROKER, Argument
from rewindmq.spark_replay.history.security import security
from tests.support.spark.histories import ANN, START_MS, Recorder

pytestmark = pytest.mark.long


def test_b28_rows_of_who_came_and_what_was_refused(spark: SparkSession, tmp_path: Path) -> None:
    history = Recorder(tmp_path, partitions=1)
    product = (Argument("product", "longstr", "pika"),)
    opened = SessionOpened(
        ANN.session,
        vhost="/",
        protocol="amqp",
        address="[fe80::7]:51230",
        listener="0.0.0.0:5671",
        proxy="10.0.0.1:4",
        mechanism="EXTERNAL",
        tls="TLSv1.3 X",
        certificate="CN=a",
        client_properties=product,
    )
    history.metadata(opened, ANN)
    history.metadata(
        LoginRefused(
            "root",
            host="10.0.0.9",
            listener="l:1",
            protocol="http",
            mechanism="basic",
            reason="Login failed",
            count=812,
            first_ms=START_MS,
        ),
        BROKER,
    )
    history.metadata(
        AccessRefused("queue.declare", vhost="/", kind="queue", name="jfk", reason="no", count=1, first_ms=START_MS),
        ANN,
    )
    history.declare("q")
    history.append(
        0,
        ANN,
        PastRead(
            "/",
            queue="q",
            consumer=0,
            channel=0,
            tag="",
            arguments=(),
            way="GET /api/queues/{vhost}/{queue}/at",
            request="time=-1s",
        ),
    )
    history.append(0, ANN, SessionClosed(ANN.session, 0))
    history.metadata(SessionClosed(ANN.session, 0), ANN)
    history.close()
    read = spark.read.format("rewindmq").option("path", str(tmp_path))
    rows = {(row.class_name, row.activity_name): row for row in security(read.option("log", "all").load()).collect()}
    assert len(rows) == 4
    found = security(read.option("log", "all").load())
    refused = found.where("status = 'Failure'").collect()
    login = next(row for row in refused if row.class_name == "Authentication")
    assert (login.user_name, login.session_uid, login.src_ip, login["count"]) == ("root", None, "10.0.0.9", 812)
    assert (login.app_protocol, login.auth_protocol, login.status_detail) == ("http", "basic", "Login failed")
    assert login.start_time.timestamp() * 1_000 == START_MS
    came = next(
        row for row in security(read.option("log", "all").load()).where("certificate_subject is not null").collect()
    )
    assert (came.user_name, came.session_uid, came.src_ip, came.src_port) == (ANN.user, ANN.session, "fe80::7", 51230)
    assert (came.dst_endpoint, came.proxy_endpoint, came.tls) == ("0.0.0.0:5671", "10.0.0.1:4", "TLSv1.3 X")
    assert "pika" in came.client_properties
    denied = rows["API Activity", "Other"]
    assert (denied.user_name, denied.api_operation) == (ANN.user, "queue.declare")
    assert (denied.resource_type, denied.resource_name, denied.status) == ("queue", "jfk", "Failure")
    past = rows["API Activity", "Read"]
    assert (past.resource_name, past.api_operation) == ("q", "GET /api/queues/{vhost}/{queue}/at")
    assert past.status_detail == "time=-1s"
    assert rows["Authentication", "Logoff"].session_uid == ANN.session


def test_b78_acts_with_a_reason_are_rows(spark: SparkSession, tmp_path: Path) -> None:
    """And the other views have it: each row of the act, by name and in SQL."""
    history = Recorder(tmp_path, partitions=1)
    history.declare("q")
    history.publish("q", b"x")
    why = replace(ANN, reason="ticket 4711")
    history.metadata(UserSet("bob", "hash", ()), why)
    history.metadata(PolicyCleared("/", "cap"), why)
    history.metadata(UserDeleted("bob"), ANN)  # without a reason it is no row
    history.metadata(SessionClosed(ANN.session, 0), replace(ANN, reason="closed by bob: too many"))
    history.append(0, why, Purged("/", "q"))
    history.append(0, why, PolicyApplied("/", "q", None, None))  # it follows from an act
    history.append(0, why, PastRead("/", queue="q", consumer=0, channel=0, tag="", arguments=(), way="W", request=""))
    history.append(0, ANN, QueuePaused("/", "q", "closed"))
    history.close()

    def read(option: str, value: str) -> DataFrame:
        return spark.read.format("rewindmq").option("path", str(tmp_path)).option(option, value).load()

    rows = security(read("log", "all")).where("comment is not null").collect()
    assert {(row.class_name, row.activity_name, row.status, row.resource_name, row.comment) for row in rows} == {
        ("Entity Management", "Update", "Success", "bob", "ticket 4711"),
        ("Entity Management", "Delete", "Success", "cap", "ticket 4711"),
        ("Entity Management", "Delete", "Success", "q", "ticket 4711"),
        ("Entity Management", "Update", "Success", "q", "closed"),
        ("Authentication", "Logoff", "Success", None, "closed by bob: too many"),
        ("API Activity", "Read", "Success", "q", "ticket 4711"),
    }
    assert {row.user_name for row in rows} == {ANN.user}
    outcomes = read("view", "history")
    assert [row.why for row in outcomes.where("outcome = 'purged'").collect()] == ["ticket 4711"]
    assert [row.why for row in outcomes.where("outcome = 'published'").collect()] == [None]
