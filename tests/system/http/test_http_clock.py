"""The time in the log beside the wall clock: /api/clock, its metric, `status`, and the repair."""

import httpx2

from tests.support.commands import run_in_process
from tests.support.running import RunningBroker

GAUGE = "rewindmq_log_clock_difference_ms"


def test_the_clock_is_shown_and_agrees(api: httpx2.Client, broker: RunningBroker) -> None:
    found = api.get("/clock").json()
    assert abs(found["difference_ms"]) < 1_000
    assert [each["partition"] for each in found["partitions"]] == ["queues-0", "queues-1"]
    assert {each["queues_ahead_ms"] for each in found["partitions"]} <= {0, *range(-1_000, 1_000)}
    metrics = httpx2.get(f"{broker.http_url}/metrics", auth=("guest", "guest"), trust_env=False).text
    assert metrics.count(f"\n{GAUGE}{{") == 2
    code, said = run_in_process(broker, "status")
    assert (code, "Time in the log less wall clock: " in said) == (0, True)


def test_an_administrator_repairs_it_and_nobody_else(api: httpx2.Client, broker: RunningBroker, name: str) -> None:
    done = api.post("/clock/repair")
    assert (done.status_code, set(done.json())) == (200, {"before", "after", "moved_ms"})
    assert abs(done.json()["moved_ms"]) < 1_000
    code, said = run_in_process(broker, "repair_clock")
    assert (code, said.startswith("Setting the time in the log to the wall clock ...\nfrom 20")) == (0, True)
    assert api.put(f"/users/{name}", json={"password": "p", "tags": "monitoring"}).status_code == 201
    watcher = httpx2.Client(base_url=api.base_url, auth=(name, "p"), trust_env=False)
    assert watcher.get("/clock").status_code == 200
    assert watcher.post("/clock/repair").status_code == 401
    assert api.put(f"/users/{name}", json={"password": "p", "tags": "management"}).status_code == 204
    assert watcher.get("/clock").status_code == 401
    assert api.get("/clock/repair").status_code == 405
