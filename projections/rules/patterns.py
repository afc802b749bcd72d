"""Users' patterns: regular expressions in PCRE2's dialect, with a limit of steps for each match.

    of policies and permissions, of filters over HTTP, of what-if candidates     all are compiled and matched here

Rules of this file
- A match takes at most `STEPS` steps, and a bounded heap. PCRE2's interpreter counts steps, not time, so a match that
  reaches the limit does so on every machine. (The count of PCRE2's JIT depends on the processor, so it is off. The
  library includes its own PCRE2, and its version is pinned.)
- PCRE2 counts anew at each position where a search begins. So a search is one match of `(?s:.*?)(?:pattern)` at the
  beginning of the name, and the limit applies to all of it. Two constructs have no meaning in such a group and are
  refused: verbs at the start of a pattern, which could lift the limit, and recursion into the whole pattern.
- A new pattern is first tried on hard names (`refusal`): `(a+)+$` needs 2^24 steps to find nothing in 24 times `a` and
  an exclamation mark. If a match reaches the limit later, the pattern is not found, and a warning says so once.
- A pattern that is already in the history cannot be refused. A hard one matches only within `STEPS_OF_HARD` steps, so
  that a start with many queues is not delayed. A pattern that PCRE2 cannot compile is never found.
"""

import logging
import re
from functools import lru_cache
from itertools import islice, product

import pcre2

STEPS = 100_000  # 1 to 3 ms
STEPS_OF_HARD = 1_000
HEAP_KIBIBYTES = 4_096
DEPTH = 20_000
LONGEST = 4_096  # characters of a pattern
GROUPS_MOST = 100  # capturing groups: each makes every step more expensive
LOOKED_AT = 1_024  # characters of a name; AMQP's have at most 255 bytes
SHOWN = 80  # characters of a pattern in a message

NOT_TAKEN = {
    "(?R)": "recursion into the whole pattern",
    "(?0)": "recursion into the whole pattern",
    r"\g<0>": "recursion into the whole pattern",
    r"\g'0'": "recursion into the whole pattern",
    r"\x{": r"\x{..} (write \uXXXX)",  # otherwise it would mean the letter x
}
COMMON_UNITS = ("a", "A", "0", " ", ".", "-", "_", "/", "ab", "a.", "é")
ENDS = ("", "!", "!\n!")
REPEATED = 24
UNITS_MOST = 24
STEPS_TO_SHOW = 20_000  # this many steps in 24 repetitions suggest millions in a whole name

_WORD = re.compile(r"\w{2,16}")
_FAILED = re.compile(r"compilation failed at position (\d+); ")

logger = logging.getLogger("rewindmq.patterns")


class BadPattern(ValueError):
    """A text that is not a valid pattern: the reason, and the position in the text."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(f"{reason} (at position {position})" if position else reason)
        self.reason = reason
        self.position = position


class TooManySteps(Exception):
    """A match reached the limit of steps."""


class Pattern:
    """A compiled pattern, whose searches take a limited number of steps."""

    def __init__(self, text: str, ignore_case: bool = False, steps: int = STEPS, shortcuts: bool = True) -> None:
        """Compile a pattern.

        Without `shortcuts` the matcher does not first check the name for a character with which every match ends.
        Raises BadPattern for a text that PCRE2 does not compile, and for one that is too long."""
        if len(text) > LONGEST:
            raise BadPattern(f"it has {len(text)} characters, more than {LONGEST}")
        self.text = text
        self._warned = False
        flags = pcre2.IGNORECASE if ignore_case else pcre2.NOFLAG
        _compiled(text, flags)  # alone first: so an error has its position, and no bracket of the text closes a group
        limits = f"(*LIMIT_MATCH={steps})(*LIMIT_DEPTH={DEPTH})(*LIMIT_HEAP={HEAP_KIBIBYTES})"
        search = f"{limits}{'' if shortcuts else '(*NO_START_OPT)'}(?s:.*?)(?:{text}"
        try:
            self._code = _compiled(f"{search})", flags)
        except BadPattern:
            try:
                self._code = _compiled(f"{search}\n)", flags)  # the text may end with a comment: (?x)a # comment
            except BadPattern:
                raise BadPattern("it cannot stand in a group: it begins with a (*VERB), or \\Q has no \\E") from None
        if self._code.groups > GROUPS_MOST:
            raise BadPattern(f"it has {self._code.groups} groups that capture, more than {GROUPS_MOST}")

    def search(self, name: str) -> bool:
        """Return True if the pattern is found in the name.

        Raises TooManySteps."""
        try:
            return self._code.match(name[:LOOKED_AT]) is not None
        except pcre2.LibraryError as error:  # the limit of steps, depth or heap
            raise TooManySteps(f"{shown(self.text)}: {error}") from None
        except UnicodeEncodeError:  # half a surrogate pair is not text
            return False

    def found_in(self, name: str) -> bool:
        """Return True if the pattern is found in the name.

        A pattern that takes too many steps is not found, and the first time a warning says so."""
        try:
            return self.search(name)
        except TooManySteps as error:
            if not self._warned:
                self._warned = True
                logger.warning("pattern %s is not found in %s, and in others like it", error, shown(name))
            return False


class _Never(Pattern):
    """A pattern of the history that PCRE2 cannot compile; it is never found."""

    def __init__(self, text: str) -> None:
        self.text = text

    def search(self, name: str) -> bool:
        """Find nothing."""
        return False


def refusal(text: str) -> BadPattern | None:
    """Return the reason why a pattern cannot be set; None if it can."""
    try:
        hard = hard_name(text)
    except BadPattern as error:
        return error
    if hard is None:
        return None
    return BadPattern(f"it takes too many steps to find nothing in names such as {shown(hard)}")


def problem_in_history(text: str) -> str | None:
    """Return the reason why an event with the pattern is nonsense; None if it is not."""
    try:
        Pattern(text)
    except BadPattern as error:
        return str(error)
    return None


@lru_cache(2_048)
def in_history(text: str) -> Pattern:
    """Return the pattern of an event."""
    try:
        return Pattern(text, steps=STEPS if hard_name(text) is None else STEPS_OF_HARD)
    except BadPattern as error:
        logger.warning("pattern %s is never found: %s", shown(text), error)
        return _Never(text)


def hard_name(text: str) -> str | None:
    """Return a likely name in which a search for the pattern reaches the limit; None if none of those tried does.

    Raises BadPattern."""
    pattern = Pattern(text, steps=STEPS_TO_SHOW, shortcuts=False)
    for unit, end in product(_units(text), ENDS):
        name = unit * REPEATED + end
        try:
            pattern.search(name)
        except TooManySteps:
            return name
    return None


def shown(text: str) -> str:
    """Return external text as a message may show it: escaped and cut."""
    return repr(text) if len(text) <= SHOWN else repr(text[:SHOWN]) + "..."


def _compiled(text: str, flags: pcre2.RegexFlag) -> pcre2.Pattern:
    for construct, what in NOT_TAKEN.items():
        if construct in text:
            raise BadPattern(f"{what} is not taken", text.index(construct))
    try:
        return pcre2.compile(text, flags, jit=False)
    except pcre2.PatternError as error:
        found = _FAILED.match(str(error))
        raise BadPattern(_FAILED.sub("", str(error)), int(found[1]) if found else 0) from None
    except UnicodeEncodeError:
        raise BadPattern("it holds half a surrogate pair") from None


def _units(text: str) -> list[str]:
    """Return pieces for hard names: characters and words of the pattern itself, and the most common pieces of names."""
    letters = "".join(dict.fromkeys(each for each in text if each.isalnum()))
    own = (*dict.fromkeys(text), *_WORD.findall(text), letters)
    return list(islice(dict.fromkeys((*COMMON_UNITS, *own)), UNITS_MOST))
