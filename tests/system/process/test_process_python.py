"""A Python that RewindMQ does not support gets one line, also in a checkout. pyproject.toml has the same bounds."""

import subprocess
import sys
import tomllib

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.running import ROOT

BOUNDS = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 11, 0), (3, 14, 9), (3, 15, 0)])
def test_an_unsupported_python_gets_one_line(version: tuple[int, int, int]) -> None:
    program = f"import sys; sys.version_info = {version}; import rewindmq"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    is_supported = BOUNDS.contains(".".join(map(str, version)))
    assert (done.returncode == 0) == is_supported
    said = f"RewindMQ needs Python 3.11 to 3.14, and this is {version[0]}.{version[1]}. Run it with another Python.\n"
    assert done.stderr == ("" if is_supported else said)
