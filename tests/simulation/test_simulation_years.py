"""Histories of years (years.py): archive, local cut, trim, expiry of bodies and recovery, killed at any step.

They run in processes of their own: these fork, which a process cannot that has asked a store.
"""

import subprocess
import sys

import pytest

from tests.simulation.years import PLANTED
from tests.support.running import ROOT

SEEDS = 25  # in one test: --keep-local comes to its end in one of twelve
pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


def years(first: int, end: int, *defect: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.simulation.years", str(first), str(end), *defect]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("first", [0, 500])
def test_nothing_confirmed_is_lost_whatever_is_killed(first: int) -> None:
    done = years(first, first + SEEDS)
    assert (done.returncode, done.stderr) == (0, "")
    met = set(done.stdout.splitlines())
    assert {f"{program} done" for program in ("archive", "keep_local", "trim", "expire")} <= met
    assert "archive killed" in met


def test_one_history(asked_seed: int) -> None:
    """`--seed N`"""
    done = years(asked_seed, asked_seed + 1)
    assert done.returncode == 0, done.stderr


@pytest.mark.rare
@pytest.mark.parametrize("defect", PLANTED)
def test_a_planted_defect_is_found(defect: str) -> None:
    done = years(0, 60, defect)
    assert done.returncode == 1
    assert "AssertionError: seed " in done.stderr
