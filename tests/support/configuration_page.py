"""The tables of docs/operators/configuration.md, made of the table of settings.

python -m tests.support.configuration_page      writes them anew
"""

from rewindmq.engine.cli.configuration.table import SECTIONS, Setting
from tests.support.running import ROOT

PAGE = ROOT / "docs" / "operators" / "configuration.md"
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"


def tables() -> str:
    """A heading and a table for each section."""
    lines: list[str] = []
    for title, settings in SECTIONS.items():
        lines += [
            f"### {title}",
            "",
            "| key | what | default | SIGHUP | rabbitmq.conf |",
            "| --- | --- | --- | --- | --- |",
            *(row(setting) for setting in settings),
            "",
        ]
    return "\n".join(["", *lines])


def row(setting: Setting) -> str:
    """A setting as a row."""
    allowed = f" Allowed: {setting.kind.allowed}."
    unit = f" Unit: {setting.unit}." if setting.unit else ""
    variable = f" Variable: {setting.variable}." if setting.variable else ""
    secret = " A secret is in it." if setting.secret else ""
    default = "" if setting.default is None else f"`{setting.default}`"
    known = f"`{setting.rabbitmq}`" if setting.rabbitmq else ""
    cells = (
        f"`{setting.name}`",
        f"{setting.help}{allowed}{unit}{secret}{variable}".replace("|", "\\|"),
        default,
        "yes" if setting.reload else "",
        known,
    )
    return f"| {' | '.join(cells)} |"


def rewritten(text: str) -> str:
    """The page with the tables of now."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + tables() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
