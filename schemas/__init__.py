"""The language of history: the events, and their bytes. Imports nothing else of RewindMQ.

events.py, clock_events.py   the events, as classes       avsc/      today's Avro schema of each
codec.py                     a record <-> an event (hot)  released/  every schema that a log may hold
registry.py, evolution.py    which schema a record has, and records of older schemas brought up to date
single_object.py             how each record begins       walk.py    where records end in a block of a file
private_fields.py            fields that a copy may leave out
older_schemas.py             records under older schemas, written and brought up to date
service_records.py           records of logs to which services append
own_form.py                  parts of a record as our encoder writes them
shapes.py                    any value of any schema      properties.py   a message's properties, checked
producer.py                  for services that publish by appending to Kafka
"""
