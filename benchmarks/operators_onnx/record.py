"""The record of a sweep: a letter a case, by name order, and why operators are refused."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.records import read
from tvm_fusion.errors import UserError

from .pool import Verdict

#: Changes when a field of the JSON file changes its meaning or goes.
SCHEMA = 1
HERE = Path(__file__).parent
RECORD = HERE / "results" / "verdicts.json.xz"
LETTERS = {"right": ".", "refused": "-", "wrong": "x", "crash": "!", "hang": "~"}
VERDICTS = {letter: verdict for verdict, letter in LETTERS.items()}
#: Cases that stock TVM gets right by chance, and why they are refused.
BY_CHANCE = {
    "node/cast_e8m0_FLOAT8E8M0_to_FLOAT": "8-bit floats are refused; the way back is wrong",
    "node/cast_e8m0_FLOAT8E8M0_to_FLOAT16": "8-bit floats are refused; the way back is wrong",
    "node/training_dropout_zero_ratio": "training_mode is an input; stock never drops anything",
    "node/training_dropout_zero_ratio_mask": "as above; the mask of stock has a wrong type",
}


def digest(operators: Mapping[str, str]) -> str:
    """Return a checksum of the names of the cases, to which the letters belong."""
    return hashlib.sha256("\n".join(sorted(operators)).encode()).hexdigest()[:16]


def make(
    operators: Mapping[str, str], ours: Mapping[str, Verdict], stock: Mapping[str, Verdict]
) -> dict[str, Any]:
    """Make the record of a sweep.

    Parameters
    ----------
    operators
        The operator of every case, by the case's name.
    ours, stock : mapping of str to (verdict, reason)
        By the case's name.
    """
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for name, (verdict, reason) in sorted(ours.items()):
        if verdict != "right":
            reasons[operators[name]][shortened(reason)] += 1
    packages = ("onnx", "apache-tvm", "apache-tvm-ffi")
    return {
        "schema": SCHEMA,
        "versions": {name: version(name) for name in packages},
        "names": digest(operators),
        "ours": letters(operators, ours),
        "stock": letters(operators, stock),
        "reasons": {name: dict(c.most_common(3)) for name, c in sorted(reasons.items())},
    }


def letters(operators: Mapping[str, str], verdicts: Mapping[str, Verdict]) -> list[str]:
    """Write verdicts as letters in the order of the names, 100 a line."""
    text = "".join(LETTERS[verdicts[name][0]] for name in sorted(operators))
    return [text[i : i + 100] for i in range(0, len(text), 100)]


def verdicts_of(record: Mapping[str, Any], field: str, operators: Mapping[str, str]) -> dict:
    """Read a field of letters back: the verdict of each case by name.

    Raises
    ------
    UserError
        When the record is of other cases, those of another version of onnx.
    """
    if record["names"] != digest(operators):
        raise UserError(
            f"the record is of onnx {record['versions']['onnx']}, whose cases are others",
            f"the cases of onnx {version('onnx')}",
            "run python -m benchmarks.operators_onnx --stock",
        )
    text = "".join(record[field])
    return {name: VERDICTS[text[i]] for i, name in enumerate(sorted(operators))}


def load(path: Path = RECORD) -> dict[str, Any]:
    """Read a record; UserError when the file is missing or has another schema."""
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}", "a record", "run it without --table")
    record = read(path)
    if record.get("schema") != SCHEMA:
        raise UserError(f"{path.name} has schema {record.get('schema')}", str(SCHEMA), "run again")
    return record


def shortened(reason: str) -> str:
    """Drop what differs between cases of one operator: names, sizes, the model's name."""
    text = re.sub(r"^ModelProto(: | has | cannot be imported )", "", reason)
    text = re.sub(r"'[^']*'", "'...'", text)
    text = re.sub(r"\((\w+x|output [^)]*|[^()]* and \d+ more|\w+)\)", "", text)
    text = re.sub(r"(operator|operators) '?(\w+)'?( '\.\.\.')?", r"\1 \2", text)
    text = text.split(" (its inputs: ")[0].split("; ")[0].replace("|", "/")
    return re.sub(r"\s+", " ", text).strip(" .")[:110]
