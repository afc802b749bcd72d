"""Two builds of one source come to the same: state, effects, events and bytes."""

import json
import os
import subprocess
import sys
from typing import Any

from rewindmq.builds import SWITCH
from tests.builds.fold import SEEDS
from tests.support.running import ROOT
from tests.support.samples import GOLDEN


def folded(switch: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.builds.fold"]
    env = {**os.environ, SWITCH: switch}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_both_builds_fold_the_golden_logs_alike() -> None:
    compiled, pure = folded(""), folded("1")
    assert (compiled.pop("build"), pure.pop("build")) == ("compiled", "pure")
    assert compiled == pure
    assert pure.keys() == {schema.name for schema in GOLDEN.iterdir()} | {f"seed {seed}" for seed in SEEDS}
    assert all(int(each["effects"].split()[0]) > 50 for each in pure.values()), "a history has few effects"
