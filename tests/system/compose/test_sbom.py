"""`make sbom` says of the images what their locks install. It checks its documents by CycloneDX's schema."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.locks import pins
from tests.support.needs import needed
from tests.support.running import ROOT

pytestmark = pytest.mark.rare


def test_it_lists_each_locked_package_with_version_and_hashes(tmp_path: Path) -> None:
    installed = ROOT / ".venv" / ".ready"  # it is: this test runs
    command = [needed("make"), "-o", str(installed), "-o", "setup", "sbom", f"DIST={tmp_path}"]
    subprocess.run([*command, f"BIN={Path(sys.executable).parent}"], cwd=ROOT, check=True, capture_output=True)
    for name in ("requirements", "requirements-spark"):
        document = json.loads((tmp_path / f"{name}.cdx.json").read_text())
        assert document["bomFormat"] == "CycloneDX"
        assert document["metadata"]["component"]["name"] == "rewindmq"
        listed = {each["name"].lower(): (each["version"], hashes_of(each)) for each in document["components"]}
        locked = pins(ROOT / "compose" / f"{name}.lock")
        assert listed == locked
        assert len(listed) == len(document["components"]) > 20


def hashes_of(component: dict[str, object]) -> frozenset[str]:
    references = component["externalReferences"]
    assert isinstance(references, list)
    found = [each for reference in references for each in reference.get("hashes", ())]
    assert {each["alg"] for each in found} == {"SHA-256"}
    return frozenset(f"sha256:{each['content']}" for each in found)
