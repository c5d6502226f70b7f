"""The manifest of an artifact: what is in the folder, in documented JSON. Imports no TVM.

Schema 2
--------
``schema``
    ``2``. Schema 1 had kernels of one architecture alone, or the lowest one's for all; it is not
    read any more.
``versions``
    ``tvm_fusion``, ``apache-tvm``, ``apache-tvm-ffi``: what the artifact was made with.
``source``
    Where the model came from.
``target``
    ``text`` (as ``--target`` takes it), ``kind``, ``archs``, ascending; for CPUs ``machine`` and
    ``features``, the instruction sets that the code may use, by LLVM's names, and ``cpuinfo``, the
    same by Linux's, which the runner in C++ compares with ``/proc/cpuinfo``: all of the target's,
    which LLVM chooses from, but AMX's only where kernels have its instructions, since they cost a
    process its permission (:mod:`tvm_fusion.device.tile_permission`).
``precision``
    ``fp32``, ``fp16`` or ``bf16``.
``precisions``
    If the precision was chosen by measuring, what was measured: a list of
    ``{"precision", "error", "bound", "milliseconds"}``: the largest max|a-b|/max|b| of an output
    against float32's, null where that is infinite; the largest one allowed; and the time of a run,
    of those within the bound.
``alignment``
    ``element``: on a CPU, kernels take tensors that begin at any element. Older artifacts do not
    have it: their kernels crash on memory that is not aligned to 64 bytes.
``dims``
    By symbolic dimension: ``{"min": int, "max": int}``, both included, and ``"step": int`` where it
    is a multiple of that.
``suffix``
    Behind the names of the library's functions for the first of ``archs``.
``functions``
    By name, as compiled for the first of ``archs``: ``inputs`` and ``outputs``, lists of
    ``{"name", "shape", "dtype"}`` in call order, with a string for a symbolic extent, and with
    ``storage``, such as ``uint8``, where the code has its elements as those of another dtype, one
    for one (a narrow type of ONNX); ``weights``,
    names in the order in which they follow the inputs, with ``weights_as_tuple`` as one array of
    all of them (without the entry: one by one);
    ``equal``, if there is any, a list of ``{"one", "other", "where"}``: extents that are equal in
    every call, and the operator that joins them;
    ``call``, of a PyTorch module, the structure of its arguments and results, as
    :mod:`.call_tree` documents;
    ``limits``, by name of an input of whole numbers, such as tokens or positions, ``{"below",
    "count"}``: each of its elements, and the ``count`` (a number, or an expression over dimensions)
    from it on, are at least 0 and below that; others are clamped, or write nothing;
    ``in_place``, by name of an input that is written to, the output that then lies there;
    ``destinations``, names of the outputs that follow the weights as parameters of the library's
    function ``NAME.into``, which is there if they are;
    ``launches``, a list of ``{"kernel", "names"}``: the library's functions of kernels in the order
    in which one inference calls them, and what they compute by the user's names (ONNX nodes, paths
    of PyTorch modules; names of tensors where there are none), each once, in the model's order,
    empty where nothing is known. Those of a loop's body are there once, those of all branches of a
    condition one after the other (older artifacts do not have it);
    ``kernels``, ``host_launches``, ``calls`` and ``intermediate_bytes`` of one inference, as
    :func:`tvm_fusion.deploy.count.count` counts them with symbolic dimensions at ``max``.
``groups``
    Groups of operators: ``kernels``, names of their PrimFuncs in the order in which they are
    called, and the fields of :class:`tvm_fusion.core.contract.kernel_info.KernelInfo`. Artifacts of
    earlier versions do not have it, nor ``priced_for``: the ``name`` and ``cores`` of the device
    that expected times are for.
``weights``
    By name: ``{"shape", "dtype", "offset", "bytes"}`` in ``weights.bin``; offsets are multiples of
    64 bytes, and a weight may lie in another one. Of a weight that is stored as kernels read it,
    ``shape`` is its own, and ``packed`` ``{"function", "shape"}``: the library's function that
    packs, and the stored shape.
``architectures``
    By name of each further architecture: its ``suffix``, ``weights``, ``groups``, ``priced_for``,
    and ``functions`` without what is the same for all, ``inputs`` and ``outputs``; a CPU's
    ``features`` and ``cpuinfo``, as ``target`` has the first one's. Weights that are stored once
    have equal offsets. :func:`of_architecture` puts an architecture's entries in their places.
``workers``
    Of an artifact for several: their number, ``size``; ``functions``, by name the ``inputs`` and
    ``outputs`` of which each worker has a part, by name ``{"axis", "segments"}`` as
    :class:`tvm_fusion.core.shards.Shard` documents; ``split``, sentences about weights of which
    each has a part; and ``weights``, a list of what each worker
    from 1 has by architecture, as ``weights`` has the first one's. ``functions`` tells the shapes
    of parts. Weights that all workers have, and parts that are equal, are stored once.
``stored_kernels``
    Of several architectures, which kernels the library holds: a list of ``{"archs", "names"}``,
    kernels that came out equal under all architectures that have them. Empty for one.
``decisions``
    What did not go the usual way; the fields of :class:`tvm_fusion.core.decisions.Decision`, and
    ``archs`` where it was so for some of several architectures alone.
``libraries``
    TVM's runtime libraries besides ``tvm_runtime`` whose packed functions the code calls:
    ``tvm_runtime_extra`` or none.
``packed_functions``
    Names of packed functions that are the application's own: registered before the artifact is
    loaded.
``options``
    Of a model in a file, the options that `tvm-fusion explain` explains it with.
``files``
    By file name: ``{"bytes", "sha256"}``.
``sha256``
    Of all other entries, as JSON with sorted keys and without line breaks.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....errors import UserError, refuse_lfs_pointer
from ..tensors import ALIGNMENT
from . import schema

SCHEMA = 2
MANIFEST, LIBRARY, WEIGHTS = "manifest.json", schema.LIBRARY, schema.WEIGHTS
INTO = ".into"  # behind the name of a function, its form with destinations
NAMES = frozenset((MANIFEST, LIBRARY, WEIGHTS))
AGAIN = "compile the model again, or copy the whole folder again"


def read(folder: Path) -> dict[str, Any]:
    """Read and check an artifact's manifest.

    Returns
    -------
    dict
        As the schema says.

    Raises
    ------
    UserError
        No artifact there; a pointer of Git LFS in the place of a file; an unreadable manifest;
        another schema; entries that cannot be; files missing or of other sizes.
    """
    path = folder / MANIFEST
    try:
        if not path.is_file():
            raise _no_artifact(folder)
        for name in NAMES:
            refuse_lfs_pointer(folder / name)
        manifest = _parse(path.read_bytes())
        version, stated = manifest["schema"], manifest.get("sha256")
        if version != SCHEMA:
            raise UserError(
                f"artifact {str(folder)!r} has schema {str(version)[:40]}",
                f"schema {SCHEMA}",
                "compile the model again with this version",
            )
        if stated != _checksum(manifest):
            raise UserError(f"{str(path)!r} has been changed", "what the compiler wrote", AGAIN)
        schema.check(manifest, ALIGNMENT)
        sizes = {name: _size(folder / name) for name in manifest["files"]}
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r} ({error.strerror})", None, AGAIN) from error
    except schema.Damaged as error:
        raise UserError(f"{str(path)!r} is damaged ({error})", None, AGAIN) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {str(error)[:80]!r}"
        raise UserError(f"{str(path)!r} is damaged ({reason})", None, AGAIN) from error
    for name, size in sizes.items():
        expected = manifest["files"][name]["bytes"]
        if size != expected:
            found = "is missing" if size is None else f"has {size} bytes"
            raise UserError(
                f"{name} of artifact {str(folder)!r} {found}", f"{expected} bytes", AGAIN
            )
    return manifest


def _no_artifact(folder: Path) -> UserError:
    """Say what is there instead of an artifact."""
    if not folder.exists():
        found, advice = f"there is no folder {str(folder)!r}", "check the path"
    elif folder.suffix in (".onnx", ".pt2") and folder.is_file():
        found = f"{str(folder)!r} is a model and not an artifact"
        advice = f"compile it first, by `tvm-fusion compile {folder} -o build/{folder.stem}`"
    else:
        found, advice = f"{str(folder)!r} is not an artifact (it has no {MANIFEST})", None
    return UserError(found, "a folder that `tvm-fusion compile` wrote", advice)


def _parse(data: bytes) -> dict[str, Any]:
    """Read JSON; an object with the same key twice has no one meaning."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            raise ValueError("the same key twice")
        return entries

    content: dict[str, Any] = json.loads(data.decode("utf-8"), object_pairs_hook=once)
    return content


def _size(path: Path) -> int | None:
    """Return a file's size; ``None`` if it is not a regular file."""
    return path.stat().st_size if path.is_file() else None


def of_architecture(found: Mapping[str, Any], arch: str) -> dict[str, Any]:
    """Return a manifest as it would be if an artifact held the code of one architecture alone.

    Parameters
    ----------
    arch
        One of the target's ``archs``.
    """
    if arch == found["target"]["archs"][0]:
        return dict(found)
    own = found["architectures"][arch]
    functions = {
        name: {**entry, **own["functions"][name]} for name, entry in found["functions"].items()
    }
    target = {**found["target"], **{k: own[k] for k in ("features", "cpuinfo") if k in own}}
    return {**found, **own, "functions": functions, "target": target}


def of_worker(found: Mapping[str, Any], arch: str, rank: int) -> dict[str, Any]:
    """Return an architecture's manifest with the weights of one of the artifact's workers."""
    if rank == 0:
        return dict(found)
    return {**found, "weights": found["workers"]["weights"][rank - 1][arch]}


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Write an artifact's manifest, the last of its files; adds ``sha256``."""
    signed = {**content, "sha256": _checksum(content)}
    (folder / MANIFEST).write_text(json.dumps(signed, indent=1) + "\n", encoding="utf-8")


def _checksum(content: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def verify(folder: Path, manifest: Mapping[str, Any], names: list[str] | None = None) -> None:
    """Compare the hashes of an artifact's files with the manifest's.

    Parameters
    ----------
    names
        Which files; all when omitted.

    Raises
    ------
    UserError
        Naming the first file that differs.
    """
    for name in names or list(manifest["files"]):
        expected = manifest["files"][name]["sha256"]
        try:
            found = sha256(folder / name)
        except OSError as error:
            raise UserError(
                f"cannot read {name} of artifact {str(folder)!r} ({error.strerror})", None, AGAIN
            ) from error
        if found != expected:
            raise UserError(
                f"{name} of artifact {str(folder)!r} has been changed",
                f"the content with sha256 {expected[:12]}...",
                AGAIN,
            )


def sha256(path: Path) -> str:
    """Hash a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


def main_function(content: Mapping[str, Any]) -> str:
    """Return the name ``main``, or else of the first function there is."""
    functions = content["functions"]
    return "main" if "main" in functions else next(iter(functions))
