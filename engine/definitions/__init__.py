"""RabbitMQ's definitions: all that a broker has besides messages, as one JSON document.

document.py   makes the document        load.py   judges a document as a whole, then carries it out
shapes.py     types of its entries
"""
