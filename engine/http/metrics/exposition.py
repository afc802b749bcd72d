"""Prometheus' text format: a metric is a name, a kind, a help text, and samples."""

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from rewindmq.engine.host.loop_share import Work

Labels = dict[str, str]
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Metric:
    """A metric. `name` is without rabbitmq_; ours begin with rewindmq_. Samples: (suffix, labels, value)."""

    name: str
    kind: str
    help: str
    samples: list[tuple[str, Labels, float]] = field(default_factory=list)
    more: Iterable[tuple[str, Labels, float]] = ()  # samples that are made as they are read

    def add(self, value: float, labels: Labels | None = None, suffix: str = "") -> "Metric":
        self.samples.append((suffix, labels or {}, value))
        return self


def single(name: str, help: str, value: float, labels: Labels | None = None) -> Metric:
    return Metric(name, "counter" if name.endswith("_total") else "gauge", help).add(value, labels)


async def exposition(work: Work, found: Iterable[tuple[str, Metric]]) -> AsyncIterator[str]:
    """Yield the text of metrics, each with the prefix of its name, line by line."""
    for prefix, metric in found:
        async for line in work.over(lines_of(metric, prefix)):
            yield line


def lines_of(metric: Metric, prefix: str) -> Iterator[str]:
    name = metric.name if metric.name.startswith("rewindmq_") else prefix + metric.name
    yield f"# TYPE {name} {metric.kind}\n# HELP {name} {metric.help}\n"
    for suffix, labels, value in chain(metric.samples, metric.more):
        yield f"{name}{suffix}{labelled(labels)} {value:.15g}\n"


def labelled(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = [
        f'{name}="' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        for name, value in labels.items()
    ]
    return "{" + ",".join(quoted) + "}"
