"""docs/history.ipynb runs from top to bottom, on a day of the demo's departures that a real broker has just taken."""

import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.demo.demo import POLICIES, ROOT, Broker, run_the_week
from tests.demo.flights import departures
from tests.demo.services import declare

pytestmark = pytest.mark.long

NOTEBOOK = ROOT / "docs" / "history.ipynb"
FLIGHTS = slice(2_000, 2_900)  # before the blizzard and in it; one of them goes to Sacramento
SECONDS = 300


@pytest.fixture
def day(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    broker = Broker(data)
    try:
        for name, pattern, definition in POLICIES:
            broker.command("set_policy", name, pattern, definition, "--apply-to", "queues")
        declare(broker.amqp_port)
        run_the_week(broker, departures()[FLIGHTS])
        broker.command("purge_queue", "cancelled")
    finally:
        broker.stop()
    return data


@pytest.mark.rare
def test_it_runs_from_top_to_bottom(day: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWINDMQ_DATA", str(day))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    client.execute()
    said = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    for cell in ("depth", "biography-plot", "what-if-plot", "slo"):
        assert any("image/png" in output.get("data", {}) for output in said[cell]), f"{cell} has no picture"
    assert "guest purged cancelled" in text(said["past"])
    assert "delivery_limit" in text(said["biography"])
    assert "dead_lettered" in text(said["biography"])
    assert "maxlen" in text(said["what-if"])
    assert "audit passed" in text(said["audit"])
    assert "passed" in (day.parent / "audit.html").read_text()
    shutil.rmtree(day)


def test_it_is_committed_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


def text(outputs: list[dict[str, Any]]) -> str:
    """All that a cell printed or showed, as text."""
    return "".join(
        str(output["text"]) if output["output_type"] == "stream" else str(output.get("data", {}).get("text/plain", ""))
        for output in outputs
    )
