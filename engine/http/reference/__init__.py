"""The reference of the HTTP API: what each operation takes and answers, as an OpenAPI document.

operation.py   the declaration of an operation, beside its handler        document.py   the document made of them
"""
