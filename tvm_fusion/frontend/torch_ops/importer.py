"""Extend TVM's importer of exported programs: every argument, dtype and shape checked."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sympy
import torch
import tvm
from torch import fx
from tvm import relax, tirx
from tvm.relax.frontend.torch import exported_program_translator as translator

from ...core.names.source import Recorder
from ...errors import UserError
from ..half.intermediates import WIDE, narrowed, rounds_between, wide_dtype
from ..reasons import reason_in_words
from ..registry import Unsupported
from ..tensor_types import HALF, dtype_of
from . import complex_pairs, control_flow
from .call import COMPLEX, FLOAT8, Call, Convert, WideCall, refusal
from .complex_pairs import Pair
from .operator_errors import compare, ignoring, operator_name
from .python_numbers import as_tensor, on_numbers
from .registry import CONVERTERS, PYTHON, REAL, SYMBOLIC, key_of
from .symbolic_extent import expression

_ALIGNMENT = 64  # bytes, of TVM 0.27's tensors


class Importer(translator.ExportedProgramImporter):
    """Converts with the registered converters; extents' arithmetic by TVM's.

    Parameters
    ----------
    derived : sequence of Derived, optional
        Extents of inputs for which there is a variable instead of one for a symbol in them.
    """

    def __init__(self, derived: Sequence[Any] = ()):
        super().__init__()
        self.env: dict[fx.Node, Any] = {}
        self._whole = {d.expr: d.variable for d in derived}
        self._variables: dict[str, tirx.Var] = {}
        self._inverse = {d.symbol: d.inverse for d in derived}
        self._stored: dict[str, Any] = {}
        self.copies = 1
        #: Which node of the graph, and which module, each value comes from.
        self.sources = Recorder()

    @staticmethod
    def _convert_data_type(input_type: Any, env: Any = None) -> str:
        """Name a dtype; TVM 0.27 does not know float8."""
        given = env[input_type] if env is not None and input_type in env else input_type
        if given in FLOAT8 or given in COMPLEX:
            return FLOAT8.get(given) or COMPLEX[given]
        return translator.ExportedProgramImporter._convert_data_type(input_type, env)

    def create_convert_map(self) -> dict[str, Callable[[fx.Node], Any]]:
        """Build the map from the names of operators to converters, for branches, too."""
        theirs = super().create_convert_map()
        converters = {name: on_numbers(self, name, theirs[name]) for name in PYTHON}
        converters |= {name: on_numbers(self, name, None) for name in (*REAL, *SYMBOLIC)}
        # TVM looks operators up by name alone, whatever their namespace.
        keys = (*CONVERTERS, *complex_pairs.CONVERTERS)
        converters |= {key.rpartition("::")[2]: self._ours for key in keys}
        converters |= dict.fromkeys(control_flow.CONVERTERS, self._control_flow)
        converters["getitem"] = self._item_of_tuple
        return {name: self._noted(located(convert)) for name, convert in converters.items()}

    def _noted(self, convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        def converted(node: fx.Node) -> Any:
            result = convert(node)
            self.sources.add(_values(result), module_of(node), [node.name])
            return result

        return converted

    def translate(self, module: fx.GraphModule, values: Sequence[Any]) -> list[Any]:
        """Convert a graph inside a node where the builder is; returns its results."""
        self.symbols()
        around, self.env = self.env, {}
        given = iter(values)
        try:
            for node in module.graph.nodes:
                if node.op == "output":
                    break
                if node.op == "placeholder":
                    self.env[node] = next(given)
                elif node.op == "get_attr":
                    self.env[node] = getattr(module, node.target)
                else:
                    self.env[node] = self.convert_map[node.target.__name__](node)
            results = self._retrieve_args(node.args[0])
        finally:
            self.env = around
        return list(results) if isinstance(results, list | tuple) else [results]

    @staticmethod
    def _has_cond_op(nodes: Any) -> bool:
        """Say whether branches or loops keep TVM's importer from opening a dataflow block."""
        return any(map(control_flow.is_control_flow, nodes))

    def _translate_fx_graph(
        self, graph_module: Any, nodes: Any, inputs_vars: dict[str, Any], custom_ops: Any = None
    ) -> Any:
        """Convert the program's graph; see :meth:`create_input_vars`."""
        given = {**inputs_vars, **self._stored}
        return super()._translate_fx_graph(graph_module, nodes, given, custom_ops)

    def _control_flow(self, node: fx.Node) -> Any:
        name = operator_name(node)
        try:
            results = control_flow.CONVERTERS[node.target.__name__](self, node)
        except Unsupported as error:
            raise refusal(name, error) from error
        results = [self._variable(result) for result in results]
        return self._checked(node, control_flow.define_symbols(self, node, results))

    def extent(self, extent: torch.SymInt) -> Any:
        """Return a symbolic extent of torch's as an expression over this module's variables."""
        return self.written(extent.node.expr)

    def written(self, expr: Any) -> Any:
        """Write an integer of torch's symbols over this module's variables."""
        return expression(expr.subs(self._inverse), self.symbols())

    def define(self, name: str, variable: tirx.Var) -> None:
        """Define a symbol that the program computes."""
        self.symbols()[name] = variable

    def _process_derived_symbol(self, symbol: Any, variables: dict[str, Any]) -> tuple[str, Any]:
        """Name an extent of an input, or write it over variables of others."""
        if symbol in self._whole:
            return self._whole[symbol], None
        if isinstance(symbol, sympy.Symbol):
            return str(symbol), None
        for one in symbol.free_symbols - self._inverse.keys():
            variables.setdefault(str(one), tirx.Var(str(one), "int64"))
        for variable in self._whole.values():
            variables.setdefault(variable, tirx.Var(variable, "int64"))
        return str(symbol), expression(symbol.subs(self._inverse), variables)

    def _ours(self, node: fx.Node) -> Any:
        name = operator_name(node)
        try:
            call, result = self._converted(node)
        except Unsupported as error:
            raise refusal(name, error) from error
        ignored = call.ignored()
        if ignored:
            raise ignoring(name, ignored, call.given)
        return self._checked(node, result)

    def _converted(self, node: fx.Node) -> tuple[Call, Any]:
        key, call = key_of(node), Call(node, self)
        if not complex_pairs.touches_complex(node):
            return self._rounded_once(call, CONVERTERS[key].convert)
        if key in complex_pairs.CONVERTERS:
            return call, complex_pairs.CONVERTERS[key](call)

        def convert(part: Call) -> Any:
            nonlocal call
            call = part
            return CONVERTERS[key].convert(part)

        result = complex_pairs.by_part(node, self, convert)
        return call, result

    def _rounded_once(self, call: Call, convert: Convert) -> tuple[Call, Any]:
        """Convert, again in a wider type where results of half types are rounded in between."""
        narrow = convert(call)
        is_list = isinstance(narrow, list | tuple)
        results = [self._variable(x) for x in (narrow if is_list else [narrow])]
        given = self._retrieve_args(list(call.given.values()))
        if not any(dtype_of(x) in HALF for x in results):
            return call, narrow
        dtype = wide_dtype(call.node.target.__name__.partition(".")[0], given)
        if dtype == WIDE and not rounds_between(results, self.block_builder, given):
            return call, results if is_list else results[0]
        call = WideCall(call.node, self, dtype)
        again = convert(call)
        again = [self._variable(x) for x in (again if is_list else [again])]
        emit = self.block_builder.emit
        results = [narrowed(x, like, emit) for x, like in zip(again, results, strict=True)]
        return call, results if is_list else results[0]

    def create_input_vars(self, exported_program: Any) -> Any:
        """Create the parameters; a complex tensor gets a last axis of two.

        Where there are branches or loops, stored tensors are constants from the start: functions
        then hold them, instead of taking them as arguments.
        """
        stored, given, ranges = super().create_input_vars(exported_program)
        for node in exported_program.graph.nodes:
            if node.op == "placeholder" and complex_pairs.is_complex(node):
                variables = given if node.name in given else stored
                ty = variables[node.name].ty
                shape = [*ty.shape, tirx.IntImm("int64", 2)]
                variables[node.name] = relax.Var(node.name, relax.TensorType(shape, ty.dtype))
        if self._has_cond_op(exported_program.graph.nodes):
            tensors = {**exported_program.state_dict, **exported_program.constants}
            for spec in exported_program.graph_signature.input_specs:
                if spec.arg.name in stored:
                    tensor = self._convert_pytorch_tensor_to_tvm(tensors[spec.target])
                    self._stored[spec.arg.name] = relax.const(tensor)
        return stored, given, ranges

    @staticmethod
    def _convert_pytorch_tensor_to_tvm(tensor_value: torch.Tensor) -> Any:
        """Store a complex constant as its parts.

        TVM takes memory that is aligned; numpy, by which it copies other memory, has no bfloat16.
        """
        tensor_value = tensor_value.detach()
        if tensor_value.dtype in COMPLEX:
            tensor_value = torch.view_as_real(tensor_value.resolve_conj().contiguous())
        if tensor_value.layout == torch.strided and tensor_value.data_ptr() % _ALIGNMENT:
            tensor_value = tensor_value.clone()
        return translator.ExportedProgramImporter._convert_pytorch_tensor_to_tvm(tensor_value)

    def _retrieve_args(self, node: Any) -> Any:
        """Return what was computed; of a complex input its parts."""
        if isinstance(node, fx.Node) and complex_pairs.is_complex(node):
            value = self.env[node]
            if isinstance(value, relax.Expr):
                self.env[node] = value = complex_pairs.parted(self, value)
            return value
        return super()._retrieve_args(node)

    def _flatten_output_args(self, output_args: Any) -> Any:
        """Join the parts of complex results; numbers, such as a loop's counter, become tensors."""

        def plain(x: Any) -> Any:
            if isinstance(x, Pair):
                return complex_pairs.joined(self, x)
            return as_tensor(self, x) if isinstance(x, bool | int | float) else x

        return super()._flatten_output_args(fx.node.map_aggregate(output_args, plain))

    def _item_of_tuple(self, node: fx.Node) -> Any:
        value, number = self.env[node.args[0]], node.args[1]
        if isinstance(value, list | tuple):
            result = value[number]
        elif isinstance(getattr(value, "ty", None), relax.TupleType):
            result = self.block_builder.emit(relax.TupleGetItem(value, number))
        elif number == 0:
            result = value
        else:
            result = None
        if result is None:
            name = operator_name(node.args[0])
            error = Unsupported(f"with its result {number} used", "use its first result only")
            raise refusal(name, error)
        return self._checked(node, result)

    def _checked(self, node: fx.Node, result: Any) -> Any:
        """Compare types and extents of a result with what torch says of them."""
        expected = node.meta.get("val")
        if isinstance(expected, torch.Tensor):
            result = self._over_wholes(self._variable(result), expected)
            compare(operator_name(node), result, expected)
        elif isinstance(expected, list | tuple) and isinstance(result, list | tuple):
            result = tuple(x if x is None else self._variable(x) for x in result)
            for mine, theirs in zip(result, expected, strict=False):
                if mine is not None and isinstance(theirs, torch.Tensor):
                    compare(operator_name(node), mine, theirs)
        return result

    def _variable(self, result: Any) -> Any:
        if isinstance(result, Pair):
            return Pair(self._variable(result.real), self._variable(result.imag))
        if isinstance(result, relax.Call):
            return self.block_builder.emit(result)
        return result

    def _over_wholes(self, result: Any, expected: torch.Tensor) -> Any:
        """Write extents as inputs have them, where there are variables for derived ones.

        With a variable for ``4*h``, twice ``h`` is found to be ``variable//4*2`` by Relax, which
        cannot know that this is ``variable//2``; torch does.
        """
        shape = getattr(getattr(result, "ty", None), "shape", None)
        if not self._inverse or not isinstance(shape, relax.ShapeExpr):
            return result
        known = [e if isinstance(e, int) else self.extent(e) for e in expected.shape]
        analyzer = tvm.sym.Analyzer()
        if len(known) != len(shape.values) or all(
            analyzer.can_prove_equal(mine, theirs)
            for mine, theirs in zip(shape.values, known, strict=True)
        ):
            return result
        return self.block_builder.emit(relax.op.reshape(result, known))

    def symbols(self) -> dict[str, tirx.Var]:
        """Find the variables of the parameters' extents, once: every other is refused."""
        if not self._variables:
            for value in self.env.values():
                ty = getattr(value, "ty", None)
                if isinstance(ty, relax.TensorType) and ty.shape is not None:
                    for extent in ty.shape:
                        for var in tirx.analysis.undefined_vars(extent):
                            self._variables.setdefault(var.name, var)
        return self._variables


# Say where in a PyTorch module, and on which line of its source, an operator was called.
_LINE = re.compile(r'File "([^"]+)", line (\d+)')
# Frames of torch's own are no place of the user's.
_TORCH = "site-packages/torch/"


# Of dynamo's names: the module that is compiled, members of modules, items.
_ROOT = re.compile(r"^[LG](?:\['(?:self|fn)'\]|(?=\['))")
_MEMBER = re.compile(r"(?:\._modules|\._parameters|\._buffers)?\['?([^'\]]*)'?\]")


def path_of(source: str) -> str:
    """Write a name of dynamo as the user does.

    ``L['self']._modules['fc']._parameters['weight']`` is ``fc.weight``, ``G['net'].layers.0``
    ``net.layers.0``.
    """
    return _MEMBER.sub(r".\1", _ROOT.sub("", source)).lstrip(".")


def module_of(node: fx.Node) -> str:
    """Return the path of the module that calls an operator, ``layers.0.attention``, or ``""``."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return path_of(str(stack[-1][0])) if stack else ""


def _values(result: Any) -> list[Any]:
    """List the tensors that a node gives."""
    if isinstance(result, Pair):
        return [result.real, result.imag]
    if isinstance(result, list | tuple):
        return [value for item in result for value in _values(item)]
    return [result]


def place_of(node: fx.Node) -> str:
    """Name the module and the line: ``layers.0.attention, model.py line 92``.

    Returns
    -------
    str
        Empty where torch has kept neither.
    """
    path = module_of(node)
    frames = _LINE.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if _TORCH not in frame[0]] or frames
    line = f"{Path(own[-1][0]).name} line {own[-1][1]}" if own else ""
    return ", ".join(filter(None, [path, line]))


def located(convert: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
    """Let whatever a converter raises become one sentence that names the operator's place."""

    def converted(node: fx.Node) -> Any:
        try:
            return convert(node)
        except UserError as error:
            place = place_of(node)
            if not place or getattr(error, "is_located", False):
                raise
            found = UserError(f"{error.found} (at {place})", error.expected, error.advice)
            found.is_located = True  # type: ignore[attr-defined]
            raise found from (error.__cause__ or error)
        except Exception as error:
            place = place_of(node)
            where = f" (at {place})" if place else ""
            reason, advice = reason_in_words(error)
            fault = "its converter has a fault: report this sentence with the program"
            found = UserError(
                f"{operator_name(node)} cannot be converted ({reason}){where}",
                None,
                advice or fault,
            )
            found.is_located = True  # type: ignore[attr-defined]
            raise found from error

    return converted
