"""Writes docs/benchmarks.md's tables and plots from the figures in docs/benchmarks.toml.

python -m tests.support.benchmarks_page             the tables of the pages, and docs/pictures/bench-*.svg
python -m tests.support.benchmarks_page bench.txt   the same after adding the run that `make bench` wrote to bench.txt
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "benchmarks.toml"
PICTURES = ROOT / "docs" / "pictures"
PAGES = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks" / "brokers.md")
MARKED = re.compile(r"(<!-- (table|whole) ([\d-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
BASE = "RabbitMQ 3.10.8"
COLORS = {
    BASE: "#7b8794",
    "RabbitMQ 4.3": "#b8c2cc",
    "LavinMQ": "#8e5ea2",
    "RewindMQ pure": "#f0a04b",
    "RewindMQ compiled": "#b4540a",
}
CPU = "a broker-CPU-second"
# The main rows: their group and row in the data, and their name in plots and the short table.
MAIN = {
    ("One producer, one consumer, 100 bytes, auto-ack", CPU): "100 bytes, auto-ack",
    (
        "One producer, one consumer, 100 bytes, confirms (500 outstanding), manual acks (prefetch 200)",
        CPU,
    ): "100 bytes, confirms and acks",
    ("One producer, one consumer, 1 kB, auto-ack", CPU): "1 kB, auto-ack",
    (
        "One producer, one consumer, 1 kB, confirms (500 outstanding), manual acks (prefetch 200)",
        CPU,
    ): "1 kB, confirms and acks",
    ("Fan-out: one publisher, 100 queues with a consumer each, auto-ack", CPU): "fan-out to 100 queues",
    ("A million ready messages of 100 bytes", "published, a broker-CPU-second"): "a million messages: published",
    ("A million ready messages of 100 bytes", "drained, a broker-CPU-second"): "a million messages: drained",
}
Figure = float | str  # "failed", or "" where nothing was measured


@dataclass(frozen=True)
class Run:
    """A run: every peer in turn on one machine. `figures`: group, row, and a figure for each peer."""

    date: str
    command: str
    machine: str
    peers: list[str]
    versions: list[str]
    figures: dict[str, dict[str, list[Figure]]]

    def ratio(self, group: str, row: str, peer: str) -> float | None:
        """Return a peer's figure divided by RabbitMQ's of the same run."""
        figures = dict(zip(self.peers, self.figures.get(group, {}).get(row, []), strict=False))
        figure, base = figures.get(peer), figures.get(BASE)
        return figure / base if isinstance(figure, int | float) and isinstance(base, int | float) else None


def runs() -> list[Run]:
    return [Run(**{**each, "date": str(each["date"])}) for each in tomllib.loads(DATA.read_text())["run"]]


# -- the run that `make bench` wrote ------------------------------------------------------------------------------


def added(section: str, command: str) -> str:
    """Return bench.txt as a run in TOML."""
    lines = section.splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    date = re.search(r"^## (\d+ \w+ \d+)$", section, re.MULTILINE)
    assert date, "this is not what `make bench` writes"
    about = dict(
        re.findall(r"^- \*\*(.+?)\*\*: version (\S+?(?: \(\w+\))?)\.? ", section.replace("\n  ", " "), re.MULTILINE)
    )
    peers = table[0][1:]
    made = [
        "[[run]]",
        f"date = {datetime.strptime(date[1], '%d %B %Y'):%Y-%m-%d}",
        f"command = {_quoted(command)}",
        f"machine = {_quoted(' '.join(section.split(chr(10) * 2)[1].split()))}",
        f"peers = [{', '.join(map(_quoted, peers))}]",
        f"versions = [{', '.join(_quoted(about.get(peer, '')) for peer in peers)}]",
    ]
    for name, *cells in table[2:]:
        if name.startswith("**"):
            made += ["", f"[run.figures.{_quoted(name.strip('*'))}]"]
        else:
            made.append(f"{_quoted(name)} = [{', '.join(map(_figure, cells))}]")
    return "\n".join([*made, ""])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _figure(cell: str) -> str:
    number = cell.split(" ")[0].replace(",", "")
    return number if re.fullmatch(r"\d[\d.]*", number) else '""' if number == "–" else _quoted(cell)


# -- tables -------------------------------------------------------------------------------------------------------


def table(run: Run, rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield the lines of a table. `rows`: group, row and name of each; a heading for those that follow has no row."""
    yield f"| | {' | '.join(run.peers)} |"
    yield f"| --- |{' ---: |' * len(run.peers)}"
    for group, row, name in rows:
        figures = run.figures[group][row] if row else [""] * len(run.peers)
        cells = [_cell(run, group, row, *each) if row else "" for each in zip(run.peers, figures, strict=True)]
        yield f"| {name} | {' | '.join(cells)} |"


def _cell(run: Run, group: str, row: str, peer: str, figure: Figure) -> str:
    if isinstance(figure, str):
        return figure or "–"
    ratio = run.ratio(group, row, peer)
    shown = f"{figure:,}" if isinstance(figure, int) else str(figure)
    return shown + (f" ({ratio:.2f})" if ratio is not None and peer != BASE else "")


def short_rows(run: Run) -> Iterator[tuple[str, str, str]]:
    yield from ((group, row, name) for (group, row), name in MAIN.items() if row in run.figures.get(group, {}))


def all_rows(run: Run) -> Iterator[tuple[str, str, str]]:
    for group, rows in run.figures.items():
        yield group, "", f"**{group}**"
        yield from ((group, row, row) for row in rows)


def with_tables(text: str) -> str:
    """Return a page with the table of each mark, `<!-- table DATE -->` or `<!-- whole DATE -->`, as the data is now."""

    def made(found: re.Match[str]) -> str:
        run = next(each for each in runs() if each.date == found[3])
        lines = table(run, short_rows(run) if found[2] == "table" else all_rows(run))
        return found[1] + "\n" + "\n".join(lines) + "\n\n" + found[4]

    return MARKED.sub(made, text)


# -- plots --------------------------------------------------------------------------------------------------------

WIDTH = 900
INK, GREY = "#1f2933", "#616e7c"
LEFT = 250  # where bars begin


def picture(title: str, about: str, height: int, parts: Iterable[str]) -> str:
    """Return an SVG in the style of the other pictures: a white card, which a dark page can also show."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'role="img" aria-labelledby="title desc" font-family="Helvetica, Arial, sans-serif" font-size="14">',
            f'  <title id="title">{escape(title)}</title>',
            f'  <desc id="desc">{escape(about)}</desc>',
            f'  <rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d3d9e0"/>',
            text(24, 34, title, size=20, weight="bold"),
            *parts,
            "</svg>",
            "",
        ]
    )


def text(
    x: float, y: float, words: str, *, size: int = 14, anchor: str = "start", fill: str = INK, weight: str = "normal"
) -> str:
    return (
        f'  <text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def legend(peers: list[str], y: int) -> Iterator[str]:
    x = 24
    for peer in peers:
        yield f'  <rect x="{x}" y="{y - 11}" width="13" height="13" rx="2" fill="{COLORS[peer]}"/>'
        yield text(x + 19, y, peer, size=13, fill=GREY)
        x += 40 + 8 * len(peer)


def bars(run: Run) -> str:
    """Return a plot of the main rows of a run: each peer's figure divided by RabbitMQ's."""
    peers = [peer for peer in run.peers if peer in COLORS]
    shown, most = [(key, name) for key, name in MAIN.items() if key[1] in run.figures.get(key[0], {})], 16.0
    parts, y = list(legend(peers, 62)), 92
    for (group, row), name in shown:
        parts.append(text(LEFT - 12, y + 9 * len(peers) + 3, name, anchor="end"))
        for peer in peers:
            ratio = run.ratio(group, row, peer)
            width = (WIDTH - LEFT - 80) * min(ratio or 0, most) / most
            parts.append(f'  <rect x="{LEFT}" y="{y}" width="{width:.1f}" height="14" rx="2" fill="{COLORS[peer]}"/>')
            if ratio and ratio > most:  # cut, and seen to be
                parts.append(
                    f'  <path d="M{LEFT + width - 16:.1f},{y + 16} l6,-18" stroke="#ffffff" stroke-width="4"/>'
                )
            said = "failed" if ratio is None else f"{ratio:.1f}"
            parts.append(text(LEFT + width + 6, y + 11, said, size=12, fill=GREY))
            y += 18
        y += 14
    parts.append(
        text(LEFT, y + 8, f"{BASE} = 1. Bars with a gap are longer than there is room for.", size=12, fill=GREY)
    )
    said = "; ".join(
        f"{name}: " + ", ".join(f"{peer} {run.ratio(*key, peer) or 0:.2f}" for peer in peers) for key, name in shown
    )
    return picture(f"Messages a CPU second of the broker, {run.date}", f"{BASE} is 1. {said}.", y + 24, parts)


def lines_over_time(history: list[Run]) -> str:
    """Return a plot of the main rows over the days: RewindMQ's figures divided by RabbitMQ's of the same run."""
    names = list(MAIN.items())[:6]
    peers = ["RewindMQ pure", "RewindMQ compiled"]
    days = sorted({run.date for run in history})
    parts, said, high = list(legend(peers, 62)), list[str](), 130
    for place, (key, name) in enumerate(names):
        left, top = 60 + place % 3 * 280, 104 + place // 3 * (high + 76)
        at = {day: left + 20 + 190 * number / (len(days) - 1) for number, day in enumerate(days)}
        dots = {
            peer: [(run.date, ratio) for run in history if (ratio := run.ratio(*key, peer)) is not None]
            for peer in peers
        }
        most = max(10, *(ratio for found in dots.values() for _, ratio in found)) // 10 * 10
        most += 10 if most > 10 else 0
        parts.append(text(left, top - 14, name, weight="bold"))
        for level in range(0, int(most) + 1, int(most) // 5):
            y = top + high - high * level / most
            parts.append(f'  <path d="M{left},{y:.1f} h230" stroke="{"#9aa5b1" if level == 0 else "#e4e7eb"}"/>')
            parts.append(text(left - 8, y + 4, str(level), size=11, anchor="end", fill=GREY))
        parts += [text(at[day], top + high + 18, day[5:], size=11, anchor="middle", fill=GREY) for day in days]
        for peer, found in dots.items():
            points = [(at[day], top + high - high * ratio / most, ratio) for day, ratio in found]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
            parts.append(f'  <polyline points="{line}" fill="none" stroke="{COLORS[peer]}" stroke-width="2"/>')
            for x, y, ratio in points:
                parts.append(f'  <circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLORS[peer]}"/>')
                above = y - 9 if peer == peers[1] else y + 18
                parts.append(text(x, above, f"{ratio:.1f}", size=12, anchor="middle", fill="#52606d"))
            said += [f"{name}, {peer}, {day}: {ratio:.2f}" for day, ratio in found]
    title = "Messages a CPU second, times RabbitMQ 3.10.8 in the same run"
    return picture(title, "; ".join(said) + ".", 104 + 2 * (high + 76) - 26, parts)


def pictures() -> dict[str, str]:
    history = runs()
    widest = max(history, key=lambda run: len(run.peers))
    return {"bench-brokers.svg": bars(widest), "bench-history.svg": lines_over_time(history)}


def main() -> None:
    if sys.argv[1:]:
        command = " ".join(["make bench", *sys.argv[2:]])
        DATA.write_text(DATA.read_text() + "\n" + added(Path(sys.argv[1]).read_text(), command))
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))
    for name, svg in pictures().items():
        (PICTURES / name).write_text(svg)


if __name__ == "__main__":
    main()
