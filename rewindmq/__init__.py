"""RewindMQ: a message queue whose queues can be rewound.

    rewindmq.schemas        the events of history, and their bytes
    rewindmq.projections    how the state of queues follows from the events
    rewindmq.engine         the broker, its log, and the command line
    rewindmq.spark_replay   the same fold in Spark: past states, audits, what-if

In a checkout these four are links to the folders beside this one. `rewindmq.spark` has the functions of Spark's side
under one name, `rewindmq.testing` is a plugin for pytest, and `rewindmq.__main__` is the command `rewindmq`.
`rewindmq.builds` says whether the hot modules are compiled.
"""

import sys

if not (3, 11) <= sys.version_info < (3, 15):  # as pyproject.toml says
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    sys.exit(f"RewindMQ needs Python 3.11 to 3.14, and this is {here}. Run it with another Python.")

from rewindmq import builds

__version__ = "0.2.0"

builds.start()
