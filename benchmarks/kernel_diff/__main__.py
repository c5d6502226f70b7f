"""Compare the kernels that two commits generate: ``python -m benchmarks.kernel_diff BASE [HEAD]``.

Every graph's kernels are written by either commit, in a checkout of its own, and compared as text;
a process for each commit and target, as many at once as there are cores (``--jobs``).
With ``--rename``, names of variables, buffers and blocks may differ. ``--kinds`` and ``--match``
choose among the graphs: mapping cells, small graphs, functions of PyTorch, models of the zoo.
Exit code 1 where one differs.
"""

import argparse
import difflib
import keyword
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

TARGETS = "cpu:x86-64-v3 cpu:x86-64-v4 cuda:sm_80 cuda:sm_90a rocm:gfx942"
MODELS = "bert_base t5_small_enc llama_4l mobilenet_v2 resnet50 unet2d"
KINDS = "cell graph work model"
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


@contextmanager
def _checkout(commit: str, tree: Path) -> Iterator[Path]:
    """Check out a commit for a while; the working tree stands for ``""``."""
    if not commit:
        yield ROOT
        return
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", "-q", str(tree), commit], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _collect(checkout: Path, out: Path, *options: str) -> None:
    """Let the code of a checkout write its kernels for a target."""
    # run_path keeps this folder off the path. Each commit has a collector of its own, since what
    # it imports may have moved.
    path = str(checkout / Path(__file__).relative_to(ROOT).with_name("collect.py"))
    script = f"import runpy; runpy.run_path({path!r}, run_name='__main__')"
    subprocess.run(
        [sys.executable, "-c", script, str(out), *options],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        check=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.kernel_diff", description=__doc__)
    parser.add_argument("base", help="a commit")
    parser.add_argument("head", nargs="?", default="", help="a commit; the working tree if omitted")
    parser.add_argument("--targets", default=TARGETS, help=f"default: {TARGETS}")
    parser.add_argument("--models", default=MODELS, help=f"of the zoo; default: {MODELS}")
    parser.add_argument("--kinds", default=KINDS, help=f"of graphs; default: {KINDS}")
    parser.add_argument("--match", default="", help="a regular expression that names must match")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument("--rename", action="store_true", help="names may differ")
    parser.add_argument("--lines", type=int, default=40, help="of each diff that are shown")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        commits = {"base": options.base, "head": options.head}
        trees = {
            side: stack.enter_context(_checkout(commit, Path(scratch) / f"tree-{side}"))
            for side, commit in commits.items()
        }
        folders = [Path(scratch) / f"kernels-{side}" for side in trees]
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        chosen = (options.models, options.kinds, options.match)
        runs = [
            pool.submit(_collect, tree, folder, target, *chosen)
            for target in options.targets.split()
            for tree, folder in zip(trees.values(), folders, strict=True)
        ]
        for run in runs:
            run.result()
        files = len(list(folders[0].rglob("*.txt")))
        found = list(differences(*folders, options.lines, options.rename))
    print(*found, sep="\n\n")
    print(f"{len(found)} of {files} graphs and targets differ in their kernels")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
