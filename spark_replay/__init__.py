"""The history in Spark: past states, audits, what-if. Needs the extra `spark`; rewindmq/spark.py exports its functions.

commands/, __main__.py   the command line      session.py    a local Spark session
source/                  format("rewindmq")    columns.py, dictionary.py   columns of every table, explained
fold.py                  the broker's fold, in Spark's tasks
location/                the log of a history, and ranges of its offsets
history/                 outcomes of every event; states, differences, waiting times
audit/                   the history checked against itself and against the broker
snapshots/               an auditor's snapshots, and the fold checked between them
what_if/, restore.py     other policies, tried on the history; messages brought back by a running broker
lineage/                 jobs reported to OpenLineage, with what they read and found
"""
