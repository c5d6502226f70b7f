"""Losses that torch's own decompositions compute wrongly."""

from __future__ import annotations

from typing import Any

import torch

_MEAN, _SUM = 1, 2  # of at::Reduction


def multilabel_margin_loss(x: Any, target: Any, reduction: int) -> tuple[Any, Any]:
    """Decompose ``aten.multilabel_margin_loss_forward``; arguments are torch's.

    Torch's decomposition counts the margins of the classes behind a row's first -1 as well.
    """
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    size = rows.shape[1]
    places = torch.arange(size, device=x.device)
    ends = torch.where(labels == -1, places, size).amin(1, keepdim=True)
    is_listed = places < ends
    listed = torch.where(is_listed, labels, -1)
    is_target = (listed.unsqueeze(2) == places).any(1)
    of_target = torch.gather(rows, 1, torch.where(is_listed, labels, 0))
    margins = (1 - of_target.unsqueeze(2) + rows.unsqueeze(1)).clamp(min=0) / size
    counted = is_listed.unsqueeze(2) & ~is_target.unsqueeze(1)
    loss = torch.where(counted, margins, 0).sum((1, 2))
    if reduction == _MEAN:
        loss = loss.mean()
    elif reduction == _SUM:
        loss = loss.sum()
    elif x.dim() < 2:
        loss = loss.reshape(())
    return loss, is_target.to(x.dtype).reshape(target.shape)


DECOMPOSITIONS = {torch.ops.aten.multilabel_margin_loss_forward.default: multilabel_margin_loss}
