"""The documents for programs as types: JSON, JSON Schema and the page of keys come from them.

A key is a field. Its type has the unit, and one of the fields that have its name its meaning. A
field takes the attribute of its name of what the document is about (`report/keys.py`).

columns    the columns of tables, as keys of their rows
schema     JSON Schema of a document, and its keys as tables
...        one file for a document or a subject of several
"""
