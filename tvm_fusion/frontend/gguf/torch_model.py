"""Put the tensors of a GGUF file into a model of transformers."""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import torch

from ...errors import UserError
from ..operators.packed_weights import dequantize
from .file import GgufFile, read
from .formats import PackedWeight


class TorchOperators:
    """The formula on tensors."""

    def field(self, x: torch.Tensor, shift: int, bits: int) -> torch.Tensor:
        """Shift and mask, where there is anything to."""
        x = x >> shift if shift else x
        return x if shift + bits == 8 else x & ((1 << bits) - 1)

    def stack(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join along a new last axis."""
        return torch.cat([part.unsqueeze(-1) for part in parts], -1)

    def reshape(self, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Change the shape."""
        return x.reshape(tuple(shape))

    def cast(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Change the dtype."""
        return x.to(dtype)

    def first_columns(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """Cut the last axis."""
        return x[..., :count]

    def add(self, x: torch.Tensor, y: Any) -> torch.Tensor:
        """Add."""
        return x + y

    def subtract(self, x: torch.Tensor, y: Any) -> torch.Tensor:
        """Subtract."""
        return x - y

    def multiply(self, x: torch.Tensor, y: Any) -> torch.Tensor:
        """Multiply."""
        return x * y


class PackedParameter(torch.nn.Module):
    """Planes and scales as buffers; calling it computes the weight.

    Parameters
    ----------
    weight
        What the file has.
    dtype
        Of the weight that it computes.
    """

    def __init__(self, weight: PackedWeight, dtype: torch.dtype) -> None:
        super().__init__()
        self.packing, self.dtype = weight.packing, dtype
        for name, array in weight.arrays.items():
            self.register_buffer(name, as_tensor(array))

    def forward(self) -> torch.Tensor:
        """Compute the weight."""
        result: torch.Tensor = dequantize(self.packing, self._buffers, self.dtype, TorchOperators())
        return result

    def extra_repr(self) -> str:
        """Tell the shape and the bits."""
        packing = self.packing
        bits = sum(packing.planes) or 16
        return f"{packing.rows} x {packing.columns}, {bits} bits in blocks of {packing.size}"


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Copy an array, which a file may own, into a tensor."""
    array = np.array(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


Model = TypeVar("Model", bound=torch.nn.Module)
Weight = PackedWeight | np.ndarray

_ADVICE = "make the model of the configuration of the file's model"
#: Architectures whose tensors the file has as transformers has them.
_SAME = ("qwen2", "qwen3", "phi3", "mistral3", "smollm3", "olmo2")
#: Those whose norms multiply by the weight in the file, and by 1 more in transformers.
_SHIFTED_NORMS = ("gemma", "gemma2", "gemma3")


def load(model: Model, path: str | os.PathLike[str]) -> Model:
    """Give a model of transformers the weights of a GGUF file.

    Matrices in blocks, and those of fewer bits than the parameters, stay as they are: they become
    buffers, from which the model computes its weights, as a program does that is exported of it.
    Names are those by which llama.cpp converts such models.

    Parameters
    ----------
    model : torch.nn.Module
        A model of the file's architecture, such as
        ``AutoModelForCausalLM.from_config(config, dtype=torch.float16)``; it is changed.
    path : str or os.PathLike
        The file.

    Returns
    -------
    torch.nn.Module
        The model.

    Raises
    ------
    UserError
        For a file that cannot be read, an architecture whose tensors are converted in ways not
        known here, and where tensors of the file and parameters of the model do not match.
    """
    file = read(path)
    convert = _conversion(file)
    for parameters, name in _names(model, file).items():
        _replace(model, parameters, convert(name, file[name]))
    for name, buffer in model.named_buffers():
        if buffer.is_meta:
            advice = "make the module that has it outside of torch.device('meta')"
            raise UserError(f"buffer {name} of the model is on the meta device", "values", advice)
    return model


def _names(model: torch.nn.Module, file: GgufFile) -> dict[tuple[str, ...], str]:
    """Match parameters, those that are one and the same together, with tensors of the file."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    (arch,) = (a for a, name in MODEL_ARCH_NAMES.items() if name == _architecture(file))
    table = get_tensor_name_map(arch, int(file.field("{arch}.block_count") or 0))
    same: dict[int, list[str]] = {}
    for parameter, value in model.named_parameters(remove_duplicate=False):
        same.setdefault(id(value), []).append(parameter)
    found: dict[tuple[str, ...], str] = {}
    for parameters in same.values():
        known = [table.get_name(p, try_suffixes=(".weight", ".bias")) for p in parameters]
        present = [name for name in known if name in file]
        if not present:
            raise UserError(f"{file.path} has no tensor for {parameters[0]}", known[0], _ADVICE)
        found[tuple(parameters)] = str(present[0])
    # Frequencies of positions are computed from the configuration.
    unread = [n for n in file if n not in found.values() and not n.startswith("rope_")]
    if unread:
        what = f"{file.path} has {unread[0]}, for which the model has no parameter"
        raise UserError(what, None, _ADVICE)
    return found


def _architecture(file: GgufFile) -> str:
    return str(file.field("general.architecture"))


def _conversion(file: GgufFile) -> Callable[[str, Weight], Weight]:
    """Return what undoes the changes with which llama.cpp stores an architecture's tensors."""
    arch = _architecture(file)
    if arch in _SAME:
        return lambda _name, weight: weight
    if arch in _SHIFTED_NORMS:
        return _with_shifted_norm
    if arch != "llama":
        known = ", ".join(("llama", *_SHIFTED_NORMS, *_SAME))
        advice = "read its tensors by gguf.read and put them into the model"
        raise UserError(f"{file.path} is of architecture {arch}", f"one of {known}", advice)
    heads = int(file.field("{arch}.attention.head_count"))
    shared = int(file.field("{arch}.attention.head_count_kv") or heads)

    def with_halves(name: str, weight: Weight) -> Weight:
        """Put pairs that rotate together, which lie next to each other, into the two halves."""
        count = {"attn_q": heads, "attn_k": shared}.get(name.split(".")[-2])
        if count is None:
            return weight
        rows = np.arange(weight.shape[0]).reshape(count, -1, 2)
        order = rows.swapaxes(1, 2).reshape(-1)
        return weight.take_rows(order) if isinstance(weight, PackedWeight) else weight[order]

    return with_halves


def _with_shifted_norm(name: str, weight: Weight) -> Weight:
    if isinstance(weight, PackedWeight) or not name.endswith("norm.weight"):
        return weight
    shifted: np.ndarray = weight - 1
    return shifted


def _replace(model: torch.nn.Module, parameters: tuple[str, ...], weight: Weight) -> None:
    """Put a weight into the place of parameters that are one and the same."""
    own = model.get_parameter(parameters[0])
    if tuple(weight.shape) != tuple(own.shape):
        what = f"parameter {parameters[0]} has shape {list(own.shape)}"
        raise UserError(what, f"{list(weight.shape)}, as the file has it", _ADVICE)
    is_narrow = isinstance(weight, np.ndarray) and weight.dtype.itemsize < own.dtype.itemsize
    if isinstance(weight, np.ndarray) and is_narrow and weight.ndim == 2:
        weight = PackedWeight.of_halves(weight)
    new: torch.nn.Module | torch.nn.Parameter
    if isinstance(weight, PackedWeight):
        new = PackedParameter(weight, own.dtype)
    else:
        new = torch.nn.Parameter(as_tensor(weight).to(own.dtype), requires_grad=False)
    for path in parameters:
        where, _, name = path.rpartition(".")
        module = model.get_submodule(where)
        if isinstance(new, torch.nn.Parameter):
            module.register_parameter(name, new)
            continue
        del module._parameters[name]
        module.add_module(_held(name), new)
        module.__class__ = _computing(type(module), name)


def _held(name: str) -> str:
    return f"packed_{name}"


def _computing(base: type, name: str) -> type:
    """Make a class whose attribute is computed by the module that holds its planes."""

    def compute(self: Any) -> torch.Tensor:
        result: torch.Tensor = self._modules[_held(name)]()
        return result

    return type(base.__name__, (base,), {name: property(compute), "__module__": base.__module__})
