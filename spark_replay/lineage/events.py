"""Makes OpenLineage's run events of a job (docs/behaviours/interfaces.md#lineage).

Datasets have the names that OpenLineage fixes. An input is a directory (`file`, its path) or topics of a Kafka
(`kafka://host:port`, the topic); an output is a directory or a file. A queue has a name of our own, with which a job
names the queues of a running broker: `rewindmq://host:port`, `vhost/queue`.

The facet `rewindmq_offsets` of an input says how far it was read, and gives the hash chain there; its schema is
docs/spark/lineage.schema.json. Findings are OpenLineage's own `dataQualityAssertions`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import attr
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    InputDatasetFacet,
    JobFacet,
    RunFacet,
    data_quality_assertions_dataset,
    error_message_run,
    job_type_job,
    parent_run,
    processing_engine_run,
    tags_job,
    tags_run,
)

from rewindmq.engine.keeping.location import InArchive, InDirectory, Location
from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.lineage.settings import LineageSettings, dataset_at

PRODUCER = "urn:rewindmq:spark_replay"
SCHEMA = "urn:rewindmq:lineage:1"
# Findings beyond this number are counted, and not sent one by one
MOST_ASSERTIONS = 1_000
_KAFKA_PORT = "9092"

Name = tuple[str, str]  # namespace, name


@attr.define
class OffsetsFacet(InputDatasetFacet):
    """The range that was read of each partition: `start` (inclusive), `end` (exclusive).

    Where the log has a hash chain, `chain` is the one behind offset `chain_offset`: the last end of a block not beyond
    `end`. `queue`: only this queue was asked for."""

    partitions: list[dict[str, Any]]
    queue: str | None = attr.field(default=None)

    @staticmethod
    def _get_schema() -> str:
        return f"{SCHEMA}#/$defs/RewindmqOffsetsInputDatasetFacet"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts about a run. `partitions`: by name, as in the facet; `error`: one line, if it failed."""

    run_id: str
    command: str
    location: Location
    queue: str | None
    spark: str
    partitions: Mapping[str, Mapping[str, Any]]
    findings: Sequence[Finding]
    outputs: Sequence[Name]
    error: str | None = None


def run_event(settings: LineageSettings, state: RunState, facts: RunFacts) -> RunEvent:
    """Return the OpenLineage event of a run that is now in this state."""
    return RunEvent(
        eventType=state,
        eventTime=datetime.now(UTC).isoformat(),
        producer=PRODUCER,
        run=Run(facts.run_id, _run_facets(settings, facts)),
        job=Job(settings.namespace, f"{settings.app_name}.{facts.command}", _job_facets(settings, facts)),
        inputs=_inputs(facts),
        outputs=[OutputDataset(*name) for name in facts.outputs],
    )


def dataset_of(location: Location, partition: str) -> Name:
    """Return the dataset of a partition.

    `partition`: its name or its topic, as some findings have it. Of several Kafka brokers the first stands for all, as
    in OpenLineage's own integrations."""
    if isinstance(location, InArchive):
        return dataset_at(location.url)
    if isinstance(location, InDirectory):
        return "file", str(location)
    host = location.bootstrap.split(",")[0].strip()
    if not host.rpartition(":")[2].isdecimal():
        host = f"{host}:{_KAFKA_PORT}"
    return f"kafka://{host}", location.metadata if partition in ("metadata-0", location.metadata) else location.queues


def queue_at(url: str, vhost: str, queue: str) -> Name:
    """Return the dataset of a queue, as it is now in the broker whose management API is at `url`."""
    return f"rewindmq://{urlsplit(url).netloc.rpartition('@')[2]}", f"{vhost}/{queue}"


def _run_facets(settings: LineageSettings, facts: RunFacts) -> dict[str, RunFacet]:
    facets: dict[str, RunFacet] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(facts.spark, "spark", producer=PRODUCER),
    }
    if settings.parent is not None:
        of = settings.parent
        facets["parent"] = parent_run.ParentRunFacet(
            parent_run.Run(of.run_id), parent_run.Job(of.namespace, of.job), producer=PRODUCER
        )
    if facts.error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(facts.error, "PYTHON", producer=PRODUCER)
    if settings.run_tags:
        tags = [tags_run.TagsRunFacetFields(*tag) for tag in settings.run_tags]
        facets["tags"] = tags_run.TagsRunFacet(tags, producer=PRODUCER)
    return facets


def _job_facets(settings: LineageSettings, facts: RunFacts) -> dict[str, JobFacet]:
    kind = "STREAMING" if facts.command == "watch" else "BATCH"
    facets: dict[str, JobFacet] = {
        "jobType": job_type_job.JobTypeJobFacet(kind, "REWINDMQ", "COMMAND", producer=PRODUCER)
    }
    if settings.job_tags:
        tags = [tags_job.TagsJobFacetFields(*tag) for tag in settings.job_tags]
        facets["tags"] = tags_job.TagsJobFacet(tags, producer=PRODUCER)
    return facets


def _inputs(facts: RunFacts) -> list[InputDataset]:
    """Return the input datasets. The log is named from the start; its ranges are known at the end."""
    parts: dict[Name, list[dict[str, Any]]] = {dataset_of(facts.location, "queues"): []}
    for partition, offset_range in sorted(facts.partitions.items()):
        parts.setdefault(dataset_of(facts.location, partition), []).append({"partition": partition, **offset_range})
    inputs = []
    for name, partitions in parts.items():
        facets: dict[str, InputDatasetFacet] = {}
        if partitions:
            facets["rewindmq_offsets"] = OffsetsFacet(partitions, facts.queue, producer=PRODUCER)
        if about := [each for each in facts.findings if dataset_of(facts.location, each.partition) == name]:
            facets["dataQualityAssertions"] = _assertions(about)
        inputs.append(InputDataset(*name, facets))
    return inputs


def _assertions(
    findings: Sequence[Finding],
) -> data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet:
    """Return an assertion for each finding; failed ones come first."""
    ranked = sorted(findings, key=lambda finding: finding.ok)
    some, rest = ranked[:MOST_ASSERTIONS], ranked[MOST_ASSERTIONS:]
    made = [
        data_quality_assertions_dataset.Assertion(
            assertion=each.check, success=each.ok, severity="error", actual=each.detail, params=_where(each)
        )
        for each in some
    ]
    if rest:
        ok, more = all(each.ok for each in rest), f"{len(rest)} more findings"
        made.append(data_quality_assertions_dataset.Assertion(assertion="more", success=ok, actual=more))
    return data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(made, producer=PRODUCER)


def _where(finding: Finding) -> dict[str, Any]:
    where = {
        "partition": finding.partition,
        "offset": finding.offset,
        "queue": finding.queue,
        "message_id": finding.message_id,
    }
    return {name: value for name, value in where.items() if value is not None}
