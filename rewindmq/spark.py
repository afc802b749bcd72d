"""The functions of Spark's side under one name, for notebooks and jobs. They need the extra `spark`.

    from rewindmq.spark import session, state_at

    spark = session()
    state_at(spark, "DATA", time="2026-11-21T03:04:05+00:00").messages.show()

Where the history is: the path of a data directory, `InKafka("localhost:9092")`, or `InArchive(URL)`. docs/spark/ has a
page for each.
"""

from rewindmq.engine.keeping.location import InArchive, InKafka
from rewindmq.projections.what_if.alternative import Candidate
from rewindmq.spark_replay.audit.audit import audit
from rewindmq.spark_replay.audit.watch import watch
from rewindmq.spark_replay.history.diff import diff
from rewindmq.spark_replay.history.history import biography, history
from rewindmq.spark_replay.history.incremental import keep_history
from rewindmq.spark_replay.history.security import security
from rewindmq.spark_replay.history.slo import slo
from rewindmq.spark_replay.history.spans import export_spans
from rewindmq.spark_replay.history.state import state_at
from rewindmq.spark_replay.restore import Broker, bring_back, find
from rewindmq.spark_replay.session import import_early, session
from rewindmq.spark_replay.snapshots.build import cut
from rewindmq.spark_replay.snapshots.verify import verify
from rewindmq.spark_replay.what_if.what_if import what_if

__all__ = [
    "Broker",
    "Candidate",
    "InArchive",
    "InKafka",
    "audit",
    "biography",
    "bring_back",
    "cut",
    "diff",
    "export_spans",
    "find",
    "history",
    "keep_history",
    "security",
    "session",
    "slo",
    "state_at",
    "verify",
    "watch",
    "what_if",
]

import_early()  # a session that is there already has threads
