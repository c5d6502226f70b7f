"""What kernels for AMD GPUs take, by the clocks of their machine code: no device is there.

    count.py     compiles a group's kernels and interprets a few of their blocks: issue clocks by
                 kind, LDS, bytes, waits (``tests/emulator/amd``); registers of the code object
    model.py     from these counts and the data sheet's rates to microseconds
    sample.py    the groups of models of the zoo, with the features that claims tell
    loops.py      inner loops of GEMM and attention
    launches.py   launches of models, beside those of the same for an H100
    record.py, table.py     what was counted; the page

``python -m benchmarks.amd_clocks`` counts and renders.
"""

UNMEASURED = "no device"
