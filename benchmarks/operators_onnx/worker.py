"""One worker process: reads names of cases from its input, writes a line of JSON for each."""

import json
import os
import sys

from tvm_fusion._tvm.ffi_speed import speed_up_ffi

from . import engines
from .cases import cases


def main() -> None:
    """Serve until the input ends; ``ready`` is the first line."""
    # What libraries print goes to the log; only verdicts go to the parent.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = getattr(engines, sys.argv[1])
    known = {case.name: case for case in cases()}
    import tvm_fusion  # noqa: F401  before the first case, whose time limit does not cover imports

    speed_up_ffi()
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        verdict, reason = engine(known[line.strip()])
        print(json.dumps([verdict, reason]), file=out, flush=True)


if __name__ == "__main__":
    main()
