"""The folds that derive state from history, the same for the running broker, a restart, a rewind and Spark.

machine/         the queue machine: a pure function of the events of one log partition
topology/        vhosts, exchanges, bindings, users and policies: the fold of the metadata log
rules/           the meaning of policies, arguments and patterns
history/         answers about a history: outcomes as rows, a search, a message's life, two moments compared
store/           the folded state in RocksDB, and snapshots of it
traces/          spans of the outcomes of messages
what_if/         the same events under another policy, or without some
versions/        two versions of RewindMQ, compared
replay.py        a partition folded into a machine        publish_runs.py   publishes that are alike, by their bytes
rewind.py        a partition as it was at a moment
marks.py         moments with a name                      waypoints.py      states along the history, in memory
claims.py        what brokers said of their state         clean_stops.py    what stands behind a clean stop
verify.py        RocksDB against the log                  metadata_verification.py   snapshots of the topology too
system_calls.py  durable writes, clocks and limits, on Linux and macOS
floors.py        why history begins where it does         canonical_json.py   the same JSON for equal values
"""
