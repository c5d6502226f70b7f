"""What an artifact's decisions say, in a few lines: `tvm-fusion explain` has them one by one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..words import counted

_SHOWN = 5  # lines of notes


@dataclass(frozen=True)
class Notes:
    """Decisions of a manifest, by what they are about."""

    not_fused: int  # pairs of operators that share no kernel
    not_recomposed: int  # places that look like a decomposed operator, and stay as they are
    others: tuple[Mapping[str, Any], ...]  # what a stage could not do as it wanted, one by one

    @classmethod
    def of(cls, decisions: Iterable[Mapping[str, Any]]) -> Notes:
        """Sort decisions: those of the planner name two classes, of recomposition a pattern."""
        pairs: set[tuple] = set()
        misses, others = 0, []
        for decision in decisions:
            if decision["verdict"] == "refused" and decision["classes"]:
                pairs.add(tuple(map(str, (decision[end] for end in ("producer", "consumer")))))
            elif decision["verdict"] == "refused" and decision["consumer"]:
                misses += 1
            elif decision.get("code") != "needs_flag":  # nobody asked for what it would allow
                others.append(decision)
        return cls(len(pairs), misses, tuple(others))


def explain_command(manifest: Mapping[str, Any], target: str | None = None) -> str | None:
    """Write the command that explains an artifact: the same model with the same options.

    Of several architectures, it explains the first; None for what was compiled in Python from
    something other than a file.

    Parameters
    ----------
    target
        What the user wrote; otherwise the manifest's, which names this machine's CPU.
    """
    if "options" not in manifest:
        return None
    found = manifest["target"]
    if len(found["archs"]) > 1:
        target = f"{found['kind']}:{found['archs'][0]}"
    chosen = target or found["text"]
    where = [] if chosen == "cpu" else ["--target", chosen]
    return shlex.join(["tvm-fusion", "explain", manifest["source"], *where, *manifest["options"]])


def lines(notes: Notes, explain: str | None) -> list[str]:
    """Say what there is to know: a line on fusion, and a few on the rest.

    Parameters
    ----------
    explain
        The command that has the reasons.

    Returns
    -------
    list of str
        At most one line more than are shown of other notes, and one that counts the rest.
    """
    pairs = []
    if notes.not_fused:
        pairs.append(f"{counted(notes.not_fused, 'pair')} of operators not fused")
    if notes.not_recomposed:
        pairs.append(f"{counted(notes.not_recomposed, 'pattern')} not recomposed (--rewrites)")
    reasons = f"; reasons: {explain}" if explain else ""
    text = [f"{', '.join(pairs)}{reasons}"] if pairs else []
    equal: dict[str, list[str]] = {}
    for decision in notes.others:
        equal.setdefault(decision["sentence"], []).append(decision["producer"])
    for sentence, names in list(equal.items())[:_SHOWN]:
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        text.append(f"{names[0]}{others}: {sentence}")
    if len(equal) > _SHOWN:
        text.append(f"{counted(len(equal) - _SHOWN, 'other note')}: see --json")
    return text


def precision_line(precision: str, measured: Iterable[Mapping[str, Any]]) -> str:
    """Say why a precision was chosen: errors against bounds, and times of what is within them."""
    parts = []
    for one in measured:
        error = "of another result" if one["error"] is None else f"{one['error']:.1e}"
        time = f"{one['milliseconds']:.2f} ms, " if "milliseconds" in one else ""
        limit = f"error {error} (bound {one['bound']:g})"
        parts.append(f"{one['precision']} {time}{limit if one['precision'] != 'fp32' else ''}")
    return f"{precision} is the fastest within its bound: {'; '.join(p.strip(' ,') for p in parts)}"
