"""What the rewriting stage did to a model, as data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from ...rewrite.egraph.changes import Change, Gain
from ...rewrite.egraph.saturate import Use


@dataclass(frozen=True)
class Rewriting:
    """What the rewriting stage did, and what it did not."""

    changes: tuple[Change, ...]  # in order
    # Statistics of the rules that were tried, by name. A region that is like one before is not
    # searched again: only ``chosen`` and ``gain_us`` count it.
    uses: dict[str, Use] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)  # rules that were not tried, and why not

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values.

        Returns
        -------
        dict
            ``changes``: objects with the attributes of
            :class:`tvm_fusion.rewrite.egraph.changes.Change`, ``gain`` an object or None;
            ``rules``: by
            name ``tried``, ``fired``, ``refused`` (counts by sentence), ``chosen``, ``gain_us``;
            ``unused``: reasons by name.
        """
        return {
            "changes": [asdict(change) for change in self.changes],
            "rules": {
                name: {**asdict(use), "refused": dict(use.refused)}
                for name, use in self.uses.items()
            },
            "unused": dict(self.unused),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Rewriting:
        """Read what :meth:`to_json` gave."""
        return cls(
            tuple(_change(change) for change in data["changes"]),
            {
                name: Use(**{**use, "refused": Counter(use["refused"])})
                for name, use in data["rules"].items()
            },
            dict(data["unused"]),
        )


def _change(data: dict[str, Any]) -> Change:
    gain = data["gain"]
    return Change(
        **{
            **data,
            "rules": tuple(data["rules"]),
            "names": tuple(data["names"]),
            "gain": None if gain is None else Gain(**gain),
        }
    )
