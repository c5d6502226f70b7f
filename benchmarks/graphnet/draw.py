"""Which graphs of a checkout are sampled: evenly over its sources, each architecture once."""

import hashlib
import random
import re
from collections import defaultdict
from pathlib import Path

from .sample import elements

#: Variable by which a user names the checkout.
VARIABLE = "GRAPHNET"


def samples(root: Path) -> dict[str, list[str]]:
    """List a checkout's samples by source, each graph once.

    Graphs whose text differs in numbers alone (sizes of a vocabulary, of layers) count as one; the
    first by name stands for them.

    Parameters
    ----------
    root
        A checkout of GraphNet.
    """
    found: dict[str, list[str]] = defaultdict(list)
    seen = set()
    for path in sorted((root / "samples").rglob("model.py")):
        text = re.sub(r"\d+", "0", path.read_text())
        key = hashlib.sha256(text.encode()).digest()
        if text and key not in seen:
            seen.add(key)
            name = path.parent.relative_to(root / "samples")
            found[name.parts[0]].append(name.as_posix())
    return dict(found)


def drawn(root: Path, count: int, seed: int, most: int) -> list[str]:
    """Draw samples, a source after the other until all have given one, and again.

    Parameters
    ----------
    root
        A checkout of GraphNet.
    most
        Elements of weights and inputs beyond which a graph is passed over, as is one that the
        collection does not describe.
    """
    sources = samples(root)
    for names in sources.values():
        random.Random(seed).shuffle(names)
    chosen: list[str] = []
    while len(chosen) < count and any(sources.values()):
        for names in sources.values():
            while names:
                name = names.pop()
                if 0 < elements(root / "samples" / name) <= most:
                    chosen.append(name)
                    break
    return chosen[:count]
