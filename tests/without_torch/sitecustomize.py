"""Hide PyTorch from a process that has this folder on its path: see ``tests/conftest.py``."""

import sys

sys.modules["torch"] = None
