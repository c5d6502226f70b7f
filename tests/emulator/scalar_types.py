"""Types of numbers: by their names in TIR and in PTX, and what tensor cores make of them."""

import functools

import ml_dtypes
import numpy as np

WITHOUT_NUMPY = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
PTX_TYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "s8": "int8",
    "u8": "uint8",
    "tf32": "float32",
}
TYPES = "|".join(PTX_TYPES)  # of operands


@functools.cache
def scalar_type(dtype):
    """The numpy type of an element."""
    name = str(dtype).split("x")[0]
    return np.dtype(getattr(ml_dtypes, name) if name in WITHOUT_NUMPY else name)


def multiplied(values):
    """What tensor cores multiply, in a type that holds products: of float32 10 bits behind 1."""
    if values.dtype.kind in "iu":
        return values.astype("int64")
    if values.dtype.itemsize == 4:
        return (np.ascontiguousarray(values).view("uint32") & 0xFFFFE000).view("float32")
    return values.astype("float32")
