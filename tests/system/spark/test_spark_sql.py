"""docs/spark/sql.md: its statements run as they stand there, and are right about a known history (B-10, B-17)."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.schemas.events import PolicyApplied
from rewindmq.schemas.metadata_events import PolicySet
from rewindmq.schemas.values import Actor, Policy
from rewindmq.spark_replay.history.incremental import keep_history
from rewindmq.spark_replay.source.source import register
from tests.support.running import ROOT
from tests.support.spark.histories import ANN, START_MS, Recorder

pytestmark = pytest.mark.long

BOB = Actor("bob", 9)
VIEWS = ("settings", "events", "history", "queues", "messages")


def statements() -> list[str]:
    """Of the page, in its order. An example's output begins with a line of a table's frame."""
    lines = (ROOT / "docs" / "spark" / "sql.md").read_text().splitlines()
    code = [line[4:] for line in lines if line.startswith("    ") and line[4] not in "+|."]
    return [statement.strip() for statement in "\n".join(code).split(";") if statement.strip()]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ann's policy of `orders` is replaced by Bob's after 20 seconds; a consumer is given three messages, one twice."""
    data = tmp_path_factory.mktemp("told")
    history = Recorder(data, partitions=1)

    def policy(actor: Actor, queue: str, name: str, definition: str) -> None:
        version = history.metadata(PolicySet("/", name, f"^{queue}$", definition, 0, "queues"), actor)
        history.append(0, actor, PolicyApplied("/", queue, Policy(name, definition, version), None))

    history.declare("orders")
    history.declare("work")
    history.declare("amq.delayed.later", kind="delayed")
    history.publish("amq.delayed.later", b"due before Bob comes", expiration_ms=50)
    policy(ANN, "orders", "cap", '{"max-length":2}')
    for _ in range(5):
        history.publish("orders", b"order")
    ids = [history.publish("work", b"work %d" % number) for number in range(3)]
    history.consume("work", 1, prefetch=5)
    history.wait(40)
    history.ack("work", 1, ids[0])
    history.nack("work", 1, ids[1], requeue=False)
    history.wait(20)
    history.nack("work", 1, ids[2])  # and it gets it once more
    history.wait(20_000)
    policy(BOB, "orders", "cap", '{"max-length":1}')  # the older of the two goes
    for _ in range(2):
        history.publish("orders", b"order")
    history.close()
    return data


@pytest.fixture(scope="module")
def views(spark: SparkSession, told: Path) -> Iterator[None]:
    before_bob = datetime.fromtimestamp((START_MS + 10_000) / 1000, UTC).isoformat()
    for statement in statements()[: len(VIEWS)]:
        spark.sql(statement.replace("'DIR'", f"'{told}'").replace("'T'", f"'{before_bob}'"))
    yield
    for view in VIEWS:
        spark.catalog.dropTempView(view)


def test_the_page_has_these_statements() -> None:
    assert [statement.split()[:4][-1] for statement in statements()[: len(VIEWS)]] == list(VIEWS)
    asked = [statement for statement in statements() if statement.startswith("SELECT")]
    assert len(asked) == len(ANSWERS)
    assert len(statements()) == len(VIEWS) + len(asked) + 2  # and a view of two columns, and the kept history


def rows(spark: SparkSession, statement: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in spark.sql(statement).collect()]


def clock(ms: int, form: str = "%H:%M:%S") -> str:
    return datetime.fromtimestamp((START_MS + ms) / 1000, UTC).strftime(form)


SET_AT = datetime.fromtimestamp(START_MS / 1000, UTC).astimezone().replace(tzinfo=None)  # as `collect` has it
ANSWERS = (
    [("orders", "cap", '{"max-length":2}', "ann", SET_AT)],
    [
        ("cap", 2, "ann", "policy cap.max-length", "orders", "maxlen", 3),
        ("cap", 3, "bob", "policy cap.max-length", "orders", "maxlen", 3),
    ],
    [
        (clock(0), "orders", "maxlen", 3),
        (clock(0), "work", "rejected", 1),
        (clock(20_000), "orders", "maxlen", 3),
    ],
    [("work", "5", "ann", 7, 1, clock(0, "%H:%M:%S.000"))],
    [("work", "acked", 1, 40), ("work", "rejected", 1, 40), ("work", "requeued", 1, 60)],
)


@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_b10_b17_questions_in_sql(spark: SparkSession, views: None, number: int) -> None:
    asked = [statement for statement in statements() if statement.startswith("SELECT")]
    assert rows(spark, asked[number]) == ANSWERS[number]


def test_what_was_delayed_is_in_the_history_and_not_lost(spark: SparkSession, views: None) -> None:
    asked = "SELECT queue, outcome FROM history WHERE final AND queue LIKE 'amq.%'"
    assert rows(spark, asked) == [("amq.delayed.later", "delayed")]
    hidden = "SELECT queue, hidden FROM queues ORDER BY queue"
    assert rows(spark, hidden) == [("amq.delayed.later", True), ("orders", False), ("work", False)]


def test_a_view_of_the_columns_that_are_named(spark: SparkSession, views: None, told: Path) -> None:
    spark.sql(statements()[-2].replace("'DIR'", f"'{told}'"))
    both = "SELECT queue, outcome FROM {} ORDER BY queue, outcome"
    assert spark.table("outcomes").columns == ["queue", "outcome"]
    assert rows(spark, both.format("outcomes")) == rows(spark, both.format("history"))
    spark.catalog.dropTempView("outcomes")


def test_a_kept_history_answers_the_same(spark: SparkSession, views: None, told: Path, tmp_path: Path) -> None:
    asked = statements()[-3]
    before = rows(spark, asked)
    keep_history(spark, str(told), tmp_path / "kept")
    spark.catalog.dropTempView("history")
    spark.sql(statements()[-1].replace("KEPT", str(tmp_path / "kept")))
    assert rows(spark, asked) == before == ANSWERS[-1]


def test_a_table_of_a_catalog_is_the_history(spark: SparkSession, told: Path) -> None:
    """Spark's catalog adds properties of its own, and keeps no options. A wrong option is refused all the same."""
    catalog = spark.newSession()
    catalog.conf.unset("spark.sql.catalog.spark_catalog")  # Delta's refuses tables of sources in Python
    register(catalog)
    tables = {
        "of_path": f"OPTIONS (path '{told}', view 'history')",
        "of_location": f"OPTIONS (view 'history') COMMENT 'for BI' LOCATION '{told}' TBLPROPERTIES ('made.by' = 'ann')",
        "of_data": f"OPTIONS (data '{told}', view 'history')",
    }
    rows = spark.read.format("rewindmq").option("path", str(told)).option("view", "history").load().count()
    for name, how in tables.items():
        catalog.sql(f"CREATE TABLE {name} USING rewindmq {how}")
        try:
            assert catalog.sql(f"SELECT * FROM {name}").count() == rows > 0
        finally:
            catalog.sql(f"DROP TABLE {name}")
    for option, said in (("veiw 'history'", "unknown option veiw of"), ("`kafka.sasl.password` 'x'", "temporary view")):
        with pytest.raises(Exception, match=said):
            catalog.sql(f"CREATE TABLE wrong USING rewindmq OPTIONS (path '{told}', {option})")
