"""Read ONNX files, with one error for each way in which a file can be unusable."""

import os
from pathlib import Path
from typing import Any

import onnx
from onnx.external_data_helper import (
    ExternalDataInfo,
    load_external_data_for_model,
    uses_external_data,
)

from ...errors import UserError, refuse_lfs_pointer
from .graph import tensors

_MOST_NAMED = 3  # files of a folder


def load(path: str | os.PathLike) -> onnx.ModelProto:
    """Read an ONNX file and the weights next to it.

    Parameters
    ----------
    path : str or os.PathLike
        A file in ONNX's binary form.

    Returns
    -------
    onnx.ModelProto
        The model with all its tensors in memory.

    Raises
    ------
    UserError
        When the file is missing, is no ONNX file, is cut short, lacks the files with its weights,
        or is a pointer of Git LFS.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist", "an ONNX file", "check the path")
    if path.is_dir():
        raise _folder(path)
    if not path.is_file():
        raise UserError(
            f"{path} is a device or a pipe", "an ONNX file", "write the model to a file first"
        )
    refuse_lfs_pointer(path)
    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})", "a readable file") from error
    except Exception as error:  # protobuf's DecodeError, or what the text forms raise
        if is_cut_short(path.read_bytes()):
            raise UserError(
                f"{path} is cut short", "a whole ONNX file", "copy or export it again"
            ) from error
        raise _not_onnx(path) from error
    # Any short run of bytes may parse as a message of unknown fields.
    if not model.ir_version and not model.HasField("graph"):
        raise _not_onnx(path)
    if not model.HasField("graph"):
        raise UserError(f"{path} is cut short", "a whole ONNX file", "copy or export it again")
    _load_external(model, path)
    return model


def require_tensors(model: onnx.ModelProto) -> None:
    """Raise when a model in memory refers to weights in files, whose folder it does not know."""
    outside = [t for t in tensors(model.graph) if uses_external_data(t)]
    if outside:
        files = ", ".join(sorted({ExternalDataInfo(t).location for t in outside}))
        raise UserError(
            f"the ModelProto keeps {len(outside)} weights outside of itself, in {files}",
            "a model with its weights",
            "pass the path of the .onnx file, or load it with its external data",
        )


def is_cut_short(data: bytes) -> bool:
    """Tell a truncated ONNX file from something that is no ONNX file.

    Walks the outermost fields of the message (protobuf's wire format); true if they are fields of a
    ``ModelProto`` up to one that announces more bytes than there are.
    """
    # Field numbers of ModelProto that carry bytes, and those that carry an integer.
    sized, numbers = {2, 3, 4, 6, 7, 8, 14, 20, 25, 26}, {1, 5}
    position, graph_seen = 0, False
    while position < len(data):
        tag, position = _varint(data, position)
        field, wire = tag >> 3, tag & 7
        if (field in numbers and wire == 0) or (field in sized and wire == 2):
            value, position = _varint(data, position)
            if wire == 2:
                graph_seen |= field == 7
                position += value
        else:
            return False
    return position > len(data) or not graph_seen


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    return value, len(data) + 1


def _load_external(model: onnx.ModelProto, path: Path) -> None:
    outside = [t for t in tensors(model.graph) if uses_external_data(t)]
    if not outside:
        return
    needed: dict[str, int] = {}
    for tensor in outside:
        info: Any = ExternalDataInfo(tensor)
        end = int(info.offset or 0) + int(info.length or 0)
        needed[info.location] = max(needed.get(info.location, 0), end)
    files = {name: path.parent / name for name in needed}
    missing = [name for name, file in files.items() if not file.is_file()]
    if missing:
        raise UserError(
            f"{path} keeps its weights in {', '.join(missing)}, which is not next to it",
            f"{'that file' if len(missing) == 1 else 'those files'} in {path.parent.resolve()}",
            "copy the weights next to the model",
        )
    for name, file in files.items():
        refuse_lfs_pointer(file)
        size = file.stat().st_size
        if size < needed[name]:
            raise UserError(
                f"{file} is cut short: {size} bytes",
                f"at least {needed[name]} bytes of weights",
                "copy or export it again",
            )
    try:
        load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # onnx's checker refuses links and paths that leave the folder
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path}'s external weights cannot be read ({reason})") from error


def _folder(path: Path) -> UserError:
    """Say that a folder is no model, and which file may be meant."""
    if (path / "manifest.json").is_file():
        advice = f"`tvm-fusion inspect {path}` says which"
        return UserError(f"{path} is an artifact", "the model that it was compiled from", advice)
    models = [str(file) for file in sorted(path.glob("*.onnx"))[:_MOST_NAMED]]
    advice = f"name {' or '.join(models)}" if models else "it holds none; check the path"
    return UserError(f"{path} is a folder", "an ONNX file", advice)


def _not_onnx(path: Path) -> UserError:
    return UserError(f"{path} is not an ONNX file", "a model in ONNX's binary form")
