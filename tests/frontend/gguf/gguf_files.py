"""GGUF files of drawn weights."""

import gguf
import numpy as np

from tvm_fusion.frontend.gguf.formats import FORMATS


def drawn_rows(kind, rows, columns, rng):
    """Bytes of a tensor of blocks: drawn, but for scales, which are finite."""
    form = FORMATS[kind]
    data = rng.integers(0, 256, (rows, columns // form.columns, form.layout.itemsize), "uint8")
    blocks = data.view(form.layout)
    for name in {"d", "m"} & set(form.layout.names):
        blocks[name] = rng.uniform(-1, 1, blocks[name].shape)
    if "e" in form.layout.names:
        blocks["e"] = rng.integers(120, 130, blocks["e"].shape)
    return data.reshape(rows, -1)


def wide(kind, data):
    """The numbers of a tensor, by the package gguf."""
    return gguf.dequantize(data, gguf.GGMLQuantizationType[kind])


def write(path, architecture, tensors, fields=None):
    """Write tensors: arrays, or pairs of a type of blocks and bytes."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in (fields or {}).items():
        writer.add_uint32(f"{architecture}.{name}", value)
    for name, value in tensors.items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(name, value)
        else:
            kind, data = value
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
