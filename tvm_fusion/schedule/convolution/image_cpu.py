"""The image of a direct convolution: read in place, or lines that a task copies with padding."""

from __future__ import annotations

from tvm import ir

from ...core.loops import substitute
from ..index.index_ranges import Ranges
from .groups import Band
from .image_copy_cpu import CopiedImage
from .image_reader import ImageReader, Place
from .problem import ConvProblem
from .words import WordImage


class DirectImage(ImageReader):
    """An image without padding, read in place."""

    def at(self, task: Place, place: Place, ranges: Ranges) -> ir.Expr:
        """Read the image itself."""
        y = self.problem.y.var
        place = {**place, y: task[y] + place[y]}
        where = [substitute(p, place) for p in self.image.place]
        there = dict(zip((a.var for a in self.image.axes), where, strict=True))
        return ranges.value(substitute(self.image.value, there))


def image_reader(problem: ConvProblem, rows: int, columns: int) -> ImageReader:
    """Read an image in place where there is neither padding nor arithmetic.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    rows : int
        Rows of pixels of a task.
    columns : int
        Its output channels.
    """
    words = problem.words
    single = problem if words is None else words.single
    reader: ImageReader = DirectImage(single)
    if not problem.reads_in_place:
        size = 1 if words is None else words.dot.group
        reader = CopiedImage(single, rows, Band(single, columns), size)
    return reader if words is None else WordImage(problem, reader)
