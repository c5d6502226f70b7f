"""Random expressions of integers as graphs of ONNX, and what numpy computes of them."""

import numpy as np
from onnx import helper, numpy_helper

TYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
CODES = {name: helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in TYPES}


class Drawn:
    """A graph of random expressions, each with the value that numpy gives it."""

    def __init__(self, rng, count):
        self.rng, self.count = rng, count
        self.nodes, self.constants, self.values = [], [], {}
        self.inputs = {}
        for dtype in TYPES:
            for name in (f"{dtype}_a", f"{dtype}_b"):
                self.values[name] = self.inputs[name] = self._numbers(dtype)

    def _numbers(self, dtype):
        info = np.iinfo(dtype)
        near = [info.min, info.min + 1, info.min // 2, 0, 1, 2, 3, 7, info.max // 3, info.max]
        chosen = np.array([near[i] for i in self.rng.integers(len(near), size=self.count)], dtype)
        drawn = np.frombuffer(self.rng.bytes(8 * self.count), "int64").astype(dtype)
        return np.where(self.rng.random(self.count) < 0.5, chosen, drawn)

    def _emit(self, kind, operands, value, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, operands, [name], **attributes))
        self.values[name] = np.broadcast_to(value, (self.count,))
        return name

    def _constant(self, dtype):
        info = np.iinfo(dtype)
        numbers = [1, 2, 3, 6, 8, 100, info.min, info.max]
        name = f"c{len(self.constants)}"
        value = np.array(numbers[self.rng.integers(len(numbers))], dtype)
        self.constants.append(numpy_helper.from_array(value, name))
        self.values[name] = value
        return name

    def expression(self, dtype, depth):
        """Draw an expression of a type; the name of its result."""
        if depth == 0:
            return f"{dtype}_{'ab'[self.rng.integers(2)]}"
        kind = str(self.rng.choice([*BINARY, "Cast", "Neg", "Abs", "Where"]))
        if kind == "Cast":
            of = self.expression(TYPES[self.rng.integers(len(TYPES))], depth - 1)
            return self._emit("Cast", [of], self.values[of].astype(dtype), to=CODES[dtype])
        first = self.expression(dtype, depth - 1)
        a = self.values[first]
        if kind in ("Neg", "Abs"):
            if dtype[0] == "u":
                return first
            return self._emit(kind, [first], np.negative(a) if kind == "Neg" else np.abs(a))
        second = self._constant(dtype)
        if self.rng.random() < 0.7:
            second = self.expression(dtype, depth - 1)
        b = self.values[second]
        if kind == "Where":
            condition = self._emit("Less", [first, second], a < b)
            return self._emit("Where", [condition, first, second], np.where(a < b, a, b))
        attributes = {"fmod": 1} if kind == "Remainder" else {}
        name = "Mod" if kind == "Remainder" else kind
        return self._emit(name, [first, second], BINARY[kind](a, b).astype(dtype), **attributes)

    def model(self, results):
        """The graph of some of the expressions."""
        used = {name for node in self.nodes for name in node.input}

        def info(name):
            dtype = CODES[str(self.values[name].dtype)]
            return helper.make_tensor_value_info(name, dtype, [self.count])

        inputs = [info(name) for name in self.inputs if name in used]
        outputs = [info(name) for name in results]
        graph = helper.make_graph(self.nodes, "drawn", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def truncated_quotient(a, b):
    """C's division; 0 by 0, as numpy's floored one."""
    quotient = a // b
    rest = a - quotient * b
    return np.where((b != 0) & (rest != 0) & ((a < 0) != (b < 0)), quotient + 1, quotient)


BINARY = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": np.maximum,
    "Min": np.minimum,
    "Div": truncated_quotient,
    "Mod": np.mod,
    "Remainder": np.fmod,
    "BitwiseXor": np.bitwise_xor,
}
