"""The bugs that are planted: slips that a reader of the file may overlook."""

from __future__ import annotations

from .planted import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "a cube becomes a square",
        "frontend/normalize/expand_power.py",
        "return relax.op.multiply(scope.emit(relax.op.multiply(x, x)), x)",
        "return relax.op.multiply(x, x)",
        seeds=(34,),
    ),
    Bug(
        "a square root for the reciprocal of one",
        "frontend/normalize/expand_power.py",
        "return relax.op.rsqrt(x) if number == -0.5 else None",
        "return relax.op.sqrt(x) if number == -0.5 else None",
        seeds=(10,),
    ),
    Bug(
        "any permutation counts as the identity",
        "frontend/normalize/remove_identities.py",
        "[int(axis) for axis in axes] == list(range(len(axes)))",
        "sorted(int(axis) for axis in axes) == list(range(len(axes)))",
        seeds=(5,),
    ),
    Bug(
        "every cast is an identity",
        "frontend/normalize/remove_identities.py",
        "elif name in _BY_TYPE and structural_equal(value.args[0].ty, value.ty):",
        "elif name in _BY_TYPE:",
        seeds=(0,),
    ),
    Bug(
        "a convolution's bias is not scaled by its batch norm",
        "frontend/normalize/fold_batch_norm.py",
        "shift = shift if bias is None else shift + bias * scale",
        "shift = shift if bias is None else shift + bias",
        seeds=(22,),
    ),
    Bug(
        "a stack along any axis becomes a sum",
        "frontend/normalize/unstack_sum.py",
        " or int(stack.attrs.axis or 0) != 0",
        "",
        seeds=(20,),
    ),
    Bug(
        "operators of other attributes share a legalization",
        "ecg/legalize.py",
        "parts = [describe(call).to_json(), str(call.ty)]",
        "parts = [str(call.op.name), str(call.ty)]",
        seeds=(14,),
    ),
    Bug(
        "means of half types accumulate in half",
        "ecg/accumulate.py",
        '        "relax.mean",\n',
        "",
        seeds=(9,),
    ),
    Bug(
        "a third operand does not know its reader",
        "ecg/graph.py",
        "        for value in tensors:\n            value.consumers.append(operator)",
        "        for value in tensors[:2]:\n            value.consumers.append(operator)",
        seeds=(187,),
    ),
    Bug(
        "a copied producer takes the place of all operands of its type",
        "ecg/graph.py",
        "tuple(value if o is original else o for o in reader.operands)",
        "tuple(\n"
        "                    value if isinstance(o, Value) and o.type == original.type "
        "else o\n"
        "                    for o in reader.operands\n"
        "                )",
        seeds=(10,),
    ),
    Bug(
        "convexity looks one step far",
        "fusion/partition.py",
        "                    frontier.append(successor)",
        "                    pass",
        seeds=(4,),
    ),
    Bug(
        "an output that is read inside as well is forgotten",
        "fusion/group.py",
        "if v.leaves or (v not in hidden and any(c not in inside for c in v.consumers))",
        "if (v.leaves and not v.consumers)\n"
        "            or (v not in hidden and any(c not in inside for c in v.consumers))",
        seeds=(0,),
    ),
    Bug(
        "stages join rows of another order",
        "fusion/align.py",
        "if there is None or not self.whole[edge.reader].equal(there, row[edge.reader]):",
        "if there is None:",
        seeds=(20,),
    ),
    Bug(
        "a layout is taken for another of the same rank",
        "fusion/relayout.py",
        "and all(a.var.same_as(i) for a, i in zip(new.axes, write, strict=True))",
        "and all(isinstance(i, ir.Var) for i in write)",
        seeds=(4,),
    ),
    Bug(
        "a result with several readers is written in place of one of them",
        "fusion/compose.py",
        "if len(users) != 1 or target in outputs:",
        "if not users or target in outputs:",
        seeds=(135,),
    ),
    Bug(
        "the last elements are left out where they fill no vector",
        "schedule/elementwise/cpu.py",
        "    while start < size:",
        "    while start < size and width > 1:",
        seeds=(7,),
    ),
    Bug(
        "half of a symbolic tail is left out",
        "schedule/elementwise/cpu.py",
        "rest = tirx.floormod(index(length), index(lanes))",
        "rest = tirx.floormod(index(length), index(lanes // 2))",
        seeds=(6,),
    ),
    Bug(
        "lanes without an element contribute zeros",
        "schedule/rows/lanes.py",
        "tirx.Select(lane >= fresh, value, start)",
        "tirx.Select(lane >= fresh, value, tirx.const(0, str(start.ty.dtype)))",
        seeds=(0,),
    ),
    Bug(
        "every reduction starts from zero",
        "schedule/rows/lanes.py",
        "lambda lane: store_all(partial, [lane], stage.init))",
        "lambda lane: store_all(\n"
        "            partial, [lane], [tirx.const(0, str(i.ty.dtype)) for i in "
        "stage.init]))",
        seeds=(0,),
    ),
    Bug(
        "a vector with one element too many is left out",
        "schedule/rows/cpu.py",
        "chunks = sym.Analyzer().simplify(tirx.floordiv(extent + (width - 1), integer(width)))",
        "chunks = sym.Analyzer().simplify(tirx.floordiv(extent + (width - 2), integer(width)))",
        seeds=(4,),
    ),
    Bug(
        "stages of other extents walk a row together",
        "schedule/rows/passes.py",
        "return not mixed and equal_domains(one.stages[0], stage)",
        "return not mixed and len(one.domain) == len(stage.domain)",
        seeds=(0,),
    ),
    Bug(
        "a reduction's result is read before it is complete",
        "schedule/rows/passes.py",
        "(0 if together else 1)",
        "(0 if together or not stage.is_map else 1)",
        seeds=(7,),
    ),
    Bug(
        "one reader in the walk keeps a value from all later ones",
        "schedule/rows/passes.py",
        "    return producer.is_map and all(\n",
        "    return producer.is_map and any(\n",
        seeds=(0,),
    ),
    Bug(
        "an epilogue of a slice begins at the first element",
        "schedule/contraction/operands.py",
        "conditions.append(tirx.LE(shift, axis))",
        "pass",
        seeds=(23,),
    ),
    Bug(
        "an epilogue stores outside of its slice",
        "schedule/contraction/graft.py",
        "if result.condition is not None:",
        "if False:",
        seeds=(23,),
    ),
    Bug(
        "an epilogue reads another place of the sum as its own",
        "schedule/contraction/operands.py",
        "or any(not _same_place(reads[0], x) for x in reads[1:])",
        "",
        seeds=(24,),
    ),
    Bug(
        "a dilated window reads its neighbours",
        "schedule/contraction/padding.py",
        "key = frozenset((v, count // by) for v, count in atoms.items())",
        "key = frozenset((v, 1) for v in atoms)",
        seeds=(28,),
    ),
    Bug(
        "an epilogue stores where the sum stands",
        "schedule/contraction/graft.py",
        "where = [substitute(i, axes) for i in result.indices]",
        "where = list(place)",
        seeds=(7,),
    ),
    Bug(
        "channels belong to groups by their remainder",
        "ecg/legalizations/norms.py",
        "where[self.channel] = group * self.per_group + where[self.channel]",
        "where[self.channel] = group + self.groups * where[self.channel]",
        seeds=(38,),
    ),
    Bug(
        "a folded slice has no stride",
        "frontend/normalize/evaluate.py",
        "index[axis] = slice(begin, end, stride)",
        "index[axis] = slice(begin, end)",
        seeds=(11,),
    ),
    Bug(
        "a group's outputs change places",
        "fusion/primitive.py",
        "fields = [exprs[v] for v in group.outputs]",
        "fields = [exprs[v] for v in group.outputs[::-1]]",
        seeds=(0,),
    ),
    Bug(
        "elements of the last vector are counted twice",
        "schedule/rows/cpu.py",
        "integer(size), integer(size - int(extent) % size))",
        "integer(size), None)",
        seeds=(0,),
    ),
)
