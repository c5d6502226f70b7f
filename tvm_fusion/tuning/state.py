"""How far tuning is: what the loop decides by, and what the view shows."""

from dataclasses import dataclass, field

from ..core.contract.template import Config
from ..fusion.database.tuning_records import Trial
from .search.bayesian import Search
from .search.evolutionary import EvolutionarySearch
from .tasks import Task

PATIENCE = 0.8  # of a task's weight, for every batch without a gain
LEAST = 0.05  # of a task's time, that may be gained where its kernel is the fastest of all


@dataclass(eq=False)
class TaskState:
    """A task while it is tuned."""

    task: Task
    search: Search | EvolutionarySearch  # what proposes its configurations
    default_us: float = 0.0  # of its kernels with the default; infinite until it is measured
    # Configurations measured, those without a time among them.
    trials: int = 0
    failed: int = 0
    ratio: float = 1.0  # time of the winner over the default's; 1 if there is none
    winner: Config | None = None  # what was faster than the default in races, fastest of all
    fastest: Trial | None = None  # the trial of the least ratio
    idle: int = 0  # batches since the last gain
    # Configurations that have been in races of this run.
    raced: set[str] = field(default_factory=set)

    @property
    def share_us(self) -> float:
        """Microseconds of all its calls in a run of the model, as they are now."""
        return self.task.calls * self.default_us * self.ratio

    @property
    def flops(self) -> int:
        """Operations of a call, without recomputation."""
        return sum(op.flops for op in self.task.claim.group.members)


@dataclass(eq=False)
class State:
    """All tasks of a model while they are tuned."""

    tasks: list[TaskState] = field(default_factory=list)
    stage: str = "planning"
    left: str = ""

    @property
    def trials(self) -> int:
        """Configurations measured, of earlier runs included."""
        return sum(task.trials for task in self.tasks)

    def weights(self) -> list[float]:
        """Return the weight of each task: what may be gained, less the longer nothing is found.

        A roofline says what may be gained. Its two rates are the highest that any task's kernel has
        here, so that no figure of the device is needed: kernels that multiply as fast as the best
        have little to gain, whatever their share of the time.
        """
        found = [(one, one.default_us * one.ratio) for one in self.tasks]
        flops = max((one.flops / us for one, us in found if us), default=0.0)
        traffic = max((one.task.claim.bytes / us for one, us in found if us), default=0.0)

        def weight(one: TaskState, us: float) -> float:
            if one.search.is_over or not us:
                return 0.0
            bound = max(
                one.flops / flops if flops else 0.0,
                one.task.claim.bytes / traffic if traffic else 0.0,
            )
            return one.share_us * max(LEAST, 1 - bound / us) * PATIENCE**one.idle

        return [weight(one, us) for one, us in found]

    @property
    def default_us(self) -> float:
        """Microseconds of all tasks' calls with defaults."""
        return sum(task.task.calls * task.default_us for task in self.tasks)

    @property
    def us(self) -> float:
        """The same with what was found."""
        return sum(task.share_us for task in self.tasks)

    @property
    def gain(self) -> float:
        """How many times faster the tasks are together."""
        return self.default_us / self.us if self.us else 1.0
