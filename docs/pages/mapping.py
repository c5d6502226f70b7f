"""The mapping table, from the code that decides by it."""

from tvm_fusion.ecg.mapping_types.table import MappingType, Relation, combine

_WORDS = {Relation.THROUGH: "fused", Relation.DEPEND: "depends", Relation.BREAK: "not fused"}


def page() -> str:
    """Write the table; rows are producers, columns their consumers."""
    types = [kind for kind in MappingType if kind is not MappingType.OPAQUE]
    lines = ["| | " + " | ".join(kind.value for kind in types) + " |", "| --- " * 6 + "|"]
    for first in types:
        cells = [combine(first, second) for second in types]
        words = [f"{_WORDS[c.relation]}{f': {c.type.value}' if c.type else ''}" for c in cells]
        lines.append(f"| **{first.value}** | " + " | ".join(words) + " |")
    return "\n".join(lines) + "\n"
