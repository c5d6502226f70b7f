"""The form of a manifest: types and ranges of its entries, checked when it is read.

The checksum in a manifest finds accidents; this finds what another program wrote, so that no entry
fails later, or is taken for an offset or a file that it must not be. Imports no TVM.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import ml_dtypes  # noqa: F401  (teaches numpy the name "bfloat16")
import numpy as np

from .call_tree import names_of

LIBRARY, WEIGHTS = "model.so", "weights.bin"
LARGEST = 2**63 - 1  # of an extent, an offset or a size: int64, as the runtime has them
LONGEST = 1000  # characters of an extent, whose evaluation is recursive
_DTYPE = re.compile(r"bool|u?int\d+|b?float\d+(_\w+)?")
_HEX = re.compile(r"[0-9a-f]{64}")

Check = Callable[[Any, str], None]


class Damaged(ValueError):
    """What is wrong with a manifest, with the path of the entry."""


def _fail(path: str, words: str) -> NoReturn:
    raise Damaged(f"{path or 'it'} {words}")


def text(value: Any, path: str) -> None:
    """Check that a value is a string."""
    if not isinstance(value, str):
        _fail(path, "is not a string")


def truth(value: Any, path: str) -> None:
    """Check that a value is true or false."""
    if not isinstance(value, bool):
        _fail(path, "is not true or false")


def number(value: Any, path: str) -> None:
    """Check that a value is an integer from 0 to :data:`LARGEST`."""
    if not isinstance(value, int) or isinstance(value, bool):
        _fail(path, "is not an integer")
    if not 0 <= value <= LARGEST:
        _fail(path, "is negative" if value < 0 else "is too large")


def real(value: Any, path: str) -> None:
    """Check that a value is a finite number of at least 0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        _fail(path, "is not a finite number of at least 0")


def real_or_none(value: Any, path: str) -> None:
    """Check that a value is such a number or null."""
    if value is not None:
        real(value, path)


def dtype(value: Any, path: str) -> None:
    """Check that a value names an element type."""
    try:
        known = _DTYPE.fullmatch(value) and str(np.dtype(value)) == value
    except TypeError:
        known = False
    if not known:
        _fail(path, "is not an element type")


def digest(value: Any, path: str) -> None:
    """Check that a value is a SHA-256 in hexadecimal."""
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        _fail(path, "is not a SHA-256")


def extent(value: Any, path: str) -> None:
    """Check that a value is an extent, a number or an expression over names."""
    if not isinstance(value, str):
        number(value, path)
    elif not 0 < len(value) <= LONGEST:
        _fail(path, "is no expression")


def one_of(*words: str) -> Check:
    """Make a check of words."""

    def run(value: Any, path: str) -> None:
        if value not in words:
            _fail(path, f"is not one of {', '.join(words)}")

    return run


def list_of(check: Check, least: int = 0) -> Check:
    """Make a check of lists."""

    def run(value: Any, path: str) -> None:
        if not isinstance(value, list):
            _fail(path, "is not a list")
        if len(value) < least:
            _fail(path, "is empty")
        for position, item in enumerate(value):
            check(item, f"{path}/{position}")

    return run


def by_name(check: Check, least: int = 0) -> Check:
    """Make a check of objects whose keys are names."""

    def run(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            _fail(path, "is not an object")
        if len(value) < least:
            _fail(path, "is empty")
        for name, item in value.items():
            check(item, f"{path}/{name}")

    return run


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """Make a check of objects with certain entries; others may be there."""

    def run(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            _fail(path, "is not an object")
        for name, check in required.items():
            if name not in value:
                _fail(path, f"lacks {name!r}")
            check(value[name], f"{path}/{name}")
        for name, check in (optional or {}).items():
            if name in value:
                check(value[name], f"{path}/{name}")

    return run


_SPEC = record(
    {"name": text, "shape": list_of(extent), "dtype": dtype}, {"storage": one_of("uint8")}
)
_CODE = {
    "weights": list_of(text),
    **dict.fromkeys(("kernels", "calls", "intermediate_bytes"), number),
}
_OPTIONAL = {
    "weights_as_tuple": truth,
    "in_place": by_name(text),
    "destinations": list_of(text),
    "launches": list_of(
        record({"kernel": text, "names": list_of(text)}, {"reads": list_of(number)})
    ),
}


def tree(value: Any, path: str) -> None:
    """Check that a value is a structure of arguments or results: see :mod:`.call_tree`."""
    if isinstance(value, str):
        return
    if not isinstance(value, dict) or "value" not in value:
        record({"type": text, "keys": list_of(_key), "items": list_of(tree)})(value, path)
        if value["keys"] and len(value["keys"]) != len(value["items"]):
            _fail(path, "has another number of keys than items")


def _key(value: Any, path: str) -> None:
    if not isinstance(value, (str, int)):
        _fail(path, "is not a key")


def _parameter(value: Any, path: str) -> None:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        _fail(path, "is not a name and a structure")
    tree(value[1], f"{path}/1")


_CALL = {
    "call": record(
        {"arguments": list_of(_parameter), "keywords": list_of(_parameter), "results": tree}
    )
}
_EQUAL = {"equal": list_of(record({"one": text, "other": text, "where": text}))}
_LIMITS = {"limits": by_name(record({"below": number, "count": extent}))}
_STORED = record({"function": text, "shape": list_of(number)})
_WEIGHT = record(
    {"shape": list_of(number), "dtype": dtype, "offset": number, "bytes": number},
    {"packed": _STORED},
)
_GROUPS = {
    "groups": list_of(
        record(
            {
                "kernels": list_of(text),
                **dict.fromkeys(("template", "type", "dtype", "source", "record"), text),
                "operators": list_of(text),
                "flops": extent,
                "us": real,
            }
        )
    ),
    "priced_for": record({"name": text}),
}
_SHARD = record({"axis": number, "segments": list_of(number, 1)})
_WORKERS = record(
    {
        "size": number,
        "functions": by_name(record({"inputs": by_name(_SHARD), "outputs": by_name(_SHARD)})),
        "split": list_of(text),
        "weights": list_of(by_name(by_name(_WEIGHT))),
    }
)
_STORED_AS = one_of("fp32", "fp16", "bf16")
_FEATURES = {"features": list_of(text), "cpuinfo": list_of(text)}
_FILE = record({"bytes": number, "sha256": digest})
_SCHEMA = record(
    {
        "versions": record({"apache-tvm": text}),
        "source": text,
        "target": record(
            {"text": text, "kind": text, "archs": list_of(text, 1)},
            {"machine": text, **_FEATURES},
        ),
        "precision": _STORED_AS,
        "dims": by_name(record({"min": number, "max": number}, {"step": number})),
        "suffix": text,
        "functions": by_name(
            record(
                {"inputs": list_of(_SPEC), "outputs": list_of(_SPEC), **_CODE},
                _OPTIONAL | _EQUAL | _CALL | _LIMITS,
            ),
            1,
        ),
        "weights": by_name(_WEIGHT),
        "architectures": by_name(
            record(
                {
                    "suffix": text,
                    "weights": by_name(_WEIGHT),
                    "functions": by_name(record(_CODE, _OPTIONAL)),
                },
                {**_GROUPS, **_FEATURES},
            )
        ),
        "stored_kernels": list_of(record({"archs": list_of(text), "names": list_of(text)})),
        "decisions": list_of(
            record(
                {
                    **dict.fromkeys(("producer", "consumer", "verdict", "sentence"), text),
                    "classes": list_of(text),
                }
            )
        ),
        "files": record({LIBRARY: _FILE, WEIGHTS: _FILE}),
    },
    {
        "precisions": list_of(
            record(
                {"precision": _STORED_AS, "error": real_or_none, "bound": real},
                {"milliseconds": real},
            )
        ),
        "alignment": text,
        "workers": _WORKERS,
        "libraries": list_of(one_of("tvm_runtime_extra")),
        "packed_functions": list_of(text),
        "options": list_of(text),
        **_GROUPS,
    },
)


def check(content: Any, alignment: int) -> None:
    """Check a manifest of the present schema.

    Parameters
    ----------
    alignment
        Bytes whose multiples offsets of weights are.

    Raises
    ------
    Damaged
        At the first entry that cannot be.
    """
    _SCHEMA(content, "")
    first, *others = content["target"]["archs"]
    if content["target"]["kind"] == "llvm":
        record({"machine": text, "features": list_of(text)})(content["target"], "/target")
        for arch, entry in content["architectures"].items():
            record({"features": list_of(text)})(entry, f"/architectures/{arch}")
    if len(others) != len(set(others) - {first}) or set(others) != set(content["architectures"]):
        _fail("/architectures", "does not list the target's architectures")
    if extra := sorted(set(content["files"]) - {LIBRARY, WEIGHTS}):
        _fail(f"/files/{extra[0]}", "is not a file of an artifact")
    for name, dim in content["dims"].items():
        if dim["min"] > dim["max"]:
            _fail(f"/dims/{name}", "is an empty range")
        if dim.get("step", 1) < 1:
            _fail(f"/dims/{name}/step", "is not positive")
    size = content["files"][WEIGHTS]["bytes"]
    own = {f"/architectures/{arch}": entry for arch, entry in content["architectures"].items()}
    for path, entry in {"": content, **own}.items():
        if set(entry["functions"]) != set(content["functions"]):
            _fail(f"{path}/functions", "does not list the functions")
        for name, weight in entry["weights"].items():
            _check_place(weight, f"{path}/weights/{name}", size, alignment)
        for name, function in entry["functions"].items():
            whole = content["functions"][name]
            _check_names(function, whole, entry["weights"], f"{path}/functions/{name}")

    if "workers" in content:
        _check_workers(content, size, alignment)


def _check_workers(content: Mapping[str, Any], bytes_: int, alignment: int) -> None:
    """Check that each worker has the weights of the first, and that parts fit their tensors."""
    workers = content["workers"]
    size, others = workers["size"], workers["weights"]
    if size < 2 or len(others) != size - 1:
        _fail("/workers/weights", "does not list the workers from 1")
    first, *archs = content["target"]["archs"]
    own = {first: content} | {arch: content["architectures"][arch] for arch in archs}
    for rank, of_archs in enumerate(others, 1):
        if set(of_archs) != set(own):
            _fail(f"/workers/weights/{rank - 1}", "does not list the target's architectures")
        for arch, weights in of_archs.items():
            path = f"/workers/weights/{rank - 1}/{arch}"
            if set(weights) != set(own[arch]["weights"]):
                _fail(path, "does not list the weights")
            for name, weight in weights.items():
                _check_place(weight, f"{path}/{name}", bytes_, alignment)
                if weight["shape"] != own[arch]["weights"][name]["shape"]:
                    _fail(f"{path}/{name}/shape", "is not that of worker 0")
    if set(workers["functions"]) != set(content["functions"]):
        _fail("/workers/functions", "does not list the functions")
    for function, kinds in workers["functions"].items():
        for kind, shards in kinds.items():
            specs = {spec["name"]: spec for spec in content["functions"][function][kind]}
            for name, shard in shards.items():
                path = f"/workers/functions/{function}/{kind}/{name}"
                if name not in specs or shard["axis"] >= len(specs[name]["shape"]):
                    _fail(path, "is no axis of a tensor")
                even = all(n % size == 0 for n in shard["segments"])
                if not even or sum(shard["segments"]) != size * specs[name]["shape"][shard["axis"]]:
                    _fail(f"{path}/segments", "does not fit the shape")


def _check_place(weight: Mapping[str, Any], path: str, size: int, alignment: int) -> None:
    """Check that a weight lies in the file as its shape says."""
    shape = weight.get("packed", weight)["shape"]
    if math.prod(shape) * np.dtype(weight["dtype"]).itemsize != weight["bytes"]:
        _fail(f"{path}/bytes", "does not fit the shape")
    if weight["offset"] % alignment or weight["offset"] + weight["bytes"] > size:
        _fail(f"{path}/offset", f"does not lie in {WEIGHTS}")


def _check_names(
    function: Mapping[str, Any], signature: Mapping[str, Any], weights: Mapping[str, Any], path: str
) -> None:
    """Check that what a function names is there."""
    known = {
        "weights": weights,
        "in_place": {spec["name"] for spec in signature["inputs"]},
        "destinations": {spec["name"] for spec in signature["outputs"]},
    }
    for entry, names in known.items():
        for name in function.get(entry, ()):
            if name not in names:
                _fail(f"{path}/{entry}", f"names {name!r}, which is not there")
    for output in function.get("in_place", {}).values():
        if output not in known["destinations"]:
            _fail(f"{path}/in_place", f"names {output!r}, which is not there")
    if "call" in signature:
        taken = [one for key in ("arguments", "keywords") for _, one in signature["call"][key]]
        of_call = {"inputs": taken, "outputs": [signature["call"]["results"]]}
        for kind, trees in of_call.items():
            there = {spec["name"] for spec in signature[kind]}
            if lacking := [n for one in trees for n in names_of(one) if n not in there]:
                _fail(f"{path}/call", f"names {lacking[0]!r}, which is not there")
    for kind in ("inputs", "outputs"):
        names = [spec["name"] for spec in signature[kind]]
        if kind == "inputs" and len(set(names)) != len(names):
            _fail(f"{path}/{kind}", "has two of one name")
