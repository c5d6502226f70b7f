"""Element types of generated graphs; the import teaches numpy bfloat16."""

import ml_dtypes  # noqa: F401

FLOATS = ("float16", "bfloat16", "float32")
HALVES = ("float16", "bfloat16")
