"""Tests that are coroutines: a runner gives them what lives as long as they run, and pytest their fixtures.

on_server = run_by(run, given=1)     # run(test) awaits test(server)

@on_server
async def test_something(server: Server, tmp_path: Path) -> None: ...
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any

AsyncTest = Callable[..., Coroutine[Any, Any, None]]
Decorator = Callable[[AsyncTest], Callable[..., None]]


def run_by(runner: Callable[..., None], *fixtures: str, given: int) -> Decorator:
    """Return a decorator. `runner(test, *fixtures)` calls the test with the first `given` of its arguments."""

    def decorate(test: AsyncTest) -> Callable[..., None]:
        asked = list(signature(test).parameters)[given:]

        @wraps(test)
        def run_test(**values: Any) -> None:
            chosen = {name: values[name] for name in asked}
            runner(lambda *alive: test(*alive, **chosen), *(values[name] for name in fixtures))

        names = dict.fromkeys((*fixtures, *asked))
        run_test.__signature__ = Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in names])  # type: ignore[attr-defined]
        return run_test

    return decorate
