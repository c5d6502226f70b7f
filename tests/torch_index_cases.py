"""PyTorch's operators with operands that are indices: functions, inputs in range, extents."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F


@dataclass(frozen=True)
class Indexed:
    """A function whose last ``indices`` arguments are indices."""

    function: Callable[..., torch.Tensor]  # of tensors
    shapes: tuple[tuple[int, ...], ...]  # of all arguments
    extent: int  # indices in range are below it
    indices: int = 1  # how many of the arguments are indices
    dtype: torch.dtype = torch.int64  # of indices

    def inputs(self) -> list[torch.Tensor]:
        """Draw data from 1 to 9, and indices in range that ascend from 0, as offsets do."""
        count = len(self.shapes) - self.indices
        data = [torch.randint(1, 10, shape).float() for shape in self.shapes[:count]]
        drawn = [torch.randint(0, self.extent, shape) for shape in self.shapes[count:]]
        for index in drawn:
            index[..., 0] = 0
        return [*data, *(i.sort(-1).values.to(self.dtype) for i in drawn)]


def _of_numbers(index: torch.Tensor) -> torch.Tensor:
    return F.one_hot(index, 5).float()


TORCH = {
    "gather": Indexed(lambda a, i: torch.gather(a, 0, i), ((5, 3), (2, 3)), 5),
    "gather, behind relu": Indexed(
        lambda a, i: torch.gather(a.relu(), 1, i) * 2, ((5, 3), (5, 7)), 3
    ),
    "take_along_dim": Indexed(lambda a, i: torch.take_along_dim(a, i, 1), ((5, 3), (5, 7)), 3),
    "take": Indexed(torch.take, ((5, 3), (7,)), 15),
    "index_select": Indexed(lambda a, i: torch.index_select(a, 1, i), ((5, 3), (4,)), 3),
    "a[i]": Indexed(lambda a, i: a[i], ((5, 3), (4,)), 5),
    "a[:, i], int32": Indexed(lambda a, i: a[:, i], ((5, 3), (4,)), 3, dtype=torch.int32),
    "a[i, j]": Indexed(lambda a, i, j: a[i, j], ((5, 3), (4,), (4,)), 3, 2),
    "embedding": Indexed(lambda w, i: F.embedding(i, w), ((7, 4), (2, 3)), 7),
    "embedding_bag": Indexed(
        lambda w, i, o: F.embedding_bag(i, w, o, mode="sum"), ((7, 4), (6,), (3,)), 6, 2
    ),
    "embedding_bag, rows": Indexed(
        lambda w, i: F.embedding_bag(i, w, mode="max"), ((7, 4), (2, 3)), 7
    ),
    "scatter": Indexed(lambda a, u, i: a.scatter(0, i, u), ((5, 3), (2, 3), (2, 3)), 5),
    "scatter value": Indexed(lambda a, i: a.scatter(1, i, 2.0), ((5, 3), (5, 2)), 3),
    "scatter_add of rows": Indexed(
        lambda a, u, i: a.scatter_add(0, i[:, None].expand(4, 3), u), ((5, 3), (4, 3), (4,)), 5
    ),
    "scatter_add": Indexed(lambda a, u, i: a.scatter_add(1, i, u), ((5, 3), (5, 2), (5, 2)), 3),
    **{
        f"scatter_reduce {kind}": Indexed(
            lambda a, u, i, kind=kind: a.scatter_reduce(0, i, u, kind), ((5, 3), (2, 3), (2, 3)), 5
        )
        for kind in ("sum", "prod", "mean", "amax", "amin")
    },
    "index_add": Indexed(lambda a, u, i: a.index_add(0, i, u), ((5, 3), (4, 3), (4,)), 5),
    "index_copy": Indexed(lambda a, u, i: a.index_copy(1, i, u), ((5, 3), (5, 2), (2,)), 3),
    "index_copy of one row": Indexed(
        lambda a, u, i: a.index_copy(1, i, u) * 2, ((2, 7, 4), (2, 1, 4), (1,)), 7
    ),
    "index_fill": Indexed(lambda a, i: a.index_fill(0, i, 2.0), ((5, 3), (2,)), 5),
    "index_put": Indexed(
        lambda a, u, i, j: a.index_put((i, j), u), ((5, 3), (4,), (4,), (4,)), 3, 2
    ),
    "index_put accumulate": Indexed(
        lambda a, u, i: a.index_put((i,), u, accumulate=True), ((5, 3), (4, 3), (4,)), 5
    ),
    "index_reduce": Indexed(
        lambda a, u, i: a.index_reduce(0, i, u, "amax"), ((5, 3), (4, 3), (4,)), 5
    ),
    "nll_loss": Indexed(F.nll_loss, ((4, 5), (4,)), 5),
    "cross_entropy": Indexed(F.cross_entropy, ((4, 5, 2), (4, 2)), 5),
    "one_hot": Indexed(_of_numbers, ((4,),), 5),
    "max_unpool2d": Indexed(
        lambda a, i: F.max_unpool2d(a, i, 2, output_size=(4, 4)), ((1, 1, 2, 2), (1, 1, 2, 2)), 16
    ),
    "grid_sample": Indexed(
        lambda a, i: F.grid_sample(a, i, align_corners=False),
        ((1, 2, 5, 4), (1, 3, 3, 2)),
        1,
        dtype=torch.float32,
    ),
    "grid_sample reflection": Indexed(
        lambda a, i: F.grid_sample(a, i, "bicubic", "reflection", align_corners=True),
        ((1, 2, 5, 4), (1, 3, 3, 2)),
        1,
        dtype=torch.float32,
    ),
    "multi_margin_loss": Indexed(F.multi_margin_loss, ((4, 5), (4,)), 5),
    "segment_reduce": Indexed(
        lambda a, i: torch.segment_reduce(a, "sum", offsets=i, axis=0), ((6, 3), (4,)), 6
    ),
    "repeat_interleave": Indexed(
        lambda a, i: torch.repeat_interleave(a, i.clamp(0, 2) * 0 + 1, 0, output_size=5),
        ((5, 3), (5,)),
        3,
    ),
}
