"""`make docs` builds without a warning, and the search of the site finds the page for a task.

Reading all pages takes 14 seconds of CPU, and writing the site half a minute more. tests/tidy checks links, anchors and
the tree of pages without Sphinx.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs_site import HERE
from tests.support.needs import needed
from tests.support.running import ROOT

# A task in a reader's words, and the pages that say how.
TASKS = {
    "how do I undo a purge": {"operators/restoring", "tutorials/lab-purge"},
    "rotate keys": {"operators/keep-bodies"},
    "queue length limit policy": {"operators/policies"},
    "alert when disk fills": {"operators/alerts"},
    "prove a message to a stranger": {"tutorials/lab-proof", "operators/seals"},
    "find a lost message by its id": {"operators/finding"},
    "move from rabbitmq without downtime": {"operators/moving"},
    "tls client certificates": {"operators/tls"},
    "what is different from rabbitmq": {"differences"},
    "delete personal data of a user": {"operators/erasure"},
    "failover to a second machine": {"operators/standby"},
    "store the history in S3": {"operators/archive"},
    "recover a broker from the archive": {"operators/recover"},
    "poison message keeps coming back": {"tutorials/lab-poison"},
    "add a node to the cluster": {"cluster"},
    "prometheus metrics": {"operators/monitoring"},
    "what does a column of the history table mean": {"spark/columns"},
    "broker uses too much memory": {"operators/limits"},
    "log in with an oauth token": {"operators/identity"},
    "drop duplicate messages": {"operators/deduplication"},
    "what was in the queue yesterday": {"operators/rewinding"},
    "who purged this queue": {"tutorials/lab-purge", "operators/finding"},
    "add a new setting": {"development/add-a-setting"},
    "upgrade to a new version": {"operators/upgrades"},
    "delete old history": {"operators/trim"},
    "throughput compared with rabbitmq": {"benchmarks"},
}


def build(builder: str, out: Path) -> None:
    """Run Sphinx as `make docs` does. A warning is an error."""
    command = [sys.executable, "-m", "sphinx", "-b", builder, "-c", "docs", "-W", "--keep-going", "--quiet"]
    done = subprocess.run([*command, ".", str(out)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    build("html", out)
    return out


@pytest.mark.long
def test_no_page_gives_a_warning(tmp_path: Path) -> None:
    build("dummy", tmp_path)


@pytest.mark.rare
def test_the_site_has_a_front_page_and_an_index_for_programs(site: Path) -> None:
    assert "A message queue whose queues can be rewound" in (site / "index.html").read_text()
    for line in (site / "llms.txt").read_text().splitlines():
        if line.startswith("- "):
            assert (site / line.partition("](")[2].partition(")")[0]).is_file(), line


@pytest.mark.rare
def test_the_search_finds_the_page_for_a_task(site: Path) -> None:
    command = [needed("node"), str(HERE / "ask.js"), str(site), *TASKS]
    answers = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    first = {task: json.loads(answer)[:3] for task, answer in zip(TASKS, answers, strict=True)}
    lost = {task: found for task, found in first.items() if not {f"docs/{page}" for page in TASKS[task]} & set(found)}
    assert not lost
