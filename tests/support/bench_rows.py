"""Quick runs of the benchmarks, and the cells that they print."""

import subprocess
import sys
from pathlib import Path

from tests.support.running import ROOT


def quick_run(tmp_path: Path, *rows: str) -> dict[str, str]:
    """Run these rows for RewindMQ's pure build alone. Returns its cell by row."""
    output = tmp_path / "bench.txt"
    command = [sys.executable, "-m", "tests.bench.run", "--quick", "--peers", "rewindmq", "--output", str(output)]
    done = subprocess.run([*command, "--rows", *rows], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    cells = rows_of(output.read_text())
    assert {cell for _, *others, _, _ in cells for cell in others} <= {"not run", "–"}
    return {row: pure for row, _, _, _, pure, _ in cells}


def rows_of(text: str) -> list[list[str]]:
    """The cells of the table's rows, without its heads."""
    lines = [
        line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| |", "| **", "| --"))
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def numbers(cells: dict[str, str]) -> list[float]:
    return [float(cell.replace(",", "")) for cell in cells.values()]
