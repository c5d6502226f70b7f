"""What an explanation is made of: operators, groups, edges and counts, as data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...core.contract.forms import Form
from ...words import few


@dataclass(frozen=True)
class Member:
    """One operator."""

    variable: str  # what it is bound to in the module
    # Relax name, such as ``relax.nn.softmax``; of custom TensorIR the PrimFunc's name.
    operator: str
    title: str  # the same, short
    type: str  # its class, such as ``One-to-One``
    # What the model calls it: names of ONNX nodes, paths of PyTorch modules, or names of results
    # where there are none. Several where it was rewritten: all operators that it replaces.
    names: tuple[str, ...] = ()
    # Names of their results in the model: ONNX's tensors, nodes of a ``torch.export`` graph,
    # variables of a Relax module.
    tensors: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What to call it in a line: the user's name where there is one."""
        return few(self.names) or self.variable


@dataclass(frozen=True)
class Answer:
    """What a template said when it was asked for the kernels of a group."""

    template: str
    us: float | None  # expected microseconds; ``None`` where it refuses
    is_chosen: bool
    sentence: str  # why it was not chosen; empty where it was


@dataclass(frozen=True)
class Group:
    """Operators that share kernels, and what these are expected to cost."""

    function: str  # the Relax function that they are in
    members: tuple[Member, ...]  # in order
    type: str  # the most complex of their classes
    template: str  # which one makes the kernels
    launches: int  # kernels that it promises
    # Memory traffic; results that no longer reach memory.
    bytes: int
    hidden_bytes: int
    flops: int  # arithmetic operations, recomputation included
    us: float  # expected microseconds
    source: str  # ``fitted`` (to measured kernels of this device) or ``roofline``
    arithmetic: str = ""  # how products are computed, where it is not as the graph says
    most: str = ""  # what most of the microseconds is for, where a fitted model tells
    # Between which templates the planner chose, and between which forms of kernels the chosen one;
    # empty if it was not asked for.
    templates: tuple[Answer, ...] = ()
    forms: tuple[Form, ...] = ()

    @property
    def title(self) -> str:
        """Members' titles, such as ``matmul + add + gelu``."""
        return " + ".join(member.title for member in self.members)

    @property
    def names(self) -> tuple[str, ...]:
        """The user's names of its members, each once, in order."""
        return tuple(dict.fromkeys(name for member in self.members for name in member.names))


@dataclass(frozen=True)
class Edge:
    """A tensor that goes through memory between two kernels."""

    function: str  # the Relax function that it is in
    # The operators.
    producer: Member
    consumer: Member
    bytes: int  # size of what goes from the one to the other
    # Why they share no kernel: for a machine, for a reader.
    code: str
    sentence: str
    # Classes of the two groups, which the mapping table combines; each is the class of its fused
    # operators together, which may be more complex than that of the operator at the edge.
    classes: tuple[str, ...]
    through: tuple[Member, ...] = ()  # views between the two, which need no kernel; empty as a rule

    @property
    def members(self) -> tuple[Member, ...]:
        """Its ends and the views between them, in order."""
        return self.producer, *self.through, self.consumer


@dataclass(frozen=True)
class Counts:
    """What one inference launches, counted in the lowered module."""

    # Device launches (on a CPU: loop nests over full tensors); PrimFunc calls.
    kernels: int
    calls: int
    intermediate_bytes: int  # tensors between kernels and buffers inside PrimFuncs
    caveats: tuple[str, ...] = ()  # what the figures leave out


def member_from_json(data: Mapping[str, Any]) -> Member:
    """Read an operator given as plain values."""
    return Member(**{**data, "names": tuple(data["names"]), "tensors": tuple(data["tensors"])})


def edge_to_json(edge: Edge) -> dict[str, Any]:
    """Return an edge as plain values."""
    ends = (edge.producer, edge.consumer)
    return {
        "function": edge.function,
        "producer": edge.producer.variable,
        "consumer": edge.consumer.variable,
        "operators": [end.operator for end in ends],
        "titles": [end.title for end in ends],
        "types": [end.type for end in ends],
        "names": [list(end.names) for end in ends],
        "tensors": [list(end.tensors) for end in ends],
        "classes": list(edge.classes),
        "through": [asdict(view) for view in edge.through],
        "bytes": edge.bytes,
        "code": edge.code,
        "sentence": edge.sentence,
    }


def edge_from_json(data: dict[str, Any]) -> Edge:
    """Read what :func:`edge_to_json` gave."""
    variables = (data["producer"], data["consumer"])
    keys = ("operators", "titles", "types")
    names = [map(tuple, data[key]) for key in ("names", "tensors")]
    columns = zip(variables, *(data[key] for key in keys), *names, strict=True)
    producer, consumer = (Member(*column) for column in columns)
    return Edge(
        data["function"],
        producer,
        consumer,
        data["bytes"],
        data["code"],
        data["sentence"],
        tuple(data["classes"]),
        tuple(map(member_from_json, data["through"])),
    )


def group_from_json(data: dict[str, Any]) -> Group:
    """Read a group given as plain values, its title left out."""
    fields = {key: value for key, value in data.items() if key != "title"}
    fields["members"] = tuple(map(member_from_json, data["members"]))
    fields["templates"] = tuple(Answer(**a) for a in data.get("templates", ()))
    fields["forms"] = tuple(Form(**f) for f in data.get("forms", ()))
    return Group(**fields)
