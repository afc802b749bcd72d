"""Finds the cause of an error in an exception that Spark has wrapped.

An error in a Python worker reaches the driver as the text of a traceback inside Java's stack trace. The last line of
that traceback has the class and the message; users need nothing else of it. If an error of ours was raised because of
another one (of Kafka's client), it stands behind that one, and its message says what the other means here.
"""

import re

_OURS = "rewindmq."
# "rewindmq.spark_replay.location.ranges.BadRequest: text" at the start of a line: the last line of a Python traceback
_RAISED = re.compile(rf"^({re.escape(_OURS)}[\w.]+|[A-Za-z_][\w.]*(?:Error|Exception))(?:: (.*))?$", re.MULTILINE)
# "[CAST_INVALID_INPUT] The value 'x' ... SQLSTATE: 22018": the SQL is wrong, or wrong for the values that it meets.
# Errors in regular expressions come from Java
_OF_SQL = re.compile(r"\[[A-Z_]+(?:\.[A-Z_]+)*\] .*?SQLSTATE: (?:22|42|54|P0)\w{3}|\bPatternSyntaxException: .+")
# Some of Spark's functions raise an exception of Java's: one out of an expression, and not out of reading
_OF_AN_EXPRESSION = re.compile(
    r"\b(?:javax?\.(?!io\.|net\.|nio\.)[\w.$]*?|org\.apache\.spark\.(?=Spark(?!Exception)))(\w+Exception: [^\n]*)\n"
    r"(?:\s+at [^\n]*\n){0,15}?\s+at org\.apache\.spark\.sql\.catalyst\.expressions\."
)
_OF_SPARK = ("Py4JJavaError", "PythonException", "SparkException")


class NoSpark(Exception):
    """Spark cannot be started, or lacks a part. The text has the JVM's error, or says how to get the part."""


def cause_of(error: BaseException) -> tuple[str, str]:
    """Return the innermost Python error: its class name without the module, and one line for people."""
    if type(error).__module__.startswith("rewindmq.spark_replay."):
        return type(error).__name__, str(error)
    text = str(error)
    raised = _RAISED.findall(text)
    raised = [(name, line) for name, line in raised if name.startswith(_OURS)] or raised
    found = [(name.rpartition(".")[2], line) for name, line in raised]
    found = [(name, line) for name, line in found if name not in _OF_SPARK and "org.apache" not in line]
    if found:
        name, line = found[0]
        return name, (line or name).strip()
    return type(error).__name__, f"{type(error).__name__}: {(text.splitlines() or [''])[0]}"


def sql_slip(error: BaseException) -> str | None:
    """Return the error in the SQL that Spark was given, in one line; None when something else went wrong.

    Some errors show only in a task, such as a division by zero. They may be anywhere in what Spark has wrapped."""
    from pyspark.errors import AnalysisException, IllegalArgumentException

    if isinstance(error, AnalysisException | IllegalArgumentException):
        return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    text = str(error)
    found = _OF_SQL.search(text)
    if found is not None:
        return found[0]
    of_expression = _OF_AN_EXPRESSION.search(text)
    return None if of_expression is None else of_expression[1]
