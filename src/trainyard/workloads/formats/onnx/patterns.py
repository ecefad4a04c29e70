"""Fuses groups of nodes that exporters emit separately and PyTorch runs as one kernel.

A bias added to a matrix product (Linear on more than two dimensions), GELU written with Erf, SiLU as x * sigmoid(x), and layer
normalisation of opsets before 17. Only where no other node reads the intermediate results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from trainyard.workloads.formats.onnx.graph import Graph, Node, Tensor


def with_fused_patterns(graph: Graph) -> Graph:
    """The same graph with these patterns as single nodes."""
    patterns = _Patterns(graph)
    removed: set[int] = set()
    replacements: dict[int, Node] = {}
    for matches in (patterns.gelus, patterns.silus, patterns.layer_norms, patterns.biases):
        for members, node in matches():
            if not removed & set(members) and not replacements.keys() & set(members):
                *rest, last = sorted(members)
                removed.update(rest)
                replacements[last] = node
    nodes = tuple(replacements.get(i, node) for i, node in enumerate(graph.nodes) if i not in removed)
    return replace(graph, nodes=nodes)


Match = tuple[tuple[int, ...], Node]


@dataclass
class _Patterns:
    graph: Graph

    def __post_init__(self) -> None:
        nodes = self.graph.nodes
        self.maker: Mapping[str, int] = {name: i for i, node in enumerate(nodes) for name in node.outputs}
        self.reads = Counter(name for node in nodes for name in node.inputs) + Counter(self.graph.outputs)
        self.readers: dict[str, list[int]] = {}
        for i, node in enumerate(nodes):
            for name in node.inputs:
                self.readers.setdefault(name, []).append(i)
        self.constants = {node.outputs[0]: node.attributes.get("value") for node in nodes if node.op == "Constant" and node.outputs}

    def number(self, name: str) -> float | None:
        """The value of a constant of one element."""
        tensor = self.constants.get(name) or self.graph.initialisers.get(name)
        return tensor.values[0] if isinstance(tensor, Tensor) and tensor.values is not None and len(tensor.values) == 1 else None

    def made_by(self, name: str, *ops: str) -> tuple[int, Node] | None:
        at = self.maker.get(name)
        return (at, self.graph.nodes[at]) if at is not None and self.graph.nodes[at].op in ops else None

    def next(self, node: Node, *ops: str) -> tuple[int, Node] | None:
        """The only reader of a node's only result."""
        if not node.outputs or self.reads[node.outputs[0]] != 1:
            return None
        at = next(iter(self.readers.get(node.outputs[0], ())), None)
        return (at, self.graph.nodes[at]) if at is not None and self.graph.nodes[at].op in ops else None

    def other(self, node: Node, name: str) -> str | None:
        """The operand of a node of two that is not `name`."""
        if len(node.inputs) != 2 or name not in node.inputs:
            return None
        return node.inputs[1] if node.inputs[0] == name else node.inputs[0]

    def by_number(self, node: Node) -> str | None:
        """The operand of a node whose other one is a single number."""
        if len(node.inputs) != 2:
            return None
        left, right = node.inputs
        return left if self.number(right) is not None else right if self.number(left) is not None else None

    def of(self, op: str) -> Iterator[tuple[int, Node]]:
        return ((i, node) for i, node in enumerate(self.graph.nodes) if node.op == op and node.outputs and node.inputs)

    def gelus(self) -> Iterator[Match]:
        """x / sqrt(2) -> Erf -> + 1, times x, times 0.5 (on x or on the product)."""
        for at, erf in self.of("Erf"):
            scaled = self.made_by(erf.inputs[0], "Div", "Mul")
            added = self.next(erf, "Add")
            x = self.by_number(scaled[1]) if scaled else None
            if scaled is None or added is None or x is None or self.by_number(added[1]) is None or self.reads[erf.inputs[0]] != 1:
                continue
            product = self.next(added[1], "Mul")
            second = self.other(product[1], added[1].outputs[0]) if product else None
            if product is None or second is None:
                continue
            half = self.made_by(second, "Mul", "Div")
            if second == x:
                last = self.next(product[1], "Mul", "Div")
                if last is None or self.by_number(last[1]) is None:
                    continue
            elif half is not None and self.by_number(half[1]) == x and self.reads[second] == 1:
                last = half
            else:
                continue
            end = self.graph.nodes[max(last[0], product[0])]
            node = Node("Gelu", end.name or erf.name, (x,), end.outputs)
            yield (at, scaled[0], added[0], product[0], last[0]), node

    def silus(self) -> Iterator[Match]:
        for at, gate in self.of("Sigmoid"):
            product = self.next(gate, "Mul")
            if product is not None and self.other(product[1], gate.outputs[0]) == gate.inputs[0]:
                yield (at, product[0]), Node("Silu", product[1].name or gate.name, gate.inputs[:1], product[1].outputs)

    def layer_norms(self) -> Iterator[Match]:
        """mean, x - mean, its square, mean, + epsilon, root, quotient, times a weight, plus a bias."""
        for at, mean in self.of("ReduceMean"):
            x = mean.inputs[0]
            centred = self.next(mean, "Sub")
            if centred is None or centred[1].inputs[0] != x or self.reads[centred[1].outputs[0]] != 2:
                continue
            readers = ((i, self.graph.nodes[i]) for i in self.readers[centred[1].outputs[0]])
            square = next((link for link in readers if link[1].op == "Pow"), None)
            chain: list[tuple[int, Node] | None] = [(at, mean), centred, square]
            for op in ("ReduceMean", "Add", "Sqrt", "Div", "Mul", "Add"):
                before = chain[-1]
                chain.append(self.next(before[1], op) if before is not None else None)
            links = [link for link in chain if link is not None]
            if len(links) != 9:
                continue
            scale, shift = self.other(links[7][1], links[6][1].outputs[0]), self.other(links[8][1], links[7][1].outputs[0])
            parameters = self.graph.initialisers
            if scale in parameters and shift in parameters and scale is not None and shift is not None:
                node = Node("LayerNormalization", mean.name, (x, scale, shift), links[8][1].outputs,
                            {"axis": -len(parameters[scale].shape)})  # fmt: skip
                yield tuple(link[0] for link in links), node

    def biases(self) -> Iterator[Match]:
        """A product and the vector of parameters that is added to its last dimension."""
        for at, product in self.of("MatMul"):
            added = self.next(product, "Add")
            bias = self.other(added[1], product.outputs[0]) if added else None
            tensor = self.graph.initialisers.get(bias or "")
            if added is not None and bias and tensor is not None and len(tensor.shape) == 1 and tensor.shape[0] > 1:
                yield (at, added[0]), replace(product, inputs=(*product.inputs, bias), outputs=added[1].outputs)
