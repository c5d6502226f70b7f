"""Matrix products are associative, and linear in each operand."""

from tvm import relax

from ....core.contract.template import Refusal
from ...egraph.facts.axes import keeps_axes, permutation, reduce, reduced_axes
from ...egraph.facts.extents import all_same, extents, nbytes, reshaped, same
from ...egraph.law import Equation, Law, Match
from ...egraph.pattern import function, tensors
from ..conditions import Careful

a, b, c, d = tensors("a b c d")
total = function("relax.sum", "axes")
permute = function("relax.permute_dims", "swap")

VECTOR = Refusal("vector", "An operand has no rows or no columns.")


def matrices(match: Match, *names: str) -> bool:
    """Whether tensors have rows and columns."""
    return all(match.type(name).ndim >= 2 for name in names)


class Linear(Law):
    """What holds of matrix products because they are linear in each operand."""

    needs = "reassociate"  # other intermediate results may overflow, or cancel
    is_modular = True

    def mixed(self, match: Match, *names: str) -> Refusal | None:
        """Refuse products that are wider than their operands, where these would be added."""
        dtype = match.graph[match.root].type.dtype
        if all(match.type(name).dtype == dtype for name in names):
            return None
        return Refusal("mixed_types", "The product is wider than its operands.")


class AddRows(Careful, Linear):
    """a @ c + b @ c = (a + b) @ c."""

    name = "add_rows"
    before = a @ c + b @ c
    after = (a + b) @ c
    both = True

    def check(self, match: Match) -> Refusal | None:
        first, second = match.type("a"), match.type("b")
        ranks = min(first.ndim, second.ndim), match.type("c").ndim
        # A bias is a row: it meets a matrix that is no batch.
        if not (min(ranks) >= 2 or ranks == (1, 2)):
            return VECTOR
        if not same(extents(first)[-1], extents(second)[-1]):
            return Refusal(
                "different_shapes", "One summand is broadcast along the reduced axis (K)."
            )
        return self.mixed(match, "a", "b", "c")


class AddColumns(Careful, Linear):
    """a @ b + a @ c = a @ (b + c)."""

    name = "add_columns"
    terms = "bc"
    before = a @ b + a @ c
    after = a @ (b + c)
    both = True

    def check(self, match: Match) -> Refusal | None:
        if not matrices(match, "a", "b", "c"):
            return VECTOR
        first, second = extents(match.type("b"))[-2:], extents(match.type("c"))[-2:]
        if all_same(first, second):
            return self.mixed(match, "a", "b", "c")
        return Refusal("different_shapes", "One summand is broadcast along rows or columns.")


class SubtractRows(AddRows):
    """a @ c - b @ c = (a - b) @ c."""

    name = "subtract_rows"
    before = a @ c - b @ c
    after = (a - b) @ c


class SubtractColumns(AddColumns):
    """a @ b - a @ c = a @ (b - c)."""

    name = "subtract_columns"
    before = a @ b - a @ c
    after = a @ (b - c)


class Associate(Linear):
    """a @ b @ c = a @ (b @ c)."""

    name = "associate_matmul"
    before = (a @ b) @ c
    after = a @ (b @ c)
    both = True

    def check(self, match: Match) -> Refusal | None:
        vectors = [name for name in "abc" if match.type(name).ndim < 2]
        if vectors and not self._is_chain(match, vectors):
            return VECTOR
        for first, second in (("a", "b"), ("b", "c")):
            numbers = match.number(first), match.number(second)
            if all(match.graph[n].is_constant for n in numbers):
                return self._large(match, first, second) or self.mixed(match, "a", "b", "c")
        return self.mixed(match, "a", "b", "c")

    @staticmethod
    def _is_chain(match: Match, vectors: list[str]) -> bool:
        """Whether vectors stand at one end of a chain of matrices, and no batch is broadcast."""
        ranks = {name: match.type(name).ndim for name in "abc"}
        return len(vectors) == 1 and vectors != ["b"] and sorted(ranks.values()) == [1, 2, 2]

    @staticmethod
    def _large(match: Match, first: str, second: str) -> Refusal | None:
        """Refuse a product of constants that folding would not store."""
        one, two = match.type(first), match.type(second)
        rows, columns = extents(one)[:-1], extents(two)[-1:]
        sizes = nbytes(one), nbytes(two), nbytes(relax.TensorType([*rows, *columns], one.dtype))
        if None in sizes or sizes[2] > sizes[0] + sizes[1]:  # type: ignore[operator]
            return Refusal("large_constant", "The product of the constants is larger than both.")
        return None


class MergeLowRank(Linear):
    """a @ b + a @ c @ d = a @ (b + c @ d)."""

    name = "merge_low_rank"
    before = a @ b + (a @ c) @ d
    after = a @ (b + c @ d)

    def check(self, match: Match) -> Refusal | None:
        """Refuse weights of run time, and sums that are broadcast: those would be stored."""
        graph = match.graph
        if not all(graph[match.number(name)].is_constant for name in "bcd"):
            return Refusal("not_constant", "A weight is computed at run time: it would be joined.")
        if any(match.type(name).ndim != 2 for name in "bcd"):
            return Refusal("not_a_matrix", "A weight is no matrix.")
        rows, columns = extents(match.type("c"))[:1], extents(match.type("d"))[1:]
        if not all_same(extents(match.type("b")), [*rows, *columns]):
            return Refusal("different_shapes", "One summand is broadcast along rows or columns.")
        return self.mixed(match, "a", "b", "c", "d")


def _transposed_product(match: Match) -> Refusal | None:
    rank, head = match.graph[match.root].type.ndim, match.head("swap")
    if {match.type("a").ndim, match.type("b").ndim} != {rank} or rank < 2:
        return Refusal("batches", "The operands have different ranks.")
    if permutation(head, rank) == [*range(rank - 2), rank - 1, rank - 2]:
        return None
    return Refusal("not_transposed", "Axes other than rows and columns are permuted.")


class SumOfProduct(Linear):
    """sum(a @ b, axes) = a @ sum(b, axes)."""

    name = "sum_of_product"
    before = total(a @ b)
    after = a @ total(b)
    axis = -1  # along which elements of one result, and of one operand, are added

    def check(self, match: Match) -> Refusal | None:
        if not matrices(match, "a", "b"):
            return VECTOR
        rank = max(match.type("a").ndim, match.type("b").ndim)
        if reduced_axes(match.head("axes"), rank) == [rank + self.axis]:
            return self.mixed(match, "a", "b")
        return Refusal("other_axes", "Axes other than rows or columns of the product are reduced.")

    def rewrite(self, match: Match) -> int | None:
        graph, head = match.graph, match.head("axes")
        operands = [match.number("a"), match.number("b")]
        # Kept until the product is done, so that the operand stays a matrix.
        summed = reduce(match, "relax.sum", operands[self.axis], [self.axis], True, self.name)
        if summed is None:
            return None
        operands[self.axis] = summed
        number = graph.add(match.head("@"), operands, self.name)
        if number is None or keeps_axes(head):
            return number
        return reshaped(graph, number, extents(graph[match.root].type), self.name)


class SumOfProductRows(SumOfProduct):
    """sum(a @ b, axes) = sum(a, axes) @ b."""

    name = "sum_of_product_rows"
    after = total(a) @ b
    axis = -2


LAWS: tuple[Law, ...] = (
    AddRows(),
    AddColumns(),
    SubtractRows(),
    SubtractColumns(),
    Associate(),
    MergeLowRank(),
    Equation(
        "transposed_product",
        permute(a) @ permute(b),
        permute(b @ a),
        _transposed_product,
        both=True,
    ),
    SumOfProduct(),
    SumOfProductRows(),
)
