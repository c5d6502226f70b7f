"""Files of the checkout as pages: tutorials, benchmarks' pages, the changelog.

Pages of benchmarks about the compiler itself are on the site alone, made of their records.
Links between files become links between pages; a link to a file that is no page keeps its text.
Images stay where they are.
"""

import importlib
import os.path
import re
from pathlib import Path, PurePosixPath

import jupytext

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "docs/generated"
#: Benchmarks with ``page`` in their module ``table``, which a link to their folder means.
RECORDED = (
    *("amd_clocks", "amd_emulator", "compile_time", "gpu_sanitizer"),
    *("half_sweep", "owners", "prices"),
)
#: A Markdown link or image with its text; not of an address, nor of a place in the same page.
LINK = re.compile(r"(!?)\[([^\]\[]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def sources() -> dict[str, str]:
    """List the files, relative to the checkout, with their pages' names."""
    found = {"CHANGELOG.md": "changelog", "CONTRIBUTING.md": "contributing"}
    for path in sorted((ROOT / "benchmarks").rglob("*.md")):
        file = path.relative_to(ROOT)
        found[str(file)] = str(file.with_suffix("")).replace("/README", "")
    found |= {f"benchmarks/{name}": f"benchmarks/{name}" for name in RECORDED}
    found["benchmarks/README.md"] = "benchmarks/all_results"
    for path in sorted((ROOT / "tutorials").glob("*.py")):
        found[f"tutorials/{path.name}"] = f"tutorials/{path.stem}"
    return found


def pages() -> dict[str, str]:
    """Make the pages, by name."""
    names = sources()
    return {name: relinked(_text(ROOT / file), file, names) for file, name in names.items()}


def relinked(text: str, file: str, names: dict[str, str]) -> str:
    """Let the links of a file lead from page to page.

    Parameters
    ----------
    text : str
        Markdown.
    file : str
        The file that it comes from; links are relative to it.
    names : dict of str to str
        Pages by file.
    """
    here = PurePosixPath(names[file]).parent
    folder = file if (ROOT / file).is_dir() else PurePosixPath(file).parent

    def page(link: re.Match[str]) -> str:
        is_image, label, target, place = link[1], link[2], link[3], link[4] or ""
        aim = os.path.normpath(PurePosixPath(folder, target))
        if is_image:
            return f"![{label}]({os.path.relpath(ROOT / aim, GENERATED / here)})"
        if aim not in names:
            return label
        return f"[{label}]({os.path.relpath(names[aim], here)}.md{place})"

    return LINK.sub(page, text)


def _text(path: Path) -> str:
    if path.is_dir():
        table = importlib.import_module(f"benchmarks.{path.name}.table")
        return str(table.page())
    if path.suffix == ".md":
        return path.read_text().replace("```mermaid", "```text")  # drawn by a script of the network
    notebook = jupytext.read(path)
    notebook.metadata.clear()
    text = jupytext.writes(notebook, fmt="md")
    return re.sub(r"\A---\n.*?\n---\n+", "", text, flags=re.DOTALL)
