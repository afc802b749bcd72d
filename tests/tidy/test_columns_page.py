"""The data dictionary of Spark's tables (B-52) is that of the code, and says something about every column."""

import pyarrow as pa

from rewindmq.spark_replay import columns, dictionary
from rewindmq.spark_replay.dictionary import TABLES, TEXTS
from tests.support import columns_page

# Tables between two steps of a job, which no person meets.
INNER = {"RECORDS", "KAFKA_RECORDS", "WAITS", "STATE", "AUDIT", "LETTERS", "AUDITED", "WHAT_IF", "LEFT_OUT"}


def test_b52_the_page_is_that_of_the_code() -> None:
    stale = "run `python -m tests.support.columns_page`"
    assert columns_page.PAGE.read_text() == columns_page.page(), stale


def test_b52_every_table_is_on_the_page() -> None:
    declared = {name for name, found in vars(columns).items() if isinstance(found, pa.Schema)}
    shown = {name for name in declared if any(getattr(columns, name) is each.columns for each in TABLES.values())}
    assert declared - shown == INNER


def test_b52_no_text_is_about_a_column_that_is_gone() -> None:
    names = {each.name for table in TABLES.values() for each in table.columns}
    assert set(TEXTS) <= names
    for name, table in TABLES.items():
        assert set(table.texts) <= set(table.columns.names), name
    texts = [*TEXTS.values(), *(text for table in TABLES.values() for text in table.texts.values())]
    assert all(text and not text.endswith(".") for text in texts)
    assert dictionary.text_of(TABLES["history"], "outcome")
