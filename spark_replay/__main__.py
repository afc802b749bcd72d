"""`rewindmq spark VERB`; for spark-submit also this file.

VERB is state-at, history, biography, diff, slo, spans, what-if, restore, audit, verify, cut or watch.

Stdout has only the result. An error is one line on stderr (commands/exit_status.py). Checks that need no Spark run
before Spark is started, so that a typing error costs no seconds.
"""

import sys

import click

from rewindmq.spark_replay.commands.check import audit, cut, verify, watch_command
from rewindmq.spark_replay.commands.exit_status import status_of
from rewindmq.spark_replay.commands.read import biography, diff, history, keep_history, slo, state_at
from rewindmq.spark_replay.commands.simulate import restore, what_if
from rewindmq.spark_replay.commands.traces import spans


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Rebuild, follow and audit queues from their history, with Spark."""


for _command in (
    state_at,
    history,
    keep_history,
    biography,
    diff,
    slo,
    spans,
    what_if,
    restore,
    audit,
    verify,
    cut,
    watch_command,
):
    main.add_command(_command)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line. Returns its exit status."""
    try:
        return main.main(args=arguments, prog_name="rewindmq spark", standalone_mode=False) or 0
    except Exception as error:
        return status_of(error)


if __name__ == "__main__":
    sys.exit(run())
