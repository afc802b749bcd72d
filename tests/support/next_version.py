"""The machine version behind today's, for tests of what happens when there is one. Its rules are today's."""

import pytest

from rewindmq.projections.machine.rules.versions import MACHINE_VERSION

NEXT = MACHINE_VERSION + 1


def know_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fold know the next version."""
    for module in ("machine", "serialization.load"):
        monkeypatch.setattr(f"rewindmq.projections.machine.{module}.MACHINE_VERSION", NEXT)
