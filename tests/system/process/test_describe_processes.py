"""Descriptions of events do not depend on the process's hash seed."""

import os
import subprocess
import sys

from tests.support.running import ROOT


def test_the_same_in_every_process() -> None:
    code = (
        "from rewindmq.projections.machine import describe\nfrom tests.support.samples import SAMPLES\n"
        "print('\\n'.join(describe.event(event) for _, _, event in SAMPLES.values()))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "7")
    }
    assert len(seen) == 1
