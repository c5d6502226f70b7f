"""Read tensors of a GGUF file by name."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError, refuse_lfs_pointer
from .formats import FORMATS, PLAIN, PackedWeight


class GgufFile(Mapping[str, "PackedWeight | np.ndarray"]):
    """Tensors by name, each read when it is asked for.

    Parameters
    ----------
    path
        Of the file, which is mapped into memory.

    Raises
    ------
    UserError
        For a file that is missing or no GGUF file, and where the package gguf is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            from gguf import GGUFReader
        except ImportError:
            advice = "run `pip install tvm_fusion[gguf]`"
            raise UserError(f"{path} needs the package gguf to be read", None, advice) from None
        if not path.is_file():
            raise UserError(f"{path} does not exist", "a GGUF file")
        refuse_lfs_pointer(path)
        try:
            self._reader = GGUFReader(path)
        except Exception as error:  # guard: told as the reason
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"{path} cannot be read ({reason})", "a GGUF file") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def __getitem__(self, name: str) -> PackedWeight | np.ndarray:
        """Read a tensor; a stack of matrices in blocks is one matrix of all their rows.

        Raises
        ------
        UserError
            For a type of blocks that is not known here.
        """
        tensor = self._tensors[name]
        kind, shape = tensor.tensor_type.name, [int(d) for d in reversed(tensor.shape)]
        if kind in PLAIN:
            plain: np.ndarray = np.asarray(tensor.data).view(PLAIN[kind]).reshape(shape)
            return plain
        if kind not in FORMATS:
            known = ", ".join([*FORMATS, *PLAIN])
            advice = "quantize the model to one of these by llama-quantize"
            raise UserError(f"{self.path}: tensor {name} of type {kind}", known, advice)
        rows = np.asarray(tensor.data).reshape(int(np.prod(shape[:-1])), -1)
        return FORMATS[kind].read(rows, shape[-1])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def field(self, key: str) -> Any:
        """Return a value of the file's metadata, None where it has none.

        ``{arch}`` in the key stands for the architecture's name.
        """
        if "{arch}" in key:
            key = key.format(arch=self.field("general.architecture"))
        found = self._reader.get_field(key)
        return None if found is None else found.contents()


def read(path: str | os.PathLike[str]) -> GgufFile:
    """Open a GGUF file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    GgufFile
        A mapping from names to :class:`PackedWeight`, or arrays of F32, F16, BF16 and F64.

    Raises
    ------
    UserError
        For a file that is missing or no GGUF file, and where the package gguf is missing.
    """
    return GgufFile(Path(path))
