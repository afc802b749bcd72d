"""The number of examples of a property: few with `--tier quick`, else the number that the test gives."""

from hypothesis import settings

DEV, FULL = "dev", "full"
FEW = 20

settings.register_profile(DEV, max_examples=FEW, deadline=None)
settings.register_profile(FULL, deadline=None)


def examples(most: int) -> int:
    """The number of examples, for `@settings(max_examples=examples(300))`."""
    return rounds(most, min(most, FEW))


def rounds(most: int, quick: int) -> int:
    """The number of repetitions of a test: `quick` with `--tier quick`, else `most`."""
    return quick if settings.get_current_profile_name() == DEV else most
