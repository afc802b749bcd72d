"""Build a wheel: with the compiled build where it can be made, else a pure one (docs/development/builds.md).

pip install .                         compiled; pure, with the reason in `rewindmq --version`, where compiling fails
REWINDMQ_COMPILE=0 pip install .      pure: such a wheel runs on every Python and platform
REWINDMQ_COMPILE=1 pip install .      compiled, or an error
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
ASKED = os.environ.get("REWINDMQ_COMPILE", "")
NEVER, ALWAYS = ASKED == "0", ASKED not in ("", "0")
sys.path.insert(0, str(ROOT))

from rewindmq import builds, compiler  # noqa: E402


def compile_into(directory: Path) -> str:
    """Compile into a directory. Returns why that is impossible, in one line; empty if it is done."""
    try:
        compiler.provide(ROOT, directory)
    except compiler.NotCompiled as error:
        return str(error)
    except (Exception, SystemExit) as error:  # of gcc and mypy, whose output says more
        return f"compiling failed: {' '.join(str(error).split()) or type(error).__name__}"
    return ""


class Wheel(Distribution):
    """The wheel. Its attributes say what becomes of it."""

    compiled: Path  # the compiled build, or a note why there is none
    has_code = False

    def has_ext_modules(self) -> bool:
        """Return True for a wheel of this Python and platform."""
        return self.has_code


class Packages(build_py):
    """The packages, and beside them the compiled build."""

    def run(self) -> None:
        super().run()
        shutil.copytree(Wheel.compiled, Path(self.build_lib, "rewindmq", builds.DIRECTORY), dirs_exist_ok=True)


if NEVER or "bdist_wheel" not in sys.argv:  # in a checkout `make compile` does it
    setup(setup_requires=[] if NEVER else ["mypy>=2.4"])  # which pip then installs, for the build alone
else:
    with tempfile.TemporaryDirectory(prefix="rewindmq-compiled-") as work:
        Wheel.compiled = Path(work, builds.DIRECTORY)
        reason = compile_into(Wheel.compiled)
        if reason and ALWAYS:
            sys.exit(f"not compiled: {reason}")
        if reason:
            print(f"not compiled, so this wheel is pure: {reason}", file=sys.stderr)
            shutil.rmtree(Wheel.compiled, ignore_errors=True)
            Wheel.compiled.mkdir()
            (Wheel.compiled / builds.NOTE).write_text(f"{reason}\n")
        Wheel.has_code = not reason
        setup(distclass=Wheel, cmdclass={"build_py": Packages})
