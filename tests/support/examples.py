"""The number of examples of a property, and how hypothesis looks for them.

--tier quick    few examples, the same ones in every run; a failure is made smaller for some seconds only
otherwise       the number that the test gives, others in every run; a failure prints the line that brings it back
"""

from hypothesis import Phase, settings
from hypothesis.internal.conjecture import engine

DEV, FULL = "dev", "full"
FEW = 20
SHRINKING_SECONDS = 10

settings.register_profile(
    DEV,
    max_examples=FEW,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
settings.register_profile(FULL, deadline=None, print_blob=True)


def load(profile: str) -> None:
    """Use a profile for every property that is imported from now on."""
    settings.load_profile(profile)
    if profile == DEV:
        engine.MAX_SHRINKING_SECONDS = SHRINKING_SECONDS  # of five minutes, and no setting says so


def examples(most: int) -> int:
    """The number of examples, for `@settings(max_examples=examples(300))`."""
    return rounds(most, min(most, FEW))


def rounds(most: int, quick: int) -> int:
    """The number of repetitions of a test: `quick` with `--tier quick`, else `most`."""
    return quick if settings.get_current_profile_name() == DEV else most
