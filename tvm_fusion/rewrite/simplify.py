"""The rewriting stage: simplifications of TVM's, and what rules make cheaper."""

from __future__ import annotations

from collections.abc import Collection

import tvm
from tvm import relax
from tvm.ir.transform import Pass, PassContext
from tvm.target import Target

from ..config import FusionConfig
from ..core.decisions import Decision, record
from ..core.flags import Search
from ..core.untouched import on_rewritable
from ..frontend.normalize.expand_batch_norm import ExpandBatchNorm
from ..frontend.normalize.fold_constants import FoldConstants
from ..frontend.normalize.read_extents import ReadExtents
from . import rules
from .bytes.products import ByteProducts
from .common_subexpr import CommonSubexpr
from .norms.statistics import NormStatistics
from .products.batch_matmuls import BatchMatmuls
from .products.join_matmuls import JoinMatmuls
from .products.transposed_phases import TransposedConvByPhases
from .products.weight_layout import TransposeNarrowWeights
from .recompose.recompose import Recompose
from .search.dnnfusion_search import GreedyEquivalents
from .search.search import SearchEquivalents


@tvm.transform.module_pass(opt_level=0, name="Rewrite")
class Rewrite:
    """Turn a graph into a cheaper equivalent one.

    Inference forms of batch norm and dropout, no aliases, no expression computed twice, nothing
    computed that no output needs; then what is algebra: products of quantised tensors as products
    of bytes, operators in the place of what exporters wrote out, equal forms that are cheaper,
    matrix products of one left operand joined, independent ones batched, transposed convolutions by
    phases on CPUs, weights of narrow types in the order of tensor cores, and norms between two
    products as factors of rows.

    Parameters
    ----------
    search : {"search", "greedy", "none"}
        How equal forms are found; "none" leaves all algebra out.
    allow : collection of str
        Flags of laws outside floating point's promise:
        :data:`tvm_fusion.core.flags.FLAGS`.
    without : collection of str
        Names of rules that may not be used.

    Raises
    ------
    UserError
        For a name that is none of the above.
    """

    def __init__(
        self,
        search: Search = "search",
        allow: Collection[str] = (),
        without: Collection[str] = (),
    ) -> None:
        chosen = FusionConfig(rewrite=search, allow=allow, without=without)
        rules.check_names(chosen.without)
        self._options = chosen

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function."""
        # What is stored depends on the target: FoldConstants of the import did not know it.
        inference = (ExpandBatchNorm(), ReadExtents(), relax.transform.DecomposeOpsForInference())
        mod = on_rewritable(*inference, FoldConstants(), *_tidy())(mod)
        if self._options.rewrite == "none":
            return mod
        without = self._options.without
        if "byte_products" not in without:
            mod = on_rewritable(ByteProducts())(mod)
        if Target.current() is None:
            sentence = "There is no current target, so forms cannot be compared by cost."
            record(Decision("Rewrite", "", "refused", "no_target", sentence))
            found = mod
        else:
            found = on_rewritable(Recompose(without, self._options.flags), self._search())(mod)
        if not _same(found, mod):
            found = on_rewritable(FoldConstants(), *_tidy())(found)
        last = {
            "transposed_phases": TransposedConvByPhases(),
            "batch_matmuls": BatchMatmuls(),
            "join_matmuls": JoinMatmuls(),
            "narrow_weights": TransposeNarrowWeights(),
            "norm_statistics": NormStatistics(),
        }
        return on_rewritable(*(rule for name, rule in last.items() if name not in without))(found)

    def _search(self) -> Pass:
        laws = rules.laws(self._options.flags, self._options.without)
        if self._options.rewrite == "greedy":
            return GreedyEquivalents(laws)
        return SearchEquivalents(laws)


def _tidy() -> list[Pass]:
    return [
        relax.transform.CanonicalizeBindings(),
        CommonSubexpr(),
        relax.transform.DeadCodeElimination(),
    ]


def _same(one: tvm.IRModule, other: tvm.IRModule) -> bool:
    return all(func.same_as(other[gvar]) for gvar, func in one.functions.items())
