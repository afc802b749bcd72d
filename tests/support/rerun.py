"""Run pytest as CI does: a few tests that fail run again, once and alone, and are FLAKY if they pass then.

    python -m tests.support.rerun [options and paths of pytest]

More than MOST failures are a defect, so nothing runs again. The exit status is that of pytest's last run.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MOST = 3
TESTS_FAILED = 1  # pytest's exit status


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
        status = subprocess.run(command).returncode
        failed = _failed(cache)
        if status != TESTS_FAILED or not failed:
            return status
        if len(failed) > MOST:
            print(f"{len(failed)} tests failed: more than {MOST} are not run again", flush=True)
            return status
        print(f"{len(failed)} of the tests failed and run again, alone", flush=True)
        again = subprocess.run([*command, "-n", "0", "--last-failed", "--last-failed-no-failures", "none"]).returncode
        for test in sorted(failed - _failed(cache)):
            print(f"FLAKY: {test}", flush=True)
        return again


def _failed(cache: str) -> set[str]:
    """Return the node ids that pytest has to run again, by its own notes."""
    notes = Path(cache) / "v" / "cache" / "lastfailed"
    return set(json.loads(notes.read_text())) if notes.exists() else set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
