"""The metrics that a broker shows to Prometheus, read by prometheus_client."""

import httpx2
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.running import RunningBroker

GUEST = ("guest", "guest")


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def metrics(broker: RunningBroker, path: str = "/metrics", **query: str | list[str]) -> dict[str, Metric]:
    """Return what the broker shows at this path, by family."""
    answer = httpx2.get(broker.http_url + path, params=query, auth=GUEST, trust_env=False)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return families(answer.text)


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    """Of the one sample with these labels among others."""
    (sample,) = [
        each
        for family in found.values()
        for each in family.samples
        if each.name == f"rabbitmq_{name}" and labels.items() <= each.labels.items()
    ]
    return float(sample.value)
