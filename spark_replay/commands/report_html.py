"""An audit's findings as one HTML file that needs no other file."""

import html
from collections.abc import Sequence
from datetime import UTC, datetime

from rewindmq.spark_replay.audit.checks import Finding
from rewindmq.spark_replay.commands.report import MEANING, advice, in_order, not_checked, result_of

ROWS = 1_000  # findings; if everything is wrong, the page must not grow until no browser opens it

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ padding: .3rem .8rem; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd }}
td {{ overflow-wrap: break-word }} td:last-child {{ overflow-wrap: anywhere; min-width: 16rem }}
.ok {{ color: #2a7a4f }} .bad {{ color: #b00020; font-weight: bold }}
@media print {{ body {{ margin: 0; max-width: none; font-size: 10px }} tr {{ break-inside: avoid }} }}
</style></head><body>
<h1>{title}</h1>
<p>History: <code>{location}</code><br>Audited: {when}<br>Result: <span class="{kind}">{result}</span></p>
<h2>What was checked</h2>
<table>{columns}{checks}</table>
{found}<p>Every figure follows from the events in the history alone. How each check works, and what no audit can prove,
is in RewindMQ's documentation for auditors.</p>
</body></html>
"""


def report_html(findings: Sequence[Finding], location: str, when: datetime | None = None) -> str:
    """Return a page of HTML with all findings.

    `location`: of the history, for people."""
    bad = [finding for finding in findings if not finding.ok]
    checks = "".join(_row(check, [each for each in findings if each.check == check]) for check in in_order(findings))
    rows = "".join(
        _cells(each.check, each.partition, each.offset, each.queue, each.message_id, each.detail) for each in bad[:ROWS]
    )
    found = (
        "<h2>What was found</h2>\n<table>"
        + _head("check", "partition", "offset", "queue", "message", "what is wrong")
        + f"{rows}</table>\n"
        if bad
        else ""
    )
    found += "".join(
        f"<p><b>{html.escape(check)}</b> is {severity}: {html.escape(hint)}</p>\n"
        for (check, severity), hint in advice(bad).items()
    )
    if len(bad) > ROWS:
        found += f"<p>The first {ROWS:,} of {len(bad):,}; <code>--format json</code> has all of them.</p>\n"
    return _PAGE.format(
        title="Audit of a RewindMQ history",
        location=html.escape(location),
        when=(when or datetime.now(UTC)).isoformat(timespec="seconds"),
        kind="bad" if bad else "ok",
        result=f"failed, {len(bad):,} finding{'s' * (len(bad) > 1)}" if bad else _passed(findings),
        columns=_head("check", "result", "what it says", "looked at"),
        checks=checks,
        found=found,
    )


def _passed(findings: Sequence[Finding]) -> str:
    missing = not_checked(findings)
    return f"passed; not checked: {html.escape(', '.join(missing))}" if missing else "passed: every check held"


def _row(check: str, findings: list[Finding]) -> str:
    broken = sum(not finding.ok for finding in findings)
    looked = "; ".join(f"{each.partition}: {each.detail}" for each in findings if each.ok)
    kind, result = ("bad", f"{broken:,} found") if broken else ("ok", result_of(findings))
    cells = (
        html.escape(check),
        f'<span class="{kind}">{result}</span>',
        html.escape(MEANING[check]),
        html.escape(looked),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n"


def _cells(*values: object) -> str:
    texts = ("" if value is None else html.escape(str(value)) for value in values)
    return "<tr>" + "".join(f"<td>{text}</td>" for text in texts) + "</tr>\n"


def _head(*names: str) -> str:
    return "<tr>" + "".join(f'<th scope="col">{name}</th>' for name in names) + "</tr>\n"
