"""AMQP's data in history: a message's properties, field tables, and the arguments of declarations as JSON.

errors.py           `Malformed` for damaged bytes, `Unacceptable` for a value that is not allowed
properties.py       the properties of a message, as in a content header
tables.py           field tables, with the types of their values
json_arguments.py   arguments of declarations as JSON

No other package knows the layout of these bytes, and this one knows nothing of connections, HTTP or queues.
"""
