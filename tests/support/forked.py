"""Runs `rewindmq` in a process that is forked from one that has imported it.

Importing costs more than most commands do, and tests call hundreds. Some run the installed script (`COMMAND`) as well.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rewindmq.engine.cli.configuration.manual import commands_of
from rewindmq.engine.cli.main import main, rewindmq

commands_of(rewindmq)  # imports the files of all commands, here and not in each process
SECONDS = 60
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


def run(*arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / each for each in ("stdin", "stdout", "stderr")]
        for file, text in zip(files, (stdin, "", ""), strict=True):
            file.write_text(text)
        process = _context.Process(target=_called, args=(list(arguments), environment, list(map(str, files))))
        process.start()
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"{arguments} does not end")
        return subprocess.CompletedProcess(arguments, process.exitcode, files[1].read_text(), files[2].read_text())


def _called(arguments: list[str], environment: dict[str, str], files: list[str]) -> None:
    for descriptor, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDWR), descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  multiprocessing has closed the old one
    os.environ.clear()
    os.environ.update({"PATH": "/usr/bin", **environment})
    main(arguments)
