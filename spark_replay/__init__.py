"""The history in Spark: past states, audits, what-if. Needs the extra `spark`; rewindmq/spark.py exports its functions.

commands/, __main__.py   the command line      session.py    a local Spark session
source/                  format("rewindmq")    columns.py    the columns of every table
fold.py                  the broker's fold, in Spark's tasks
location/                where the history is, and which range of it
history/                 what came of every event; states, differences, waiting times
audit/                   does the history hold, and does the broker agree with it
snapshots/               snapshots of an auditor's own, and the fold checked between them
what_if/, restore.py     other policies, tried on the history; messages brought back by a running broker
lineage/                 who looked at what, to OpenLineage
"""
