"""Model parallelism: every layer's output features are cut into one piece for each device (A. Krizhevsky 2012, 2014; MC-DLA, II-C).

- A product reads X whole, which is all-gathered once for all its readers, and makes the device's piece of Y. dX sums over output
  features, so that each device has a part of the sum: it is all-reduced, or reduce-scattered where only a piece is read next. dW
  and the update need no exchange: weights, their gradients and the optimizer's state are cut as Y is.
- Between products an op works on the piece that it is given. Batch normalisation, pooling and bias gradients stay within features.
  Layer normalisation and softmax over features exchange two statistics a row (one in softmax's backward); a sum over features
  exchanges its results; what selects among features (topk, max) reads them whole. Normalisation over neighbouring channels reads
  its own alone: the few at the border are not exchanged.
- An embedding is cut in its width. One that shares its table with a product is cut in rows, as that is: each device looks up the
  rows that it has (assumed evenly spread: the tokens are not known), and the results are all-reduced.
- Attention products are cut into pieces of `count`. Where the heads divide, they are the features that the device has; else the
  operands are gathered and cut into (sample, head) pairs. Fewer products than devices are left whole on every device.
- Convolutions with a group for every device are cut in groups, without exchange. Network inputs are whole everywhere; constants,
  random masks and what follows from inputs alone are made where they are needed. Losses follow the rules above.

A layer under `data` works on its samples with all its weights instead: what it reads is gathered and cut along the batch where
that was cut in features, and back; dX at the border is reduce-scattered into samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from trainyard.ir import Body, Convolution, Copy, Gather, MatMul, Op, Phase, Reduction, Role, Step, Update
from trainyard.mapping.parallel.relayout import Relayout, Summed
from trainyard.mapping.parallel.shards import (
    BATCH,
    PARTIAL,
    WHOLE,
    Layout,
    cut_body,
    cut_product,
    feature_axis,
    features,
    input_features,
    own_groups,
    piece,
    scaled,
)

Mode = Literal["data", "model"]

STATISTICS = {  # values a row that a normalisation over features sums over devices
    "layer_norm": 2,  # sum, sum of squares
    "layer_norm_backward": 2,  # sums of dY and of dY times the normalised X
    "softmax": 2,  # maximum, sum of exponentials
    "log_softmax": 2,
    "softmax_backward_data": 1,  # sum of dY times Y
    "log_softmax_backward_data": 1,
}
SELECTIONS = ("topk", "max", "amax", "argmax", "prod")


@dataclass(slots=True, kw_only=True)
class Rewriter(Relayout):
    """The step of one device, op by op."""

    mode: Callable[[str], Mode]
    summed: Summed
    cut_from: dict[tuple[str, int], Layout] = field(default_factory=dict)  # (layer, weights) -> how X lay
    by_rows: frozenset[str] = frozenset()  # layers of embeddings
    left_whole: dict[str, None] = field(default_factory=dict)

    def rewrite(self) -> Step:
        for op in self.step.ops:
            self._op(op)
            for tensor in op.outputs:
                memory = self.base[tensor]
                self.writes[memory] = self.writes.get(memory, 0) + 1
        for place in reversed(self.left_open):
            self._settle(place)
        note = f"left whole on every device: {', '.join(self.left_whole)}" if self.left_whole else ""
        source = "; ".join(filter(None, (self.step.source, note)))
        return replace(self.step, ops=tuple(self.ops), tensors=self.tensors(), source=source, rebatchable=False)

    def partial_gradients(self) -> set[int]:
        """Gradients of parameters that lack the samples of other devices."""
        specs = self.step.tensors
        return {
            memory for memory, layout in self.layout.items() if layout == PARTIAL and specs[memory].role is Role.PARAMETER_GRADIENT
        }

    def _op(self, op: Op) -> None:
        if op.is_product:
            letters = letters_of(self.step, op)
            if "W" in letters or set(letters) == {"G", "A"}:
                self._layer(op, letters)
            else:
                self._attention(op)
        elif isinstance(op.body, Gather) and self._embeds(op):
            if self.mode(op.layer) == "model":
                self._embedding(op, op.body)
            else:
                self._apart(op, BATCH)
        else:
            self._between(op)

    def _emit(self, op: Op, body: Body, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        self.ops.append(
            Op(
                body=body,
                name=op.name,
                layer=op.layer,
                call=op.call,
                phase=op.phase,
                recompute=op.recompute,
                inputs=inputs,
                outputs=outputs,
                letters=op.letters,
                fused=op.fused,
                routing=op.routing and replace(op.routing, rows=getattr(body, op.routing.axis), slope=0),
            )
        )

    # -- products --

    def _layer(self, op: Op, letters: tuple[str, ...]) -> None:
        """A product with a layer's weights, or their gradient. dX is laid out as X was."""
        weights = next((self.base[t] for t, letter in zip(op.inputs, letters, strict=False) if letter == "W"), -1)
        if op.phase is not Phase.GRAD_INPUT and weights >= 0:
            self.cut_from[op.layer, weights] = self.of(op.inputs[letters.index("A")]) or WHOLE
        default = features(input_features(op.body, op.phase, letters), self.devices) if op.phase is Phase.GRAD_INPUT else WHOLE
        below = self.cut_from.get((op.layer, weights), default)
        if self.mode(op.layer) == "data":
            self._apart(op, BATCH)
            if op.phase is Phase.GRAD_INPUT and below.cut:
                for tensor in op.outputs:
                    self.spread(self.base[tensor], below, op)
            return
        body, own_piece = cut_product(op.body, op.phase, letters, self.devices)
        alone = own_groups(op.body, self.devices)
        inputs = tuple(
            self.read(t, WHOLE if place < len(letters) and letters[place] == "A" and not alone else own_piece, op)
            for place, t in enumerate(op.inputs)
        )
        if op.phase is not Phase.GRAD_INPUT:
            self._emit(op, body, inputs, tuple(self.write(t, own_piece) for t in op.outputs))
        elif alone:
            self._emit(op, body, inputs, tuple(self.write(t, below if below.cut else default) for t in op.outputs))
        else:
            self._emit(op, body, inputs, tuple(self.write(t, WHOLE) for t in op.outputs))
            for tensor in op.outputs:
                kind: Summed = "reduce_scatter" if below.kind == "batch" else self.summed if below.cut else "all_reduce"
                self.reduce(self.base[tensor], below, op, kind)

    def _attention(self, op: Op) -> None:
        """A product of activations, `count` times over."""
        layouts = [layout for layout in map(self.of, op.inputs[:2]) if layout is not None]
        if layouts and all(layout.by_sample for layout in layouts):
            self._apart(op, BATCH)
            return
        body = op.body
        if isinstance(body, Convolution) or body.count < self.devices:  # type: ignore[union-attr]  # a product
            self.left_whole[op.layer] = None
            self._apart(op, WHOLE)
            return
        assert isinstance(body, MatMul)
        heads = op.slope[3] if op.slope and op.slope[3] else body.count
        own_piece = Layout("pairs" if heads % self.devices else "heads", piece(body.count, self.devices), body.count)
        single = (body.M * body.K, body.K * body.N)
        inputs = tuple(
            self.read(t, own_piece, op, carries=place > 1 or self.step.tensors[t].elements > single[place])
            for place, t in enumerate(op.inputs)
        )
        self._emit(op, replace(body, count=own_piece.part), inputs, tuple(self.write(t, own_piece) for t in op.outputs))

    def _apart(self, op: Op, wanted: Layout) -> None:
        """All of an op for the device's samples, or for all samples on every device."""
        inputs = tuple(self.read(t, wanted, op) for t in op.inputs)
        if wanted == WHOLE:
            self._emit(op, op.body, inputs, tuple(self.write(t, WHOLE) for t in op.outputs))
            return
        summed = any(self.by_sample(t) or self.of(t) == PARTIAL for t in op.inputs)
        rest = PARTIAL if summed else WHOLE
        outputs = tuple(self.write(t, BATCH if self.by_sample(t) else rest) for t in op.outputs)
        self._emit(op, op.rebatch(self.batch - self.step.batch).body, inputs, outputs)

    # -- embeddings --

    def _embeds(self, op: Op) -> bool:
        """Whether a table is a parameter, or its gradient."""
        if op.body.scatter:  # type: ignore[union-attr]  # a Gather
            return op.phase is Phase.GRAD_WEIGHT
        return bool(op.inputs) and self.step.tensors[self.base[op.inputs[0]]].role is Role.PARAMETER

    def _embedding(self, op: Op, body: Gather) -> None:
        rows = op.layer in self.by_rows
        table = features(body.table_rows if rows else body.width, self.devices)
        inputs = []
        for place, tensor in enumerate(op.inputs):
            parameter = place == 0 and not body.scatter
            numbers = self.step.tensors[tensor].dtype.startswith("int")
            inputs.append(self.read(tensor, table if parameter or not (rows or numbers) else WHOLE, op))
        if not rows:
            self._emit(op, replace(body, width=table.part), tuple(inputs), tuple(self.write(t, table) for t in op.outputs))
            return
        share = replace(body, rows=piece(body.rows, self.devices), table_rows=table.part)
        self._emit(op, share, tuple(inputs), tuple(self.write(t, table if body.scatter else WHOLE) for t in op.outputs))
        if not body.scatter:
            for tensor in op.outputs:
                self.reduce(self.base[tensor], WHOLE, op)

    # -- between products --

    def _between(self, op: Op) -> None:
        wanted = self._wanted(op)
        if wanted is None:
            self.left_open.append(len(self.ops))
            self.ops.append(op)
            for tensor in op.outputs:
                self.wanted.setdefault(self.base[tensor], {})
            return
        body = op.body
        if wanted.kind == "pairs" and op.phase is Phase.GRAD_WEIGHT and isinstance(body, Reduction):
            wanted = features(body.results, self.devices)  # the gradient of a bias, which is cut as its layer is
        selects = body.function in SELECTIONS if isinstance(body, Reduction) else isinstance(body, Gather) and body.width == 1
        if wanted.by_sample or wanted == WHOLE or selects:
            self._apart(op, BATCH if wanted.by_sample else WHOLE)
            return
        inputs = tuple(self.read(t, wanted, op, carries=self._carries(op, t, wanted)) for t in op.inputs)
        if isinstance(body, Reduction) and wanted.kind == "features" and body.function in STATISTICS:
            inputs += (self._statistics(op, body, inputs[0], wanted),)
            body = replace(body, passes=max(1, body.passes - 1))
        keeps_features = [self._keeps(op, t, wanted) for t in op.outputs]
        share = self._cut(op, body, wanted, keeps_features[0] if keeps_features else True)
        self._emit(
            op,
            share,
            inputs,
            tuple(self.write(t, wanted if keeps else WHOLE) for t, keeps in zip(op.outputs, keeps_features, strict=True)),
        )
        if isinstance(body, Reduction) and body.function not in STATISTICS:
            # a loss's total weight, beside it, follows from targets alone
            summed = op.outputs[:1] if body.function.startswith("nll_loss") else op.outputs
            for tensor, keeps in zip(summed, keeps_features, strict=False):
                if not keeps:
                    self.reduce(self.base[tensor], WHOLE, op)

    def _cut(self, op: Op, body: Body, layout: Layout, kept: bool) -> Body:
        specs = self.step.tensors
        output = specs[op.outputs[0]].shape if op.outputs else ()
        return cut_body(body, layout, output, specs[op.inputs[0]].shape if op.inputs else output, kept)

    def _wanted(self, op: Op) -> Layout | None:
        """The layout in which an op works: that of what it writes into, else of the largest cut tensor that it reads."""
        specs = self.step.tensors
        if isinstance(op.body, Update):
            layout_found = next(filter(None, map(self.of, op.inputs)), WHOLE)
            return WHOLE if layout_found.by_sample else layout_found
        for tensor in op.outputs:
            layout = self.of(tensor)
            if layout is not None and not specs[self.base[tensor]].role.resident:
                return layout
        read = [(self.elements[t], layout) for t in op.inputs if (layout := self.of(t)) is not None]
        cut = [(size, layout) for size, layout in read if layout != WHOLE]
        if not cut:
            return None
        layout_found = max(cut, key=lambda pair: pair[0])[1]
        alike = [(size, layout) for size, layout in cut if layout.cut]
        if isinstance(op.body, Copy) and layout_found.cut and len({layout for _, layout in alike}) > 1:
            sizes = sum(size for size, _ in alike)  # pieces of several layers side by side
            parts = sum(-(-size * layout.part // layout.of) for size, layout in alike)
            common = math.gcd(parts, sizes)
            return Layout(layout_found.kind, parts // common, sizes // common)
        return layout_found

    def _settle(self, place: int) -> None:
        """An op that every device can do as it likes, done as its results turned out to be wanted; readers come before it."""
        self.place, op = place, self.ops[place]
        decided = [layout for t in op.outputs if (layout := self.of(t)) is not None]
        wants = list(dict.fromkeys(layout for t in op.outputs for layout in self.wanted.get(self.base[t], ())))
        if self.batch and not any(map(self.by_sample, op.outputs)) and not any(layout.cut for layout in wants):
            wants = []  # one value for all its samples
        wanted = decided[0] if decided else wants[0] if wants and all(wants[0].like(layout) for layout in wants) else WHOLE
        if not decided and not wants and self.batch:
            wanted = BATCH
        body, read = op.body, wanted
        if wanted.by_sample:
            body = op.rebatch(self.batch - self.step.batch).body
        elif wanted.cut:
            body = self._cut(op, body, wanted, kept=True)
            read = WHOLE if isinstance(body, Reduction | Gather) else wanted
        inputs = tuple(self.read(t, read, op, carries=self._carries(op, t, wanted)) for t in op.inputs)
        outputs = tuple(self.write(t, wanted) for t in op.outputs)
        self.ops[self.place] = replace(op, body=body, inputs=inputs, outputs=outputs, slope=())

    def _statistics(self, op: Op, body: Reduction, read: int, wanted: Layout) -> int:
        """What a normalisation over features first sums over its piece, and then over devices."""
        spec = self.step.tensors[op.inputs[0]]
        rows = spec.elements // spec.shape[-1] * STATISTICS[body.function]
        own = self.add(op.inputs[0], (rows,))
        everyones = self.add(op.inputs[0], (rows,), own)
        first = Reduction(f"{body.function}_statistics", scaled(body.elements, wanted, spec.shape), rows)
        self._emit(replace(op, name=first.function, letters=()), first, (read,), (own,))
        self.exchange("all_reduce", rows, own, everyones, op)
        return everyones

    def _carries(self, op: Op, tensor: int, wanted: Layout) -> bool:
        """Whether a tensor has the axis that is cut, and not one value for all of it."""
        spec, size = self.step.tensors[tensor], self.elements[tensor]
        if size == 1:
            return False
        if isinstance(op.body, Copy | Update | Gather) or spec.role is Role.PARAMETER:
            return True
        large = max((*op.outputs, *op.inputs), key=self.elements.__getitem__)
        return size == self.elements[large] or _has_axis(spec.shape, self.step.tensors[large].shape, wanted)

    def _keeps(self, op: Op, tensor: int, wanted: Layout) -> bool:
        """Whether a result is cut as the features are, and not a sum over them."""
        body, size = op.body, self.elements[tensor]
        if not isinstance(body, Reduction):
            return size > 1
        if op.phase is Phase.GRAD_WEIGHT or self.step.tensors[self.base[tensor]].role is Role.PARAMETER_GRADIENT:
            return True
        if "pool" in body.function or "batch_norm" in body.function:
            return True
        large = max(op.inputs, key=self.elements.__getitem__)
        if size >= self.elements[large]:
            return True
        return size > 1 and _has_axis(self.step.tensors[tensor].shape, self.step.tensors[large].shape, wanted)


def _has_axis(shape: tuple[int, ...], large: tuple[int, ...], wanted: Layout) -> bool:
    """Whether a tensor extends along the axis in which a larger one is cut."""
    if wanted.kind == "pairs":
        return len(shape) == len(large) and shape[0] == large[0]
    extent = large[feature_axis(large)]
    return extent > 1 and shape[feature_axis(shape)] == extent


def letters_of(step: Step, op: Op) -> tuple[str, ...]:
    """What the two operands are to the layer: as captured, else by the roles of their tensors."""
    if op.letters:
        return op.letters[:2]
    roles = {Role.PARAMETER: "W", Role.GRADIENT: "G"}
    return tuple(roles.get(step.tensors[step.base(t)].role, "A") for t in op.inputs[:2])


def shared_tables(step: Step) -> frozenset[str]:
    """Layers of embeddings whose table is also the weights of a product."""
    weights = {
        step.base(t)
        for op in step.ops
        if op.is_product
        for t, letter in zip(op.inputs, letters_of(step, op), strict=False)
        if letter == "W"
    }
    return frozenset(
        op.layer
        for op in step.ops
        if isinstance(op.body, Gather) and not op.body.scatter and op.inputs and step.base(op.inputs[0]) in weights
    )
