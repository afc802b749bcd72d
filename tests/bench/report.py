"""bench.txt, which `make bench` writes and docs/benchmarks.toml takes: machine, versions, date, and one table."""

import os
import platform
import re
import subprocess
from datetime import datetime
from pathlib import Path

from tests.bench import perftest
from tests.bench.comparison import FULL, Results, Scale
from tests.bench.peers import PEERS

BASE = "rabbitmq"
CPU_TIMES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


def section(
    began: datetime, ended: datetime, machine: str, scale: Scale, versions: dict[str, str], results: list[Results]
) -> str:
    """Markdown. `versions`: of the peers that are run, by name; `machine`: a line about it."""
    head = [
        f"## {began:%-d %B %Y}",
        "",
        f"{machine} Measured from {began:%H:%M} to {ended:%H:%M} UTC.",
        f"Throughput is a median (rounds: {scale.rounds}). Everything else is one run. A run of PerfTest"
        f" takes {scale.seconds} s.",
        *([] if scale == FULL else ["**This run tried the harness out: its figures say nothing.**"]),
        "",
        *(f"- **{peer.title}**: {_about(name, versions)}" for name, peer in PEERS.items()),
        "",
        f"In brackets: the figure divided by that of {PEERS[BASE].title} in the same row. A dash: no such row.",
        "",
    ]
    failures = [
        f"- {result.group.heading}, {PEERS[peer].title}: failed. {' '.join(why.split())[:300]}"
        for result in results
        for peer, why in result.failed.items()
    ]
    return "\n".join([*head, *_table(versions, results), *(["", *failures] if failures else []), ""])


def _about(name: str, versions: dict[str, str]) -> str:
    peer = PEERS[name]
    if name in versions:
        return f"version {versions[name]}. {peer.syncs}"
    return f"not run ({peer.missing() or 'not asked for'})."


def _table(versions: dict[str, str], results: list[Results]) -> list[str]:
    lines = [
        f"| | {' | '.join(peer.title for peer in PEERS.values())} |",
        f"| --- | {' | '.join('---' for _ in PEERS)} |",
    ]
    heading = ""
    for result in results:
        if result.group.heading != heading:
            heading = result.group.heading
            lines.append(f"| **{heading}** |{' |' * len(PEERS)}")
        for row, figures in result.rows.items():
            cells = [_cell(name, versions, result, figures) for name in PEERS]
            lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def _cell(name: str, versions: dict[str, str], result: Results, figures: dict[str, float]) -> str:
    if name not in result.group.peers:
        return "–"
    if name not in versions:
        return "not run"
    if name in result.failed:
        return "failed"
    if name not in figures:
        return "–"
    ratio = f" ({figures[name] / figures[BASE]:.2f})" if name != BASE and figures.get(BASE) else ""
    return shown(figures[name]) + ratio


def shown(value: float) -> str:
    """A figure with at least two digits that say something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def machine(home: Path, load: float, stolen: float) -> str:
    """One line about this machine. `load`: before the run; `stolen`: the share of CPU time that other machines took."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    system = platform.freedesktop_os_release()["PRETTY_NAME"]
    java = re.search(r'version "([^"]+)"', subprocess.run(["java", "-version"], capture_output=True, text=True).stderr)
    return (
        f"{os.cpu_count()} cores ({cpu[1] if cpu else platform.machine()}), {memory:.0f} GiB, {system}, Linux"
        f" {platform.release()}, data on {_file_system(home)}, Python {platform.python_version()},"
        f" Java {java[1] if java else '?'}, PerfTest {perftest.version()}. Load average before: {load:.2f}."
        f" CPU time that the host gave to others: {stolen:.1%}."
    )


def _file_system(path: Path) -> str:
    """The type of the file system that has `path`."""
    found = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True)
    return found.stdout.strip()


def cpu_times() -> dict[str, int]:
    """The machine's, in ticks since it started."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return dict(zip(CPU_TIMES, map(int, fields), strict=False))
