"""Decompose torch's composed operators over half types in float32, rounded once.

Torch's decompositions are made of operators that each round to the half type; what its kernels
compute in float32 overflows then, or vanishes: see :mod:`..half.intermediates`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

_HALVES = (torch.float16, torch.bfloat16)
# Those that compute something between their arguments and their results. Products of matrices are
# none: their sums are of float32 already, and kernels read their operands in half types.
_NAMES = """
    _weight_norm addcdiv addcmul affine_grid_generator binary_cross_entropy
    binary_cross_entropy_with_logits celu corrcoef cosine_embedding_loss cosine_similarity cov cross
    cross_entropy_loss ctc_loss cumulative_trapezoid dist fake_quantize_per_channel_affine
    fake_quantize_per_tensor_affine frobenius_norm glu gradient hardsigmoid hardswish
    hinge_embedding_loss huber_loss instance_norm kl_div l1_loss lerp linalg_cross
    linalg_matrix_norm linalg_norm log_sigmoid log_sigmoid_forward logaddexp logaddexp2 logit
    logsumexp margin_ranking_loss mish mse_loss multi_margin_loss multilabel_margin_loss
    multilabel_margin_loss_forward mvlgamma nanmean nll_loss nll_loss2d nll_loss2d_forward
    nll_loss_forward nll_loss_nd norm norm_except_dim pairwise_distance pdist poisson_nll_loss
    quantile nanquantile renorm rms_norm sinc smooth_l1_loss soft_margin_loss softplus
    special_entr special_log_ndtr special_logsumexp special_ndtr special_xlog1py special_xlogy
    trapezoid trapz triplet_margin_loss upsample_bicubic2d upsample_bilinear2d
    upsample_linear1d upsample_trilinear3d _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    _upsample_lanczos2d_aa var var_mean xlogy
"""
COMPOSED = frozenset(_NAMES.split())
# Powers of bfloat16 leave float32's range where their root, or what they are divided by, does not.
_POWERS = """
    _weight_norm corrcoef cosine_embedding_loss cosine_similarity dist frobenius_norm
    linalg_matrix_norm linalg_norm norm norm_except_dim pairwise_distance pdist renorm
    triplet_margin_loss var var_mean
"""
_OF_POWERS = frozenset(_POWERS.split())
# Linear in their tensor, and composed of differences: of bfloat16 those may leave float32's range.
_DIFFERENCES = frozenset(f"upsample_{kind}" for kind in ("linear1d", "bilinear2d", "trilinear3d"))
_SMALLER = 0.25


def in_float32(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of a table that are to be replaced, each between casts."""
    named = {
        target: target._schema.name.rpartition("::")[2]
        for target in table
        if isinstance(target, torch._ops.OpOverload)
    }
    return {
        target: _between_casts(table[target], name)
        for target, name in named.items()
        if name in COMPOSED
    }


def _between_casts(decomposition: Callable[..., Any], name: str) -> Callable[..., Any]:
    # A power of two by which bfloat16 is to be multiplied.
    factor = _SMALLER if name in _DIFFERENCES else 1.0

    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        dtypes = {x.dtype for x in tensors if x.is_floating_point() or x.is_complex()}
        # Beside a wider tensor a half one is promoted anyway.
        if len(dtypes) != 1 or not dtypes.issubset(_HALVES):
            return decomposition(*args, **kwargs)
        (dtype,) = dtypes
        asked = kwargs.get("dtype")
        is_wider = dtype == torch.bfloat16 and name in _OF_POWERS
        wide = torch.float64 if is_wider else torch.float32
        wide_args, wide_kwargs = pytree.tree_map(lambda x: _cast(x, dtype, wide), (args, kwargs))
        if factor != 1 and dtype == torch.bfloat16:
            smaller, *rest = wide_args
            return (decomposition(smaller * factor, *rest, **wide_kwargs) / factor).to(dtype)
        results = decomposition(*wide_args, **wide_kwargs)
        return pytree.tree_map(lambda x: _cast(x, wide, asked or dtype), results)

    return run


def _cast(value: Any, given: torch.dtype, wanted: torch.dtype) -> Any:
    is_given = isinstance(value, torch.Tensor) and value.dtype == given
    return value.to(wanted) if is_given else value
