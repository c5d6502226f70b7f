"""The command line: keep what :mod:`.run` has written, and write the page.

python3 -m benchmarks.cpu_threads.run DIR        on the CPU that is measured
python -m benchmarks.cpu_threads RESULT.json
"""

import argparse
import json
from pathlib import Path

from .table import keep

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_threads", description=__doc__)
    parser.add_argument("result", type=Path, help="what came back")
    keep(json.loads(parser.parse_args().result.read_text()))
