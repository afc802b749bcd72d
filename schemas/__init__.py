"""The language of history: the events, and their bytes. Imports nothing else of RewindMQ.

events.py                    the events of queues          avsc/      today's Avro schema of each
metadata_events.py, access_events.py, placement_events.py, operator_events.py, clock_events.py    the other events
values.py                    values that events carry     amqp/      properties, field tables, arguments
codec.py                     a record <-> an event (hot)  released/  every schema that a log may hold
registry.py, evolution.py    the schema of a record, and records of older schemas brought up to date
single_object.py             the beginning of each record walk.py    the ends of records in a block of a file
private_fields.py            fields that a copy may leave out             reasons.py   why somebody did it
older_schemas.py             records under older schemas, written and brought up to date
service_records.py           records of logs to which services append
own_form.py                  parts of a record as our encoder writes them
shapes.py                    any value of any schema
producer.py                  for services that publish by appending to Kafka
formats.py                   versions of stored forms, and the refusal of other versions
json_values.py, views.py, json_schemas.py   JSON: its values, objects that are shown, and their schemas
pickles.py, inheritance.py   what the compiled build asks of classes
"""
