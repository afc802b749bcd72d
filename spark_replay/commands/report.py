"""Prints an audit's findings for people: the checks, what each check says, and the findings that do not hold."""

import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from rewindmq.schemas.json_values import json_text
from rewindmq.spark_replay.audit.audit import FORK
from rewindmq.spark_replay.audit.checks import CHECKS, PUBLISHES, Finding
from rewindmq.spark_replay.audit.chunks import LEDGERS
from rewindmq.spark_replay.audit.dead_letter_join import ARRIVALS
from rewindmq.spark_replay.audit.kafka_retention import KEPT
from rewindmq.spark_replay.audit.log_bytes import CHAIN
from rewindmq.spark_replay.audit.policies import POLICIES
from rewindmq.spark_replay.audit.seals import SEALS
from rewindmq.spark_replay.audit.second_fold import STORE
from rewindmq.spark_replay.audit.watch import BatchReport
from rewindmq.spark_replay.commands.table_writer import discard_output, print_json, printable
from rewindmq.spark_replay.snapshots.verify import SNAPSHOTS, STATE

MEANING = CHECKS | {
    KEPT: "Kafka has the whole history, from offset 0 on, and is set to keep it",
    SEALS: "the records are those that were sealed (Merkle root, hash chain), and no seal is missing",
    CHAIN: "the bytes of the log are those that were written (hash chain over every block)",
    ARRIVALS: "no dead letter came that was not sent, and none that was forwarded is missing, across partitions",
    PUBLISHES: "every publish that came in a session is in the log, unless it was refused or not committed",
    POLICIES: "each policy that decided was set by someone, as it was used, and those set are applied",
    FORK: "where this history branched from another one; what is before that, both have in common",
    STORE: "the broker's RocksDB equals a fresh fold of the log, state and bodies",
    SNAPSHOTS: "each snapshot is what the events lead to from the one before, the first from nothing",
    LEDGERS: "the audit was done from ledger to ledger, each what the events lead to from the one before",
    STATE: "the state in the broker's RocksDB, without bodies, is what the events lead to from the snapshot before",
}

OK, NOT_CHECKED = "ok", "not checked"
_COLOURS = {OK: "green", NOT_CHECKED: "yellow"}


def print_report(findings: Sequence[Finding], form: str, what: str = "audit") -> None:
    """Print one line a check, then every finding with its offset, and whether `what` passed.

    A closed stdout is no error: the exit status has the result, too."""
    try:
        if form == "json":
            print_json((finding.as_json() for finding in findings), sys.stdout)
        else:
            sys.stdout.write(_report(findings, what))
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def _report(findings: Sequence[Finding], what: str) -> str:
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200, highlight=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "result", "what it says", "looked at"):
        table.add_column(heading, overflow="fold")
    for check in in_order(findings):
        of_check = [finding for finding in findings if finding.check == check]
        broken = sum(not finding.ok for finding in of_check)
        looked = "; ".join(f"{f.partition}: {f.detail}" for f in of_check if f.ok)
        sound = result_of(of_check)
        result = f"[red]{broken} found[/]" if broken else f"[{_COLOURS[sound]}]{sound}[/]"
        table.add_row(check, result, MEANING[check], looked)
    bad = [finding for finding in findings if not finding.ok]
    with console.capture() as report:  # a console would end the process when stdout is closed
        console.print(table)
        for finding in bad:
            console.print(_line(finding), markup=False, soft_wrap=True)
        for (check, severity), hint in advice(bad).items():
            console.print(f"{check} is {severity}: {hint}", markup=False, soft_wrap=True)
        if missing := not_checked(findings):
            console.print(f"not checked, as there was nothing to compare: {', '.join(missing)}", soft_wrap=True)
        console.print(f"{what} passed" if not bad else f"{what} FAILED: {len(bad)} finding{'s' * (len(bad) > 1)}")
    return report.get()


def print_batch(report: BatchReport, form: str) -> None:
    """Print a line for a finished batch, and its findings below.

    A closed stdout does not end the watch: its directory has the reports, too."""
    lines = [report.line(), *(f"  {_line(finding)}" for finding in report.violations)]
    try:
        print(json_text(asdict(report), ensure_ascii=False) if form == "json" else "\n".join(lines), flush=True)
    except BrokenPipeError:
        discard_output()


def advice(bad: Sequence[Finding]) -> dict[tuple[str, str], str]:
    """Hints by check and severity, each once."""
    return {(finding.check, finding.severity): finding.hint for finding in bad}


def result_of(sound: Sequence[Finding]) -> str:
    """Return the result of a check without findings: OK, or NOT_CHECKED when it compared nothing."""
    return OK if any(finding.checked for finding in sound) else NOT_CHECKED


def not_checked(findings: Sequence[Finding]) -> list[str]:
    """Return the checks that compared nothing in any partition."""
    by_check = {check: [each for each in findings if each.check == check] for check in in_order(findings)}
    return [check for check, found in by_check.items() if result_of(found) == NOT_CHECKED]


def in_order(findings: Sequence[Finding]) -> list[str]:
    """Return the checks of the findings, each once, in the order of their first finding."""
    return list(dict.fromkeys(finding.check for finding in findings))


def _line(finding: Finding) -> str:
    where = finding.partition + ("" if finding.offset is None else f" offset {finding.offset}")
    queue = f" queue {finding.queue}" if finding.queue else ""
    message = "" if finding.message_id is None else f" message {finding.message_id}"
    return printable(f"{finding.check}: {where}{queue}{message}: {finding.detail}")
