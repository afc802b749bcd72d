"""`rewindmq`, also as `python -m rewindmq`: the commands of the engine, and `rewindmq spark`, those of Spark.

The engine and Spark's side do not know each other; this file knows both. Spark's side is imported when it is asked for,
since it needs the extra `spark`.
"""

from importlib.util import find_spec

import click

from rewindmq.engine.cli.exits import UNAVAILABLE, CliError
from rewindmq.engine.cli.main import add_command, main

__all__ = ["main"]
OF_THE_EXTRA = ("pyspark", "pyarrow", "pandas", "openlineage", "rich")


@click.command(
    "spark", add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("arguments", metavar="COMMAND ...", nargs=-1, type=click.UNPROCESSED)
def spark(arguments: tuple[str, ...]) -> None:
    """Rebuild, follow and audit queues in Spark; 'rewindmq spark --help' lists the commands."""
    missing = [name for name in OF_THE_EXTRA if find_spec(name) is None]
    if missing:
        text = f"Spark's commands need {', '.join(missing)}, not installed here: pip install 'rewindmq[spark]'"
        raise CliError(UNAVAILABLE, text)
    from rewindmq.spark_replay.__main__ import run

    raise click.exceptions.Exit(run(list(arguments)))


add_command("History", spark)

if __name__ == "__main__":
    main()
