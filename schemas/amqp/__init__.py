"""AMQP's data as history keeps it: a message's properties, field tables, and the arguments of declarations as JSON.

errors.py           what is raised: `Malformed` for damaged bytes, `Unacceptable` for a value that is not allowed
properties.py       the properties of a message, as they stand in a content header
tables.py           field tables, with the types of their values
json_arguments.py   arguments of declarations as JSON

This is the only place that knows the layout of these bytes. It knows nothing of connections, HTTP or queues.
"""
