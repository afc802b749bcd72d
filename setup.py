"""Build a wheel with the compiled build if REWINDMQ_COMPILE=1 (docs/development/builds.md). pyproject.toml cannot say so.

REWINDMQ_COMPILE=1 pip install .        without it the wheel is pure, and runs on every Python and platform
"""

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SWITCH = "REWINDMQ_COMPILE"


class CompiledPackages(build_py):
    """The packages, and beside them the compiled build."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # in a checkout `make compile` does it
            sys.path.insert(0, str(ROOT))
            from rewindmq import builds, compiler

            try:
                compiler.provide(ROOT, Path(self.build_lib, "rewindmq", builds.DIRECTORY))
            except compiler.NotCompiled as error:
                sys.exit(f"not compiled: {error}")


class CompiledWheel(Distribution):
    """A wheel for this Python on this platform."""

    def has_ext_modules(self) -> bool:
        return True


if os.environ.get(SWITCH, "") in ("", "0"):
    setup()
else:
    # pip installs these for the build, unless it is told --no-build-isolation.
    setup(distclass=CompiledWheel, cmdclass={"build_py": CompiledPackages}, setup_requires=["mypy>=2.4"])
