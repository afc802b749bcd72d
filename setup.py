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
ALWAYS = ASKED not in ("", "0")
# pip asks for the metadata, and then refuses a Python that pyproject.toml does not name: it imports nothing of ours.
IS_SUPPORTED = (3, 11) <= sys.version_info < (3, 15)
NEVER = ASKED == "0" or not IS_SUPPORTED
sys.path.insert(0, str(ROOT))
if IS_SUPPORTED:
    from rewindmq import builds


def why_without_compiler() -> str:
    """Return why nothing can be compiled here, in one line; empty if a C compiler and Python's headers are here."""
    from rewindmq import compiler

    try:
        compiler.require_c()
    except compiler.NotCompiled as error:
        return str(error)
    return ""


def compile_into(directory: Path) -> str:
    """Compile into a directory. Returns why that is impossible, in one line; empty if it is done."""
    from rewindmq import compiler

    try:
        compiler.provide(ROOT, directory)
    except compiler.NotCompiled as error:
        return str(error)
    except (Exception, SystemExit) as error:  # of gcc and mypy, whose output says more
        return f"compiling failed: {' '.join(str(error).split()) or type(error).__name__}"
    return ""


class Wheel(Distribution):
    """The wheel. Its attributes say what becomes of it."""

    compiled: Path | None = None  # the compiled build, or a note why there is none
    has_code = False

    def has_ext_modules(self) -> bool:
        """Return True for a wheel of this Python and platform."""
        return self.has_code


class Packages(build_py):
    """The packages, and beside them the compiled build, without what an earlier build has left there."""

    def run(self) -> None:
        super().run()
        target = Path(self.build_lib, "rewindmq", builds.DIRECTORY)
        shutil.rmtree(target, ignore_errors=True)
        if Wheel.compiled is not None:
            shutil.copytree(Wheel.compiled, target)


if "bdist_wheel" not in sys.argv:  # in a checkout `make compile` does it
    with_mypy = not NEVER and (ALWAYS or not why_without_compiler())
    setup(setup_requires=["mypy>=2.4"] if with_mypy else [])  # which pip then installs, for the build alone
elif NEVER:
    setup(distclass=Wheel, cmdclass={"build_py": Packages})
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
