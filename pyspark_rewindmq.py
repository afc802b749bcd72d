"""`format("rewindmq")` for Spark, which looks for a `DefaultSource` in each module whose name begins with `pyspark_`.

Spark imports this module wherever it is installed, also beside a broker without the extra `spark`. An error here would
take all other data sources from Spark; so without the extra there is no DefaultSource.
"""

import contextlib

with contextlib.suppress(ModuleNotFoundError):
    from rewindmq.spark_replay.source.source import RewindSource as DefaultSource

    __all__ = ["DefaultSource"]
