"""Mutation testing: change the product at one place, and see whether a quick unit test fails.

    make mutants ROOM=projections/machine SAMPLE=80 SEED=1

It draws some of the mutants of a room, and runs for each the quick tests of tests/unit that run the changed line, on
the pure build and a copy of the checkout. Each survivor is printed as a diff.

The operators are mutmut's, without those that change a text or make what the type checker finds (None for a value, an
argument less). Two more are here: a condition that never or always holds, and a statement that is left out.
Annotations, decorators, assertions, errors and logs stay as they are.

The first run installs mutmut and measures, in some minutes, which test runs which line. The temporary directory keeps
that for each version of the product; later only changed test files are measured again.
"""

import argparse
import difflib
import gc
import hashlib
import importlib
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(tempfile.gettempdir(), f"rewindmq-mutants-{os.getuid()}")
PRODUCT = ("projections", "engine", "schemas", "spark_replay", "rewindmq")
LEFT_OUT = (".git", ".venv", "target", "compiled", ".mypy_cache", ".ruff_cache", ".hypothesis", "node_modules")
TOOLS = ("mutmut==3.8.1", "libcst==1.9.0", "coverage==7.17.5")  # not in the lock: mutmut needs a user interface
OPERATORS = (
    "number name augmented_assignment remove_unary_ops symmetric_string_methods_swap keywords swap_op match if_exp "
    "unsymmetrical_string_methods_swap"
)
LOGGERS = ("log", "logger", "logging")
# Imported once, before processes are forked.
OTHERS = "fastavro httpx2 hypothesis joserfc.jwt pcre2 rocksdict starlette.applications uvicorn uvloop xdist"
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--assert=plain", "--tier", "quick")
NO_TESTS = 5  # pytest's exit code


class Mutant(NamedTuple):
    """A change of one place. `statement`: the line where its statement begins. `at_import`: it is not in a function."""

    path: str
    module: Any
    node: Any
    replacement: Any
    line: int
    statement: int
    at_import: bool

    def source(self) -> str:
        return str(self.module.deep_replace(self.node, self.replacement).code)

    def diff(self) -> str:
        old, new = self.module.code.splitlines(True), self.source().splitlines(True)
        return "".join(difflib.unified_diff(old, new, self.path, self.path, n=2))


class Ran(NamedTuple):
    """The seconds of CPU that a measured test took; for each file a number whose bit N is set if line N ran."""

    seconds: float
    lines: dict[str, int]


class Job(NamedTuple):
    """A run of tests: those that are `chosen` of some files, at most `limit` seconds of CPU.

    `changes`: texts of changed files by their paths. Without one, `output` gets what each test runs."""

    files: Collection[str]
    changes: dict[str, str]
    chosen: Collection[str]
    limit: float
    output: Path


class Tests:
    """A plugin of pytest: only the tests that are `chosen`, in this order; or all, and what each of them runs."""

    def __init__(self, chosen: Collection[str], coverage: Any = None) -> None:
        self.ranks = {test: rank for rank, test in enumerate(chosen)}
        self.coverage = coverage
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.ranks:
            chosen = [item for item in items if item.nodeid in self.ranks]
            items[:] = sorted(chosen, key=lambda item: self.ranks[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began = time.process_time()
        if self.coverage:
            self.coverage.switch_context(item.nodeid)
        result = yield
        self.seconds[item.nodeid] = time.process_time() - began
        return result

    def ran(self, root: Path) -> dict[str, Ran]:
        tests = {test: Ran(seconds, {}) for test, seconds in self.seconds.items()}
        data = self.coverage.get_data()
        for file in data.measured_files():
            path = str(Path(file).relative_to(root))
            for line, contexts in data.contexts_by_lineno(file).items():
                for test in contexts:
                    if test in tests:  # and not what runs at an import
                        tests[test].lines[path] = tests[test].lines.get(path, 0) | 1 << line
        return tests


def mutants_of(root: Path, room: str) -> list[Mutant]:
    """Return every mutant of a folder, or of a file, always in the same order."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.mutators import mutation_operators

    wanted = {f"operator_{name}" for name in OPERATORS.split()}
    operators = [(kind, change) for kind, change in mutation_operators if change.__name__ in wanted]

    def is_kept(node: Any) -> bool:
        call = node.value if isinstance(node, cst.Expr) else node
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
            return isinstance(call.func.value, cst.Name) and call.func.value.value in LOGGERS
        if isinstance(node, cst.If) and isinstance(node.test, cst.Name):
            return bool(node.test.value == "TYPE_CHECKING")
        return isinstance(node, cst.Annotation | cst.Assert | cst.Decorator | cst.Raise)

    def is_removable(node: Any) -> bool:
        if isinstance(node, cst.Assign):  # without a name, all that follows would fail
            return isinstance(node.targets[0].target, cst.Attribute | cst.Subscript)
        if isinstance(node, cst.Return):
            return node.value is None
        return isinstance(node, cst.AugAssign | cst.Del) or (
            isinstance(node, cst.Expr) and not isinstance(node.value, cst.BaseString)
        )

    def changes(node: Any) -> Iterator[tuple[Any, Any]]:
        for kind, change in operators:
            if isinstance(node, kind):
                yield from ((node, changed) for changed in change(node))
        if isinstance(node, cst.If):
            test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            for operator, constant in ((cst.And(), "False"), (cst.Or(), "True")):
                yield node.test, cst.BooleanOperation(test, operator, cst.Name(constant))
        if is_removable(node):
            yield node, cst.Pass()

    def walk(mutant: Mutant, positions: Any, node: Any) -> Iterator[Mutant]:
        if is_kept(node):
            return
        if node in positions:
            mutant = mutant._replace(line=positions[node].start.line)
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            mutant = mutant._replace(statement=mutant.line)
        for place, replacement in changes(node):
            yield mutant._replace(node=place, replacement=replacement)
        for child in node.children:
            runs = isinstance(node, cst.FunctionDef) and child is node.body
            yield from walk(mutant._replace(at_import=False) if runs else mutant, positions, child)

    found: list[Mutant] = []
    for file in _files(root / room):
        wrapper = MetadataWrapper(cst.parse_module(file.read_text()))
        mutant = Mutant(str(file.relative_to(root)), wrapper.module, wrapper.module, None, 1, 1, True)
        found += walk(mutant, wrapper.resolve(PositionProvider), wrapper.module)
    return found


def run(copies: list[Path], jobs: dict[int, Job]) -> Iterator[tuple[int, int]]:
    """Run each job in a process, in a free copy. Yield its number and pytest's exit code (a signal's is negative)."""
    free, waiting = copies.copy(), list(jobs.items())[::-1]
    running: dict[int, tuple[Any, Path, int, float]] = {}
    while waiting or running:
        while free and waiting:
            (number, job), copy = waiting.pop(), free.pop()
            for path, text in job.changes.items():
                os.rename(copy / path, copy / f"{path}.kept")  # with the time that its bytecode has
                (copy / path).write_text(text)
            process = multiprocessing.get_context("fork").Process(target=_run, args=(copy, job))
            process.start()
            resource.prlimit(process.pid or 0, resource.RLIMIT_CPU, (int(job.limit), int(job.limit) + 1))
            running[process.sentinel] = process, copy, number, time.monotonic() + 10 * job.limit
        for sentinel in connection.wait(list(running), timeout=5):
            assert isinstance(sentinel, int)
            ended, copy, number, _ = running.pop(sentinel)
            ended.join()
            for path in jobs[number].changes:
                os.replace(copy / f"{path}.kept", copy / path)
            free.append(copy)
            yield number, ended.exitcode
        for overdue in (process for process, _, _, deadline in running.values() if time.monotonic() > deadline):
            overdue.kill()


def _run(copy: Path, job: Job) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("rewindmq", "tests")]:
        del sys.modules[name]
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = bool(job.changes)
    os.chdir(copy)
    sink = os.open(f"{job.output}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    plugin = Tests(job.chosen)
    if not job.changes:
        from coverage import Coverage

        plugin.coverage = Coverage(data_file=None, source=[str(copy / part) for part in PRODUCT])
        plugin.coverage.start()
    code = pytest.main([*OPTIONS, *job.files], plugins=[plugin])
    if plugin.coverage:
        plugin.coverage.stop()
        job.output.write_bytes(pickle.dumps(plugin.ran(copy.resolve())))
    os._exit(code)


def measured(copies: list[Path], wanted: list[str]) -> dict[str, Ran]:
    """Return what each quick test of some folders or files runs. Measure the files whose tests are not known yet."""
    cache = CACHE / _stamp(ROOT / part for part in PRODUCT)
    cache.mkdir(exist_ok=True)
    found = sorted({file for path in wanted for file in _files(ROOT / path, "test_*.py")})
    files = {str(file.relative_to(ROOT)): cache / _stamp([file]) for file in found}
    missing = [file for file, kept in files.items() if not kept.exists()]
    print(f"measuring {len(missing)} files of tests", flush=True)
    shares = [missing[at :: len(copies)] for at in range(len(copies)) if missing[at:]]
    jobs = {at: Job(share, {}, (), 3600, copies[at].with_suffix(".ran")) for at, share in enumerate(shares)}
    for number, code in run(copies, jobs):
        output = jobs[number].output
        if code not in (0, NO_TESTS):
            sys.exit("a test fails without a mutant:\n" + Path(f"{output}.txt").read_text())
        tests: dict[str, Ran] = pickle.loads(output.read_bytes())
        for file in jobs[number].files:
            of_file = {test: ran for test, ran in tests.items() if test.partition("::")[0] == file}
            files[file].write_bytes(pickle.dumps(of_file))
    return {test: ran for kept in files.values() for test, ran in pickle.loads(kept.read_bytes()).items()}


def _stamp(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        for file in _files(path):
            digest.update(f"{file} ".encode() + file.read_bytes())
    return digest.hexdigest()[:20]


def _files(path: Path, pattern: str = "*.py") -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob(pattern))


def chosen_for(mutant: Mutant, tests: dict[str, Ran], most: float) -> list[str]:
    """Return the tests that run a mutant's line, the fastest first, as long as they take at most `most` seconds in all.

    Of a line that runs at an import: the tests that run anything in its file, or else all."""
    of_file = {test: ran.lines[mutant.path] for test, ran in tests.items() if mutant.path in ran.lines}
    found: Iterable[str] = ()
    for line in (mutant.line, mutant.statement):
        found = found or [test for test, lines in of_file.items() if lines >> line & 1]
    if mutant.at_import:
        found = found or of_file or tests
    chosen: list[str] = []
    together = 0.0
    for test in sorted(found, key=lambda test: tests[test].seconds):
        together += tests[test].seconds
        if together <= most or not chosen:
            chosen.append(test)
    return chosen


def job_of(mutant: Mutant, tests: dict[str, Ran], chosen: list[str], output: Path) -> Job:
    files = sorted({test.partition("::")[0] for test in chosen})
    limit = 15 + 2 * sum(tests[test].seconds for test in chosen)  # an endless loop ends there, and counts as killed
    return Job(files, {mutant.path: mutant.source()}, chosen, limit, output)


def install() -> None:
    """Install the tools once, in a directory that only this program imports from."""
    tools = CACHE / hashlib.sha256(" ".join(TOOLS).encode()).hexdigest()[:20]
    if not tools.exists():
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
        subprocess.run([*pip, "--target", f"{tools}.new", *TOOLS], check=True)
        Path(f"{tools}.new").rename(tools)
    sys.path.append(str(tools))
    for name in OTHERS.split():
        importlib.import_module(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("room", help="a folder or a file of the product")
    parser.add_argument("--sample", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", help="only these of the sample, by their numbers")
    parser.add_argument("--tests", nargs="+", default=["tests/unit"], help="the folders or files of the tests")
    parser.add_argument("--seconds", type=float, default=20, help="the most CPU of the tests of a mutant")
    parser.add_argument("--processes", type=int, default=2, help="the number of mutants at a time")
    asked = parser.parse_args()
    os.environ["REWINDMQ_PURE"] = "1"
    CACHE.mkdir(exist_ok=True, mode=0o700)
    install()
    with tempfile.TemporaryDirectory() as directory:
        copies = [Path(directory, f"copy-{number}") for number in range(asked.processes)]
        for copy in copies:
            shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        tests = measured(copies, asked.tests)
        listed = mutants_of(ROOT, asked.room)
        drawn = random.Random(asked.seed).sample(listed, min(asked.sample, len(listed)))
        numbers = asked.only or range(len(drawn))
        chosen = {number: chosen_for(drawn[number], tests, asked.seconds) for number in numbers}
        reasons = {number: "no test runs this line" for number, of_mutant in chosen.items() if not of_mutant}
        jobs = {
            number: job_of(drawn[number], tests, of_mutant, Path(directory, str(number)))
            for number, of_mutant in chosen.items()
            if of_mutant
        }
        gc.freeze()  # a collection in a forked process would copy the memory of all mutants
        for number, code in run(copies, jobs):
            assert code != NO_TESTS, f"pytest found none of {chosen[number]}"
            if code == 0:
                reasons[number] = f"{len(chosen[number])} tests pass"
            print(f"mutant {number}: {reasons.get(number, 'killed')}", flush=True)
    for number, reason in sorted(reasons.items()):
        print(f"\n{number}, line {drawn[number].line}: {reason}\n{drawn[number].diff()}")
    killed = len(chosen) - len(reasons)
    print(f"{asked.room}, seed {asked.seed}: {killed} of {len(chosen)} mutants killed; there are {len(listed)}")


if __name__ == "__main__":
    main()
