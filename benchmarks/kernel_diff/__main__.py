"""Compare the kernels that two commits generate: ``python -m benchmarks.kernel_diff BASE [HEAD]``.

Every graph's kernels are written by either commit, in a checkout of its own, and compared as text.
With ``--rename``, names of variables, buffers and blocks may differ. Exit code 1 where one differs.
"""

from __future__ import annotations

import argparse
import difflib
import keyword
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TARGETS = "cpu:x86-64-v3 cpu:x86-64-v4 cuda:sm_80 cuda:sm_90a rocm:gfx942"
MODELS = "bert_base t5_small_enc llama_4l"
ROOT = Path(__file__).parents[2]


_WORD = re.compile(r'"[^"\n]*"|\bT\.[\w.]+|\b[A-Za-z_]\w*')


def differences(base: Path, head: Path, lines: int, rename: bool = False) -> Iterator[str]:
    """Yield a paragraph for each file that differs: its name and the start of its diff."""
    names = {p.relative_to(d) for d in (base, head) for p in d.rglob("*.txt")}
    for name in sorted(names):
        before, after = (_lines(folder / name, rename) for folder in (base, head))
        if before != after:
            diff = list(difflib.unified_diff(before, after, "base", "head", lineterm="", n=2))
            rest = [f"... {len(diff) - lines} more lines"] if len(diff) > lines else []
            yield "\n".join([f"{name.with_suffix('')} differs:", *diff[:lines], *rest])


def _lines(path: Path, rename: bool) -> list[str]:
    if not path.exists():
        return ["(no such graph)"]
    # TVM lists what a block reads and writes in the order of addresses.
    lines = [
        line
        for line in path.read_text().splitlines()
        if not line.lstrip().startswith(("T.reads(", "T.writes("))
    ]
    return _renamed("\n".join(lines)).splitlines() if rename else lines


def _renamed(text: str) -> str:
    """Replace names by numbers, in the order in which each kernel uses them."""

    def kernel(part: str) -> str:
        names: dict[str, str] = {}

        def number(match: re.Match[str]) -> str:
            word = match.group()
            is_fixed = word.startswith(("T.", '"')) or keyword.iskeyword(word)
            return word if is_fixed else names.setdefault(word, f"v{len(names)}")

        part = re.sub(r'T\.sblock\("\w*"\)', "T.sblock()", part)
        return _WORD.sub(number, part)

    return "\n\n".join(sorted(map(kernel, text.split("\n\n"))))


def _collect(commit: str, scratch: Path, targets: str, models: str) -> Path:
    """Check out a commit and let it write its kernels; the working tree stands for ``""``."""
    tree, out = (scratch / f"{part}-{commit or 'tree'}" for part in ("tree", "kernels"))
    if commit:
        subprocess.run(
            ["git", "-C", ROOT, "worktree", "add", "--detach", "-q", tree, commit], check=True
        )
    checkout = tree if commit else ROOT
    try:
        # run_path keeps this folder off the path: modules come from the checkout alone.
        path = str(Path(__file__).with_name("collect.py"))
        script = f"import runpy; runpy.run_path({path!r}, run_name='__main__')"
        subprocess.run(
            [sys.executable, "-c", script, out, targets, models],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            check=True,
        )
    finally:
        if commit:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)
    return out


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.kernel_diff", description=__doc__)
    parser.add_argument("base", help="a commit")
    parser.add_argument("head", nargs="?", default="", help="a commit; the working tree if omitted")
    parser.add_argument("--targets", default=TARGETS, help=f"default: {TARGETS}")
    parser.add_argument("--models", default=MODELS, help=f"of the zoo; default: {MODELS}")
    parser.add_argument("--rename", action="store_true", help="names may differ")
    parser.add_argument("--lines", type=int, default=40, help="of each diff that are shown")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folders = [
            _collect(commit, Path(scratch), options.targets, options.models)
            for commit in (options.base, options.head)
        ]
        files = len(list(folders[0].rglob("*.txt")))
        found = list(differences(*folders, options.lines, options.rename))
    print(*found, sep="\n\n")
    print(f"{len(found)} of {files} graphs and targets differ in their kernels")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
