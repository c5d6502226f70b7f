"""Pages that are made of the code and of other files, when the site is built.

``write`` puts them into ``docs/generated``: ``codes``, ``laws``, ``mapping`` and ``passes`` from
the package's source, ``copies`` from the tutorials, the benchmarks' pages and the changelog.
"""

from collections.abc import Mapping
from pathlib import Path

from . import codes, copies, laws, mapping, passes


def pages() -> dict[str, str]:
    """Make every page; by its path in ``docs/generated``, without the suffix ``.md``."""
    return {
        "decision_codes": codes.page(),
        "laws": laws.page(),
        "mapping_table": mapping.page(),
        "passes": passes.page(),
        **copies.pages(),
    }


def write(folder: Path, made: Mapping[str, str]) -> None:
    """Write pages and remove others; what stays the same keeps its time, so Sphinx skips it."""
    wanted = {folder / f"{name}.md": text for name, text in made.items()}
    for path in set(folder.rglob("*.md")) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
