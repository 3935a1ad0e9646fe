"""all-MiniLM-L6-v2 as an ONNX graph, from its published weights: token ids in, vectors out.

What belongs here: the model's arithmetic and nothing else; no file, no text, no runtime.

Texts lie one after the other in a single row of T tokens, N of them, whatever their lengths:
nothing is padded. Attention is kept inside each text by its number: a token of text n sees
the tokens of text n. H = 384 wide, A = 12 heads of D = 32, F = 1,536, six layers. Weights
stand as [out, in]; the graph takes them transposed, once.

    apart = text[:, None] != text[None, :] times the lowest float      [T, T]
    x  = norm(word[ids] + position[places] + type[0])                  [T, H]
    each layer:
      q, k, v = x Wqkv + bqkv, in heads                                [A, T, D] each
      a  = softmax(q k' / sqrt(D) + apart) v, heads side by side       [T, H]
      x  = norm(x + a Wo + bo)
      x  = norm(x + gelu(x Wi + bi) Wf + bf)      gelu(t) = t (1 + erf(t / sqrt 2)) / 2
    vector = m / |m|,  m = sum of x over the text's tokens             [N, H]

norm is layer normalization with its own weight and bias each time, epsilon 1e-12. The
factor 1 / sqrt(D) is put into Wq and bq, the one token type into the positions. A sum in
place of the mean of the model's pooling: the normalization after it takes the count out.

Attention costs T * T, everything else T: a row that is not long costs what its tokens cost.

Source: Devlin et al., "BERT", 2018, for the layers; mean pooling and normalization as the
model's own `modules.json` says.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[np.float32]

WIDTH = 384
HEADS = 12
LAYERS = 6

#: Inputs, int64 [T] each: a token, its place in its text, its text (0..N-1, ascending).
IDS, PLACES, TEXTS = "ids", "places", "texts"
#: Output, float32 [N, 384]: a vector of length 1 for each text.
VECTORS = "vectors"

_EPSILON = 1e-12
_HEAD_WIDTH = WIDTH // HEADS
#: Of the operators here Gelu is the youngest.
_OPSET = 20
#: The container's version that goes with it.
_IR_VERSION = 9


def build(weights: Mapping[str, Array]) -> ModelProto:
    """Make the graph of the header; `weights` are those of the model's file by name.

    Raises KeyError when a weight is missing.
    """
    graph = _Graph(weights)
    x, apart = _embedding(graph), _apart(graph)
    for number in range(LAYERS):
        x = _layer(graph, x, apart, f"encoder.layer.{number}.")
    _pooling(graph, x)
    made = helper.make_graph(
        graph.nodes,
        "all-MiniLM-L6-v2",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["tokens"])
            for name in (IDS, PLACES, TEXTS)
        ],
        [helper.make_tensor_value_info(VECTORS, TensorProto.FLOAT, ["number", WIDTH])],
        graph.tensors,
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(made, opset_imports=opsets, ir_version=_IR_VERSION)


class _Graph:
    """Nodes and tensors so far; every value is named after its place in the list."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = weights
        self.nodes: list[NodeProto] = []
        self.tensors: list[TensorProto] = []

    def tensor(self, array: NDArray[Any]) -> str:
        """Add a constant; returns its name."""
        name = f"t{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def weight(self, name: str) -> str:
        """Add a weight as it is published."""
        return self.tensor(self.weights[name])

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node of one output; returns the output's name."""
        output = output or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def linear(self, x: str, weight: Array, bias: Array) -> str:
        """Add x W' + b."""
        return self.node("Add", self.node("MatMul", x, self.tensor(weight.T)), self.tensor(bias))

    def norm(self, x: str, prefix: str) -> str:
        """Add a layer normalization over the last axis."""
        weight, bias = self.weight(f"{prefix}.weight"), self.weight(f"{prefix}.bias")
        return self.node("LayerNormalization", x, weight, bias, axis=-1, epsilon=_EPSILON)


def _ints(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def _embedding(graph: _Graph) -> str:
    weights = graph.weights
    one_type = weights["embeddings.token_type_embeddings.weight"][0]
    positions = graph.tensor(weights["embeddings.position_embeddings.weight"] + one_type)
    words = graph.node("Gather", graph.weight("embeddings.word_embeddings.weight"), IDS)
    x = graph.node("Add", words, graph.node("Gather", positions, PLACES))
    return graph.norm(x, "embeddings.LayerNorm")


def _apart(graph: _Graph) -> str:
    across = graph.node("Unsqueeze", TEXTS, graph.tensor(_ints(0)))
    down = graph.node("Unsqueeze", TEXTS, graph.tensor(_ints(1)))
    same = graph.node("Equal", down, across)
    lowest = np.array(np.finfo(np.float32).min, np.float32)
    nothing = np.array(0, np.float32)
    return graph.node("Where", same, graph.tensor(nothing), graph.tensor(lowest))


def _layer(graph: _Graph, x: str, apart: str, prefix: str) -> str:
    def linear(y: str, name: str) -> str:
        weights = graph.weights
        return graph.linear(y, weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"])

    seen = _attention(graph, x, apart, f"{prefix}attention.self.")
    mixed = linear(seen, "attention.output.dense")
    x = graph.norm(graph.node("Add", mixed, x), f"{prefix}attention.output.LayerNorm")
    wide = graph.node("Gelu", linear(x, "intermediate.dense"))
    narrow = linear(wide, "output.dense")
    return graph.norm(graph.node("Add", narrow, x), f"{prefix}output.LayerNorm")


def _attention(graph: _Graph, x: str, apart: str, prefix: str) -> str:
    scale = np.float32(1 / math.sqrt(_HEAD_WIDTH))
    names = ("query", "key", "value")
    factors = (scale, np.float32(1), np.float32(1))

    def joined(kind: str) -> Array:
        parts = [graph.weights[f"{prefix}{name}.{kind}"] for name in names]
        return np.concatenate([p * f for p, f in zip(parts, factors, strict=True)])

    qkv = graph.linear(x, joined("weight"), joined("bias"))
    split = graph.node("Reshape", qkv, graph.tensor(_ints(0, 3, HEADS, _HEAD_WIDTH)))
    heads = graph.node("Transpose", split, perm=[1, 2, 0, 3])  # [T, 3, A, D] to [3, A, T, D]
    query, key, value = (
        graph.node("Gather", heads, graph.tensor(np.array(n, np.int64)), axis=0) for n in range(3)
    )
    turned = graph.node("Transpose", key, perm=[0, 2, 1])
    likeness = graph.node("Add", graph.node("MatMul", query, turned), apart)
    shares = graph.node("Softmax", likeness, axis=-1)
    mixed = graph.node("Transpose", graph.node("MatMul", shares, value), perm=[1, 0, 2])
    return graph.node("Reshape", mixed, graph.tensor(_ints(0, WIDTH)))


def _pooling(graph: _Graph, x: str) -> None:
    # Which tokens are a text's, [N, T]: N is the last text's number and one.
    last = graph.node("ReduceMax", TEXTS, keepdims=0)
    one = graph.tensor(np.array(1, np.int64))
    numbers = graph.node(
        "Range", graph.tensor(np.array(0, np.int64)), graph.node("Add", last, one), one
    )
    down = graph.node("Unsqueeze", numbers, graph.tensor(_ints(1)))
    theirs = graph.node("Equal", down, graph.node("Unsqueeze", TEXTS, graph.tensor(_ints(0))))
    total = graph.node("MatMul", graph.node("Cast", theirs, to=TensorProto.FLOAT), x)
    length = graph.node("ReduceL2", total, graph.tensor(_ints(1)), keepdims=1)
    graph.node("Div", total, length, output=VECTORS)
