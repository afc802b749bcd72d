"""Makes the exit status of a command, and the one line on stderr that goes with it.

0     done
1     an audit found something
64    an argument is wrong
65    the data cannot be used: a corrupt log, a log of a newer version, a time outside the history
69    Spark does not start, Kafka, a broker or a collector does not answer, or no Kafka client is installed
70    a defect of RewindMQ
"""

import click

from rewindmq.engine.keeping.archive.objects import ArchiveError, MissingObject, ObstoreNotInstalled
from rewindmq.engine.keeping.archive.unpack import CorruptObject
from rewindmq.engine.log.contract import CorruptLog, KafkaNotInstalled, LogError, NewerSchema, NoAnswer
from rewindmq.projections.machine.machine import NewerHistory
from rewindmq.projections.rewind import OutsideHistory, RewindError, UnreadableTime
from rewindmq.spark_replay.commands.failures import cause_of
from rewindmq.spark_replay.location.ranges import BadRequest

EX_USAGE, EX_DATAERR, EX_UNAVAILABLE, EX_SOFTWARE = 64, 65, 69, 70
INTERRUPTED = 130


def status_of(error: Exception) -> int:
    """Return the exit status for an error. Prints the error on stderr."""
    if isinstance(error, click.Abort):
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        return _complain(EX_USAGE, error.format_message())
    if isinstance(error, NoAnswer | KafkaNotInstalled | ObstoreNotInstalled):
        return _complain(EX_UNAVAILABLE, str(error))
    if isinstance(error, OutsideHistory | CorruptLog | LogError | NewerHistory):
        return _complain(EX_DATAERR, str(error))
    if isinstance(error, RewindError):
        return _complain(EX_USAGE, str(error))
    return _spark_failure(error)


def _spark_failure(error: Exception) -> int:
    """Return the exit status for an error in a Spark worker, which arrives as text."""
    name, line = cause_of(error)
    away = (NoAnswer, KafkaNotInstalled, ObstoreNotInstalled)
    if name in ("NoSpark", "RestoreRefused", "CollectorAway", *(each.__name__ for each in away)):
        return _complain(EX_UNAVAILABLE, line)
    unusable = (CorruptLog, CorruptObject, LogError, ArchiveError, MissingObject, OutsideHistory)
    data_errors = ["SpansRefused", *(each.__name__ for each in (*unusable, NewerHistory, NewerSchema))]
    if name in (BadRequest.__name__, UnreadableTime.__name__, "BadCollector"):
        return _complain(EX_USAGE, line)
    return _complain(EX_DATAERR if name in data_errors else EX_SOFTWARE, line)


def _complain(status: int, line: str) -> int:
    click.echo(f"spark_replay: {line}", err=True)
    return status
