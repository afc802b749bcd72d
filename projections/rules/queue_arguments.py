"""Checks the values of a queue's arguments, by the table of keys (projections/machine/rules/policy_keys.py).

The broker checks declarations with it (engine/broker/declarations.py), and Spark the candidates of `what-if`.
"""

from collections.abc import Container

from rewindmq.projections.machine.rules.legal_values import Problem
from rewindmq.projections.machine.rules.policy_keys import BY_ARGUMENT
from rewindmq.schemas.values import Argument


def argument_of(arguments: tuple[Argument, ...], name: str) -> Argument | None:
    """Return the argument of this name, of a queue, an exchange, a binding or a consumer; None: there is none."""
    return next((argument for argument in arguments if argument.name == name), None)


def value_problem(argument: Argument, given: Container[str], semantics: str) -> Problem:
    """Return the fault in an argument's type or value, as an Erlang term; None if there is none.

    `given`: the names of all arguments of the declaration."""
    problem = BY_ARGUMENT[argument.name].values_in(semantics).problem(argument)
    if problem is None and argument.name == "x-dead-letter-routing-key" and "x-dead-letter-exchange" not in given:
        return "routing_key_but_no_dlx_defined"
    return problem
