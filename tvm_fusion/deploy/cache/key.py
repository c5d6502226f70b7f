"""What an artifact depends on, as one name: model, target, options, versions."""

import functools
import hashlib
import os
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ...config import FusionConfig
from ...device import TargetSpec
from ...errors import UserError
from ...frontend.onnx_model.file import load
from ...frontend.program_file import is_program_file, load_program

_PACKAGES = ("tvm_fusion", "apache-tvm", "apache-tvm-ffi")
_RECORDS = "TVM_FUSION_RECORDS"
# Read by stages and tools; none of the others changes what is made.
_VARIABLES = ("TVM_CUDA_COMPILE_MODE", "TVM_CUDA_NVCC_NO_FAST_MATH", "CC", "CXX")


def cache_key(model: Any, spec: TargetSpec, config: FusionConfig) -> str:
    """Name what is compiled.

    Parameters
    ----------
    model : str, os.PathLike, onnx.ModelProto or torch.export.ExportedProgram
        An ONNX model, of which weights in files next to it count, or a PyTorch program.
    spec
        With the features of its devices.
    config
        All its options count; of ``db``, the file's content.

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    UserError
        For what has no bytes to be known by, and options that measure or write.
    """
    digest = hashlib.sha256()
    if isinstance(model, (str, os.PathLike)):
        model = load_program(model) if is_program_file(model) else load(model)
    is_program = type(model).__name__ == "ExportedProgram"
    if not isinstance(model, onnx.ModelProto) and not is_program:
        raise UserError(
            f"a model of type {type(model).__name__} has no cache",
            "an ONNX or .pt2 file, a ModelProto or an ExportedProgram",
            "leave cache out, and keep what Artifact.export writes",
        )
    for name in ("profile", "dump"):
        if getattr(config, name) is not None:
            raise UserError(f"cache with the option {name}", "one of them", "leave cache out")
    (_add_program if is_program else _add_model)(digest, model)
    _add(digest, repr(spec).encode())
    for field in fields(FusionConfig):
        _add(digest, field.name.encode(), *_of(getattr(config, field.name)))
    records = config.db or os.environ.get(_RECORDS)
    _add(digest, Path(records).read_bytes() if records and Path(records).is_file() else b"")
    _add(digest, *(f"{name} {version(name)}".encode() for name in _PACKAGES), _sources())
    _add(digest, *(os.environ.get(name, "").encode() for name in _VARIABLES))
    return digest.hexdigest()


def _add(digest: Any, *parts: bytes | memoryview) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)


def _add_model(digest: Any, model: onnx.ModelProto) -> None:
    """Add a model's bytes; of one beyond protobuf's two gigabytes, those of its tensors apart."""
    try:
        _add(digest, model.SerializeToString(deterministic=True))
        return
    except (ValueError, RuntimeError) as error:  # protobuf's own, and of its two implementations
        if model.ByteSize() < 2**31 - 1:
            raise UserError(f"the model cannot be written ({error})") from error
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    for tensor in rest.graph.initializer:
        _add(digest, tensor.SerializeToString(deterministic=True))
        tensor.ClearField("raw_data")
    _add(digest, rest.SerializeToString(deterministic=True))


def _add_program(digest: Any, program: Any) -> None:
    """Add a PyTorch program: its graphs, what their inputs are, and the bytes of its weights."""
    torch = sys.modules["torch"]
    parts = [torch.__version__, program.graph_signature, program.range_constraints]
    parts.append(program.call_spec)
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            parts.append(module.graph)
            parts += [_description(torch, node) for node in module.graph.nodes]
    _add(digest, *(str(part).encode() for part in parts))
    for name, value in sorted({**program.state_dict, **program.constants}.items()):
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().contiguous()
            kind = f"{name} {value.dtype} {tuple(value.shape)}"
            _add(digest, kind.encode(), value.reshape(-1).view(torch.uint8).numpy().data)


def _description(torch: Any, node: Any) -> tuple[Any, ...]:
    """Say what a node's text does not: the tensor, the module and the function it comes from."""
    value, modules = node.meta.get("val"), node.meta.get("nn_module_stack") or {}
    tensor = isinstance(value, torch.Tensor) and (value.dtype, *value.shape, *value.stride())
    return tensor, [path for path, _ in modules.values()], node.meta.get("torch_fn")


def _of(value: Any) -> list[bytes]:
    """Write an option; mappings and sets in any order are the same."""
    if isinstance(value, dict):
        return [part for key in sorted(value) for part in (key.encode(), *_of(value[key]))]
    if isinstance(value, np.ndarray):
        return [f"{value.dtype.str}{value.shape}".encode(), np.ascontiguousarray(value).tobytes()]
    return [repr(value).encode()]


@functools.cache
def _sources() -> bytes:
    """Tell this package's sources from others of the same version, as of a checkout."""
    root = Path(__file__).parents[2]
    found = sorted(
        (str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.suffix in (".py", ".c", ".cc", ".h")
    )
    return hashlib.sha256(repr(found).encode()).digest()
