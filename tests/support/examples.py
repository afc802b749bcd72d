"""Says with how many examples a property is tried: few with `--tier quick`, else as many as it asks for."""

from hypothesis import settings

DEV, FULL = "dev", "full"
FEW = 20

settings.register_profile(DEV, max_examples=FEW, deadline=None)
settings.register_profile(FULL, deadline=None)


def examples(most: int) -> int:
    """For `@settings(max_examples=examples(300))`."""
    return rounds(most, min(most, FEW))


def rounds(most: int, quick: int) -> int:
    """How often a test repeats itself: `quick` times with `--tier quick`, else `most` times."""
    return quick if settings.get_current_profile_name() == DEV else most
