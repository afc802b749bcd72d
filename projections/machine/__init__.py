"""The queue machine, which derives the state of queues from the events of one log partition. Read machine.py first.

machine.py   the door, `apply`, and the table of handlers     events/   the handlers     rules/   rules that they share
state.py     the state of a partition                         data/     queues, orders of messages, effects
serialization/, validation.py, describe.py                    the state as bytes; its invariants; as text
"""
