"""Charts of the demo's page as SVG that fits any width: shapes stretch, and all words are HTML around them."""

from collections.abc import Sequence

WIDTH, HEIGHT = 1_000, 100  # of the drawing, in units of its own

_SVG = '<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="{label}">{shapes}</svg>'


def svg(shapes: str, label: str, height: int = HEIGHT) -> str:
    return _SVG.format(width=WIDTH, height=height, label=label, shapes=shapes)


def steps(points: Sequence[tuple[float, float]], end: float, most: float, height: float = HEIGHT) -> str:
    """An area below a line that goes in steps: (x, value) from left to right, the last one on to `end`. x is in the
    drawing's units, `most` the value at the top."""
    drawn = [f"M{points[0][0]:.1f},{height}"]
    for (x, value), (following, _) in zip(points, [*points[1:], (end, 0)], strict=True):
        y = height - height * value / most if most else height
        drawn.append(f"L{x:.1f},{y:.1f}L{following:.1f},{y:.1f}")
    outline = "".join(drawn)
    return f'<path class="depth" d="{outline}L{end:.1f},{height}Z"/>'


def rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.2f}" width="{width:.1f}" height="{height:.2f}" fill="{colour}"/>'


def axis(y: float) -> str:
    return f'<line x1="0" y1="{y}" x2="{WIDTH}" y2="{y}" class="axis"/>'
