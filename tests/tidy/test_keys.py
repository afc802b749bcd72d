"""Every key that decides something is known to those who judge the machine: the naive model, the random histories, and
the audit (projections/machine/rules/policy_keys.py)."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

import pytest

from rewindmq.projections.machine.rules.policy_keys import BY_NAME, KEYS, Key
from rewindmq.projections.machine.rules.settings import QueueSettings
from tests.support.key_values import CHOSEN, drawn
from tests.tidy.references import sources, text_of

MODEL = ("tests/support/naive_model.py",)
# Seeded histories, and those that hypothesis makes for the model. Both also draw what tests/support/key_values.py says.
HISTORIES = (
    "tests/support/random_history.py",
    "tests/unit/machine/test_machine_model.py",
    "tests/unit/machine/test_machine_deduplication.py",
)
AUDIT = tuple(name for name in sources() if name.startswith("spark_replay/audit/"))
# Keys that a judge need not know, and the reason.
EXEMPT = {
    "model": {
        "dead-letter-routing-key": "the model books that a message was dead-lettered, and not whereto",
        "consumer-timeout": "the broker asks for it (engine/amqp/consumer_timeout.py), and not the fold",
        "queue-type": "it is the type of the event",
    },
    "histories": {
        "consumer-timeout": "the broker asks for it (engine/amqp/consumer_timeout.py), and not the fold",
        "queue-type": "it is the type of the event",
    },
    "audit": {
        "consumer-timeout": "the broker asks for it (engine/amqp/consumer_timeout.py), and not the fold",
        "queue-type": "it is the type of the event",
        "expires": "the audit books the end of a queue, and does not ask why it ended",
        "dead-letter-routing-key": "the audit books that a message was dead-lettered, and to which exchange",
        "dead-letter-strategy": "the audit follows messages, and not whether their letters were confirmed",
    },
}
Texts = Mapping[str, str]


def words_in(names: Iterable[str], texts: Texts) -> set[str]:
    """The constant texts in these files, and the attributes, each behind a dot."""
    found: set[str] = set()
    for name in names:
        for node in ast.walk(ast.parse(texts[name])):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Attribute):
                found.add(f".{node.attr}")
    return found


def strangers(keys: Iterable[Key], texts: Texts) -> list[str]:
    """A line for each key that a judge does not know."""
    keys = tuple(keys)
    known = {judge: words_in(names, texts) for judge, names in JUDGES.items()}
    known["histories"] |= {name for name, _, _ in drawn(keys)}
    lost = []
    for key in keys:
        if not key.decides or not (key.queues or key.merge):
            continue
        spelled = key.name.removeprefix("x-").replace("-", "_")  # as `arguments` and `policy` of the tests take it
        names = {
            "model": {f".{key.setting_name}"} if key.merge else {key.argument},
            "histories": {spelled, key.name, key.argument},
            "audit": {key.name, key.argument},
        }
        for judge, spellings in names.items():
            if not spellings & known[judge] and key.name not in EXEMPT[judge]:
                lost.append(f"{key.name}: {BEGIN_AT[judge]} does not know it ({judge})")
    return lost


BEGIN_AT = {"model": MODEL[0], "histories": HISTORIES[0], "audit": "spark_replay/audit/limits.py"}
JUDGES = {"model": MODEL, "histories": HISTORIES, "audit": AUDIT}
TEXTS = {name: text_of(name) for names in JUDGES.values() for name in names}


def test_every_key_has_its_judges() -> None:
    lost = strangers(KEYS, TEXTS)
    assert not lost, "\n".join(lost)


def test_every_setting_comes_from_a_key() -> None:
    """So a field of `QueueSettings` cannot be without judges."""
    of_keys = {key.setting_name for key in KEYS if key.merge}
    assert {field.name for field in fields(QueueSettings) if not field.name.endswith("_rule")} == of_keys


def test_no_exemption_is_stale() -> None:
    """Without the exemptions, exactly these keys have no judge."""
    without = {judge: dict[str, str]() for judge in EXEMPT}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "EXEMPT", without)
        lost = strangers(KEYS, TEXTS)
    found = {(line.partition(":")[0], line.rpartition("(")[2].removesuffix(")")) for line in lost}
    assert found == {(key, judge) for judge, keys in EXEMPT.items() for key in keys}


@pytest.mark.parametrize(
    ("judge", "word"),
    [
        ("model", ".max_length_bytes"),
        ("model", '"x-max-priority"'),
        ("histories", '"max_priority"'),
        ("histories", '"single_active_consumer"'),
        ("audit", '"overflow"'),
        ("audit", '"x-max-priority"'),
    ],
)
def test_a_key_that_a_judge_forgets_is_found(judge: str, word: str) -> None:
    quoted = word.startswith('"')
    texts = dict(TEXTS)
    for name in JUDGES[judge]:
        texts[name] = texts[name].replace(word, '"forgotten"' if quoted else ".forgotten")
        if judge == "audit" and quoted and not word.startswith('"x-'):
            texts[name] = texts[name].replace(f'"x-{word[1:]}', '"forgotten"')
    [line] = strangers(KEYS, texts)
    assert line.endswith(f"({judge})")
    assert line.partition(":")[0] == word.strip('."').removeprefix("x-").replace("_", "-")


def test_a_new_key_is_found_until_all_know_it() -> None:
    """The histories draw a key of policies at once."""
    new, alone = (replace(BY_NAME[name], name="first-delay") for name in ("max-length", "max-priority"))
    assert len(strangers((*KEYS, new), TEXTS)) == 2
    assert len(strangers((*KEYS, alone), TEXTS)) == 3
    assert not strangers((*KEYS, replace(new, decides=False)), TEXTS)


def test_values_of_histories_belong_to_keys() -> None:
    assert CHOSEN.keys() <= {key.name for key in KEYS if key.merge and key.decides}
