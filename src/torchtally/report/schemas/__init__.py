"""The documents for programs: their names and versions, and what each holds.

vocabulary.toml   every key, with its unit and its meaning
vocabulary        that file, read
shapes            which keys a document has, and which of them may be null or absent
json_schema       a shape as JSON Schema (draft 2020-12)
"""

VERSIONS = {
    "run": 1,
    "view": 1,
    "table": 1,
    "diff": 1,
    "answer": 1,
    "chips": 1,
    "fit": 1,
    "model": 1,
    "audit": 1,
    "measurements": 1,
    "against": 1,
    "snapshot": 1,
    "bench": 1,
    "budget": 1,
    "sweep": 1,
    "tokens": 1,
    "continuation": 1,
    "formats": 1,
    "tensor": 1,
    "watch": 2,
    "limits": 1,
    "page": 1,
}
"""By name. A key that is removed or changes its meaning raises the version; a new one does not."""
