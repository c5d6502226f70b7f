"""The command line: keep what :mod:`.run` has written, and write the page.

python3 -m benchmarks.cpu_half.run DIR        on the CPU that is measured
python -m benchmarks.cpu_half RESULT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .table import keep

if __name__ == "__main__":
    keep(json.loads(Path(sys.argv[1]).read_text()))
