"""How tiles of a direct convolution read the image."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from tvm import ir, tirx

from ...index.index_ranges import Ranges
from .problem import ConvProblem

Place = Mapping[ir.Var, ir.Expr]


class ImageReader(ABC):
    """The image, an element at a time."""

    def __init__(self, problem: ConvProblem) -> None:
        self.problem, self.image = problem, problem.image

    def buffers(self) -> list[ir.Var]:
        """List the buffers of one task."""
        return []

    def fill(self, task: Place, ranges: Ranges) -> tirx.Stmt | None:
        """Prepare the image of a task.

        Parameters
        ----------
        task
            Batch axes, the first output channel, row and column of pixels, by variable.
        """
        return None

    def address(self, task: Place, place: Place, ranges: Ranges) -> ir.Expr:
        """Return the address to prefetch for an element; parameters are those of :meth:`at`."""
        return self.at(task, place, ranges)

    @abstractmethod
    def at(self, task: Place, place: Place, ranges: Ranges) -> ir.Expr:
        """Read an element.

        Parameters
        ----------
        place
            All axes of the convolution; y and x relative to the task's first pixel.
        """
