"""An auditor's job in PySpark: what happened to the messages of each queue, and whether the history holds.

    python examples/auditors_job.py DATA               prints two tables; exit status 1 if the audit found something
    spark-submit examples/auditors_job.py DATA         the same in a cluster

DATA is a broker's data directory. The job reads it, also beside the running broker, and never writes there.
"""

import sys

from rewindmq.spark_replay.audit.audit import audit_frame
from rewindmq.spark_replay.history.history import history
from rewindmq.spark_replay.session import session


def main(data: str) -> int:
    spark = session()
    outcomes = history(spark, data).groupBy("vhost", "queue", "outcome").count()
    outcomes.orderBy("vhost", "queue", "outcome").show(truncate=False)
    findings = audit_frame(spark, data).cache()
    findings.select("check", "ok").groupBy("check", "ok").count().orderBy("check").show(truncate=False)
    return 1 if findings.where("not ok").count() else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
