"""Mapping types of operators and the table that says what fusing two of them gives.

Source: Niu, Guan, Wang, Agrawal, Ren: "DNNFusion: accelerating deep neural networks execution with
advanced operator fusion", PLDI 2021, section 3 (definitions) and table 3.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class MappingType(enum.Enum):
    """How the elements of one output depend on the elements of one input.

    The members stand in the paper's order of complexity, least complex first. ``OPAQUE`` is not in
    the paper: it marks an operator whose index relation could not be read; nothing fuses with it.
    """

    ONE_TO_ONE = "One-to-One"
    REORGANIZE = "Reorganize"
    SHUFFLE = "Shuffle"
    ONE_TO_MANY = "One-to-Many"
    MANY_TO_MANY = "Many-to-Many"
    OPAQUE = "Opaque"

    @property
    def complexity(self) -> int:
        """Rank in the order of complexity, 0 for One-to-One."""
        return _RANK[self]


_RANK = {mapping: rank for rank, mapping in enumerate(MappingType)}


class Relation(enum.Enum):
    """Whether two operators fuse: always, when it pays, or not."""

    THROUGH = "fuse_through"  # green: legal and profitable, no analysis
    DEPEND = "fuse_depend"  # yellow: legal, profitable or not depending on the operators
    BREAK = "fuse_break"  # red: not fused


@dataclass(frozen=True)
class Cell:
    """One entry of the table."""

    # Mapping type of the fused operator, or None where the paper leaves the cell empty.
    type: MappingType | None
    relation: Relation  # whether the two operators fuse


def _rows(text: str) -> dict[tuple[MappingType, MappingType], Cell]:
    """Read the table below: a header line with the second operators, then a line per first one."""
    relations = {"G": Relation.THROUGH, "Y": Relation.DEPEND, "R": Relation.BREAK}
    header, *lines = [line.split("|") for line in text.strip().splitlines()]
    columns = [MappingType(name.strip()) for name in header[1:]]
    cells: dict[tuple[MappingType, MappingType], Cell] = {}
    for name, *entries in lines:
        for column, entry in zip(columns, entries, strict=True):
            result, relation = entry.split()
            kind = None if result == "x" else MappingType(result)
            cells[MappingType(name.strip()), column] = Cell(kind, relations[relation])
    return cells


#: Table 3 of the paper. Row: first operator; column: second operator, which consumes the output of
#: the first. G = fuse_through, Y = fuse_depend, R = fuse_break; "x" = no resulting type.
TABLE = _rows("""
first \\ second | One-to-One     | One-to-Many    | Many-to-Many   | Reorganize     | Shuffle
One-to-One     | One-to-One   G | One-to-Many  G | Many-to-Many G | Reorganize   G | Shuffle      G
One-to-Many    | One-to-Many  G | One-to-Many  Y | x            R | One-to-Many  Y | One-to-Many  Y
Many-to-Many   | Many-to-Many G | Many-to-Many Y | x            R | Many-to-Many Y | Many-to-Many Y
Reorganize     | Reorganize   G | One-to-Many  Y | Many-to-Many Y | Reorganize   G | Reorganize   G
Shuffle        | Shuffle      G | One-to-Many  Y | Many-to-Many Y | Reorganize   G | Shuffle      G
""")


def combine(first: MappingType, second: MappingType) -> Cell:
    """Look up what fusing `first` with `second`, the consumer of its output, gives.

    Parameters
    ----------
    first, second
        Mapping types of producer and consumer.

    Returns
    -------
    Cell
        The table's cell; with an Opaque operator always Opaque and fuse_break.
    """
    if MappingType.OPAQUE in (first, second):
        return Cell(MappingType.OPAQUE, Relation.BREAK)
    return TABLE[first, second]


def most_complex(types: Iterable[MappingType]) -> MappingType:
    """Return the most complex of `types`; One-to-One when there is none."""
    return max(types, key=lambda mapping: mapping.complexity, default=MappingType.ONE_TO_ONE)
