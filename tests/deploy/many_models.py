"""Compile and load models one after the other; prints what the process then holds, as JSON."""

import ctypes
import gc
import json
import os
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto
from tiny_models import onnx_model

import tvm_fusion

ROWS, COLUMNS = 512, 512  # of float32: a weight is of 1 MiB


def model(number):
    shape = [ROWS, COLUMNS + number]  # another size for each, so that no pool has it already
    return onnx_model(
        [("Mul", ["x", "w"], ["product"]), ("Softmax", ["product"], ["y"])],
        [("x", TensorProto.FLOAT, shape)],
        [("y", TensorProto.FLOAT, shape)],
        {"w": np.random.default_rng(number).standard_normal(shape).astype("float32")},
    )


def held():
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # free memory that the allocator keeps is nobody's
    own = Path("/proc/self/smaps_rollup").read_text().split("Private_Dirty:")[1]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "kib": int(own.split()[0]),
    }


def use(folder, number):
    executable = tvm_fusion.load(folder)
    x = np.ones((ROWS, COLUMNS + number), "float32")
    np.testing.assert_allclose(executable.run({"x": x})["y"].sum(-1), 1, rtol=1e-4)
    return executable


def main(folder, count):
    found = []
    for number in range(count):
        use(tvm_fusion.compile(model(number)).export(folder / str(number)), number)
        found.append(held())
    kept = [use(folder / str(number), number) for number in range(count)]
    loaded = held()
    del kept
    print(json.dumps({"one_by_one": found, "all_loaded": loaded, "none_loaded": held()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
