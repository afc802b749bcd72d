"""Patterns from users: what is refused, what a match may cost, and what the history's own match."""

import logging
import re
import time

import pytest

from rewindmq.projections.rules.patterns import (
    GROUPS_MOST,
    LONGEST,
    BadPattern,
    Pattern,
    TooManySteps,
    in_history,
    problem_in_history,
    refusal,
)

# Each of them held the broker up for seconds, or for ever, on a name of 30 or 255 bytes.
HARD = (
    "^(.|.|.|.)*X",
    "(a+)+$",
    "^(a|aa)+$",
    "(ab|abab)+c",
    r"(\w+\s?)*$",
    "^(.+)+$",
    "^(.*)*$",
    r"([a-z]+)*\.x",
    "(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)x",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "(x+x+)+y",
    r"^(\d+)*\.dlq$",
    r"(?:(?:-+)+)+q",
)
# What people write (rabbitmq.com's guides among it).
PLAIN = (
    "",
    ".*",
    "^amq\\.",
    r"^(?!amq\.).*",
    "^orders$",
    r"^two-messages",
    r"^(?:orders|bills)\.[a-z0-9-]+\.v[0-9]+$",
    ".*-.*-.*-x",
    r"^[^.]+\.[^.]+\.retry$",
    r"(?i)^ha\.",
    r"^{username}-.*",
    r"\.dlq$",
    "^(a|b)-(c|d)$",
    "(?x) a # b",
    r"^\Qamq.gen\E",
    "^[[:alpha:]]+$",
    r"^\w{1,20}$",
    "^.*?tenant-[0-9]+.*$",
    r"(?=.*a)(?=.*b).*",
    "x++y",
    "(?>a|b)c",
)


@pytest.mark.parametrize("text", HARD)
def test_what_takes_too_many_steps_is_refused_when_it_is_set(text: str) -> None:
    wrong = refusal(text)
    assert wrong is not None
    assert "too many steps to find nothing in names such as '" in wrong.reason


@pytest.mark.parametrize("text", PLAIN)
def test_what_people_write_is_taken(text: str) -> None:
    assert refusal(text) is None
    for name in ("orders", "a" * 255, "tenant-7.orders.v1", "-" * 255):
        Pattern(text).search(name)


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("(", "missing closing parenthesis", 1),
        ("a)", "unmatched closing parenthesis", 1),
        ("a)|(?:b", "unmatched closing parenthesis", 1),
        ("[z-a]", "range out of order in character class", 3),
        ("a{99999999999}", "number too big in {} quantifier", 13),
        ("(" * 1_000, "parentheses are too deeply nested", 251),
        ("x" * (LONGEST + 1), f"it has {LONGEST + 1} characters, more than {LONGEST}", 0),
        ("(a)" * (GROUPS_MOST + 1), "it has 101 groups that capture, more than 100", 0),
        ("(*LIMIT_MATCH=4000000000)(a+)+$", "it cannot stand in a group", 0),
        ("(*UTF)a", "it cannot stand in a group", 0),
        ("a(?R)?b", "recursion into the whole pattern is not taken", 1),
        (r"\x{41}", r"\x{..} (write \uXXXX) is not taken", 0),
        ("\udc80", "it holds half a surrogate pair", 0),
        ("((a{1,100}){1,100}){1,100}", "regular expression is too large", 0),
    ],
)
def test_what_is_no_pattern_is_refused_with_its_reason(text: str, reason: str, position: int) -> None:
    wrong = refusal(text)
    assert wrong is not None
    assert wrong.reason.startswith(reason)
    assert abs(wrong.position - position) <= 1


def test_the_limit_counts_for_the_whole_search_and_not_for_each_place_where_it_begins() -> None:
    """Each place alone would take 16,000 steps, and there are 255."""
    pattern = Pattern("(a|b){0,13}(a|aa){0,8}[cd]", shortcuts=False)
    with pytest.raises(TooManySteps):
        pattern.search("a" * 255)
    assert Pattern(pattern.text, shortcuts=False).search("a" * 10 + "c")


def test_the_steps_are_the_same_on_every_machine() -> None:
    """A pattern that needs nearly all steps there are: a matcher that counts otherwise would decide otherwise."""
    needed = {
        (text, name): next(steps for steps in range(10_000) if _found(Pattern(text, steps=steps), name))
        for text, name in (("(?:(a*)(a*)b|a)$", "a" * 20 + "b" + "a" * 20), ("x|(a|ab)*c", "ab" * 8 + "x"), ("^q", "q"))
    }
    assert list(needed.values()) == [1_006, 300, 3]


def _found(pattern: Pattern, name: str) -> bool:
    try:
        return pattern.search(name)
    except TooManySteps:
        return False


def test_later_a_name_that_is_too_hard_is_not_found_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    pattern = Pattern("^(\\p{Greek}+)+$")
    assert refusal(pattern.text) is None, "hard names for it are not among those that are tried"
    with caplog.at_level(logging.WARNING):
        assert not pattern.found_in("α" * 100 + "\n!")
        assert not pattern.found_in("β" * 100 + "\n!")
        assert pattern.found_in("α" * 100)
    [told] = caplog.messages
    assert "'^(\\\\p{Greek}+)+$'" in told
    assert "\n" not in told


@pytest.mark.parametrize("text", HARD)
def test_a_hard_pattern_of_the_history_matches_easy_names_and_holds_nobody_up(text: str) -> None:
    pattern = in_history(text)
    assert pattern.found_in("") == (re.search(text, "") is not None)
    began = time.process_time()
    for number in range(1_000):
        pattern.found_in("a" * 240 + f"-{number}!")
    assert time.process_time() - began < 10, "with the full limit it takes minutes, without any it never ends"


def test_a_pattern_of_the_history_that_pcre2_cannot_compile_is_never_found(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not in_history("(?u)q").found_in("q")
    assert "pattern '(?u)q' is never found: unrecognized character after (?" in caplog.text


def test_patterns_are_pcre2s() -> None:
    for text in ("^[[:alpha:]]+$", r"^\Qa.b\E$", r"^\h$"):
        assert problem_in_history(text) is None
    assert in_history("^[[:alpha:]]$").found_in("q")
    assert "unrecognized character after (?" in str(problem_in_history("(?u)q"))
    assert "characters, more than" in str(problem_in_history("x" * 5_000))


def test_names_that_are_no_text_are_not_found() -> None:
    assert not Pattern(".*").search("\udc80")
    with pytest.raises(BadPattern):
        Pattern("\udc80")
