"""Reads where a job's lineage goes, from the usual settings of OpenLineage (docs/behaviours/interfaces.md#lineage).

    OPENLINEAGE_URL, OPENLINEAGE_CONFIG, OPENLINEAGE__TRANSPORT__TYPE ..    as the Python client reads them
    OPENLINEAGE_NAMESPACE, OPENLINEAGE_PARENT_ID, OPENLINEAGE_DISABLED      (the parent: namespace/job/run id)
    spark.openlineage.transport.*, .namespace, .appName, .parentJobName ..  of Spark's configuration, which go first

With none of them there is no lineage, and the client is not even imported. Senseless settings raise BadRequest: those
of the environment before Spark is started, those of Spark's configuration as soon as it can be read.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

from rewindmq.spark_replay.location.ranges import BadRequest

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

PREFIX = "spark.openlineage."
NAMESPACE = APP_NAME = "rewindmq"
_CONSOLE = "openlineage.client.transport.console"
# The Java client's names of settings that have another name in the Python client, by the type of transport
_JAVA_NAMES = {
    "http": {"headers": "custom_headers"},
    "file": {"location": "log_file_path"},
    "kafka": {"topicName": "topic", "properties": "config"},
}


@dataclass(frozen=True, slots=True)
class Parent:
    """The run that started this one, for example the run of an Airflow task."""

    namespace: str
    job: str
    run_id: str


@dataclass(frozen=True, slots=True)
class LineageSettings:
    """The destination of events, and what they state besides. Tags: key, value, source."""

    client: "OpenLineageClient"
    namespace: str
    app_name: str
    parent: Parent | None
    job_tags: tuple[tuple[str, str, str], ...]
    run_tags: tuple[tuple[str, str, str], ...]


def read_settings(conf: Mapping[str, str]) -> LineageSettings | None:
    """Return the settings of a run's lineage; None: there is to be no lineage.

    `conf`: Spark's configuration, as far as it is known. Raises BadRequest."""
    ours = {name.removeprefix(PREFIX): value for name, value in conf.items() if name.startswith(PREFIX)}
    if _disabled(ours) or not (ours or _in_environment()):
        return None
    namespace = ours.get("namespace") or os.environ.get("OPENLINEAGE_NAMESPACE") or NAMESPACE
    parent = _parent(ours, namespace)
    client = _client(ours)
    if client is None:
        return None
    return LineageSettings(
        client,
        namespace,
        ours.get("appName") or APP_NAME,
        parent,
        _tags(ours.get("job.tags", "")),
        _tags(ours.get("run.tags", "")),
    )


@contextmanager
def heard(warn: Callable[[str], None], show: Callable[[str], None], least: int = logging.WARNING) -> Iterator[None]:
    """Pass log lines of the client from level `least` on to `warn`, events of its console transport to `show`."""

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= least:
                warn(record.getMessage())
            elif record.name == _CONSOLE and record.levelno == logging.INFO:
                show(record.getMessage())

    handler, logger, console = Heard(), logging.getLogger("openlineage"), logging.getLogger(_CONSOLE)
    level = console.level
    logger.addHandler(handler)
    console.setLevel(logging.INFO)
    try:
        yield
    finally:
        console.setLevel(level)
        logger.removeHandler(handler)


def _disabled(ours: Mapping[str, str]) -> bool:
    return "true" in (os.environ.get("OPENLINEAGE_DISABLED", "").lower().strip(), ours.get("disabled", "").lower())


def _in_environment() -> bool:
    """Return True if the environment or a file configures the client."""
    files = (Path("openlineage.yml"), Path("~/.openlineage/openlineage.yml").expanduser())
    return any(name.startswith("OPENLINEAGE_") for name in os.environ) or any(path.is_file() for path in files)


def _client(ours: Mapping[str, str]) -> "OpenLineageClient | None":
    """Return the client; None: no setting says where events go.

    Raises BadRequest."""
    from openlineage.client import OpenLineageClient
    from openlineage.client.transport.noop import NoopConfig, NoopTransport

    path = os.environ.get("OPENLINEAGE_CONFIG")
    if path and not os.access(path, os.R_OK):
        raise BadRequest(f"OPENLINEAGE_CONFIG: {path} cannot be read")
    transport = _transport(ours)
    complaints: list[str] = []
    with heard(complaints.append, lambda event: None, logging.ERROR):
        try:
            merged = OpenLineageClient(transport=NoopTransport(NoopConfig()), config={"transport": transport})
            found = merged.config.transport or {}
            if not found.get("type") and not os.environ.get("OPENLINEAGE_URL"):
                if found:
                    raise BadRequest(f"OpenLineage: transport.type is missing beside {', '.join(sorted(found))}")
                if not ours and not complaints:
                    return None
                transport = {"type": "console"}  # as for Spark's listener
            client = OpenLineageClient(config={"transport": transport})
        except BadRequest:
            raise
        except Exception as error:  # a transport may raise any error about its settings
            raise BadRequest(f"OpenLineage: {_line(transport, error)}") from None
    if complaints:
        raise BadRequest(f"OpenLineage: {complaints[0].splitlines()[0]}")
    return client


def _line(transport: Mapping[str, Any], error: Exception) -> str:
    kind = transport.get("type") or os.environ.get("OPENLINEAGE__TRANSPORT__TYPE")
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"transport {kind}: {said}" if kind else said


def _transport(ours: Mapping[str, str]) -> dict[str, Any]:
    """transport.a.b=c as {"a": {"b": "c"}}, with the Python client's names.

    Raises BadRequest."""
    made: dict[str, Any] = {}
    for name, value in sorted(ours.items()):
        keys = name.split(".")
        if keys[0] != "transport" or len(keys) == 1:
            continue
        within = made
        # Names of headers and of Kafka's settings have dots of their own
        keys = keys[1:] if keys[1] not in ("headers", "properties") else [keys[1], ".".join(keys[2:])]
        for key in keys[:-1]:
            within = within.setdefault(key, {})
            if not isinstance(within, dict):
                raise BadRequest(f"{PREFIX}{name}: {key} has a value of its own")
        within[keys[-1]] = {"true": True, "false": False}.get(value, value)
    kind = str(made.get("type", ""))
    for java, python in _JAVA_NAMES.get(kind, {}).items():
        if java in made:
            made[python] = made.pop(java)
            if java == "location":
                made["append"] = True  # the Java client's file holds all events
    if "timeoutInMillis" in made:
        made["timeout"] = _milliseconds(str(made.pop("timeoutInMillis"))) / 1000
    return made


def _milliseconds(value: str) -> int:
    if not value.isdecimal():
        raise BadRequest(f"{PREFIX}transport.timeoutInMillis: {value!r} is not a number")
    return int(value)


def _parent(ours: Mapping[str, str], namespace: str) -> Parent | None:
    job, run_id = ours.get("parentJobName"), ours.get("parentRunId")
    if job is not None and run_id is not None:
        return Parent(ours.get("parentJobNamespace", namespace), job, _run_id(f"{PREFIX}parentRunId", run_id))
    if job is not None or run_id is not None:
        raise BadRequest(f"{PREFIX}parentJobName and {PREFIX}parentRunId: the one needs the other")
    text = os.environ.get("OPENLINEAGE_PARENT_ID")
    if not text:
        return None
    parts = text.rsplit("/", 2)
    if len(parts) < 3:
        raise BadRequest(f"OPENLINEAGE_PARENT_ID: {text!r} is not namespace/job/run id")
    return Parent(parts[0], parts[1], _run_id("OPENLINEAGE_PARENT_ID", parts[2]))


def _run_id(name: str, text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise BadRequest(f"{name}: {text!r} is no UUID") from None


def _tags(text: str) -> tuple[tuple[str, str, str], ...]:
    """Return the tags in `key;key:value;key:value:source`, with the Java client's defaults."""
    tags = []
    for item in filter(None, (each.strip() for each in text.split(";"))):
        key, value, source = [*item.split(":"), "", ""][:3]
        tags.append((key, value or "true", source or "CONFIG"))
    return tuple(tags)


def dataset_at(url: str) -> tuple[str, str]:
    """Return the namespace and the name of a dataset in object storage, or in a directory."""
    at = urlsplit(url)
    return ("file", at.path) if at.scheme in ("", "file") else (f"{at.scheme}://{at.netloc}", at.path.strip("/"))
