"""Where a pipeline is cut and what crosses its cuts, on steps of a few ops."""

from __future__ import annotations

from dataclasses import replace

from trainyard.ir import ElementWise, MatMul, Op, Phase, Role, Step, TensorSpec, Update, Work
from trainyard.mapping.pipeline.stages import stages_of, sums_apart

F, X, W, U = Phase.FORWARD, Phase.GRAD_INPUT, Phase.GRAD_WEIGHT, Phase.UPDATE


def chain(layers: int, skip: tuple[int, int] | None = None) -> Step:
    """Layers forward and back, an update each. `skip` adds the result of one layer to that of a later one.

    Tensor 0 is the input; layer l reads tensor 4 l, has weights 4 l + 1, their gradient 4 l + 2, dY 4 l + 3 and leaves 4 l + 4.
    """
    size, weight = TensorSpec((4, 4)), TensorSpec((4, 4), role=Role.PARAMETER)
    tensors = [TensorSpec((4, 4), role=Role.INPUT)]
    for _ in range(layers):
        tensors += [weight, replace(weight, role=Role.PARAMETER_GRADIENT), replace(size, role=Role.GRADIENT), size]
    ops = []
    for layer in range(layers):
        more = (4 * skip[0] + 4,) if skip and layer == skip[1] else ()
        inputs = (4 * layer, 4 * layer + 1, *more)
        ops.append(Op(body=MatMul(4, 4, 4), layer=f"{layer}", inputs=inputs, outputs=(4 * layer + 4,), letters=("A", "W")))
    last = 4 * layers
    ops.append(Op(body=ElementWise("loss", 16), layer="loss", phase=X, inputs=(last,), outputs=(last - 1,)))
    for layer in reversed(range(layers)):
        base = 4 * layer
        ops.append(Op(body=MatMul(4, 4, 4), layer=f"{layer}", phase=W, inputs=(base, base + 3), outputs=(base + 2,)))
        if layer:
            ops.append(Op(body=MatMul(4, 4, 4), layer=f"{layer}", phase=X, inputs=(base + 3, base + 1), outputs=(base - 1,)))
    for layer in range(layers):
        inputs = (4 * layer + 1, 4 * layer + 2)
        ops.append(Op(body=Update("sgd", 16), layer=f"{layer}", phase=U, inputs=inputs, outputs=(4 * layer + 1,)))
    return Step(name="chain", batch=4, ops=tuple(ops), tensors=tuple(tensors))


def alone(step: Step) -> list[Work]:
    return [Work(ops=(number,)) for number in range(len(step.ops))]


def test_layers_are_cut_by_their_time_forward_and_back_and_updates_stay_with_them() -> None:
    """Four layers; the backward pass of the last takes as long as all others."""
    step = chain(4)
    seconds = [1.0] * 4 + [0.0] + [6.0, 0.0] + [0.0] * 5 + [0.0] * 4
    cut = stages_of(step, alone(step), seconds, 2)
    assert cut.chunk == (0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    assert cut.done == ("forward",) * 4 + ("backward",) * 8 + ("once",) * 4
    assert cut.of(1, "backward") == [4, 5, 6]
    assert cut.of(0, "once") == [12, 13, 14]


def test_a_map_crosses_forward_its_gradient_back_and_gradients_of_weights_add_up() -> None:
    step = chain(4)
    cut = stages_of(step, alone(step), [1.0] * len(step.ops), 4)
    assert cut.chunk[:4] == (0, 1, 2, 3)
    assert cut.forward == ((4,), (8,), (12,))
    assert cut.backward == ((3,), (7,), (11,))
    assert cut.accumulated == {2, 6, 10, 14}


def test_a_skip_connection_crosses_every_cut_on_its_way() -> None:
    step = chain(4, skip=(0, 3))
    cut = stages_of(step, alone(step), [1.0] * len(step.ops), 4)
    assert cut.forward == ((4,), (4, 8), (4, 12))


def test_one_chunk_has_everything_and_nothing_crosses() -> None:
    step = chain(2)
    cut = stages_of(step, alone(step), [1.0] * len(step.ops), 1)
    assert set(cut.chunk) == {0}
    assert (cut.forward, cut.backward) == ((), ())


def test_what_is_computed_again_belongs_to_the_backward_pass() -> None:
    step = chain(2)
    again = replace(step.ops[0], recompute=True)
    step = replace(step, ops=(*step.ops[:3], again, *step.ops[3:]))
    assert stages_of(step, alone(step), [1.0] * len(step.ops), 2).done[3] == "backward"


def test_a_call_of_a_layer_is_not_cut() -> None:
    """Three ops of the first layer take longest, and stay together."""
    step = chain(2)
    inner = [replace(step.ops[0], outputs=(4,)) for _ in range(3)]
    step = replace(step, ops=(*inner, *step.ops[1:]))
    cut = stages_of(step, alone(step), [5.0] * 3 + [1.0] * (len(step.ops) - 3), 2)
    assert cut.chunk[:4] == (0, 0, 0, 1)


def shared() -> Step:
    """A parameter of two layers: the sum of their two gradients, in a Work with the second of them."""
    size, gradient = TensorSpec((4, 4)), TensorSpec((4, 4), role=Role.PARAMETER_GRADIENT)
    ops = [
        Op(body=MatMul(4, 4, 4), layer="embed", phase=W, inputs=(0, 1), outputs=(2,)),
        Op(body=MatMul(4, 4, 4), layer="head", phase=W, inputs=(0, 1), outputs=(3,)),
        Op(body=ElementWise("add", 16), layer="head", phase=W, inputs=(2, 3), outputs=(4,)),
    ]
    return Step(name="shared", batch=4, ops=tuple(ops), tensors=(size, size, gradient, gradient, gradient))


def test_a_sum_of_two_layers_gradients_stands_alone_and_one_of_a_single_layer_does_not() -> None:
    step = shared()
    works = (Work(ops=(0,)), Work(ops=(1, 2), grouping="chain"))
    assert sums_apart(step, works) == (Work(ops=(0,)), Work(ops=(1,)), Work(ops=(2,)))
    one = replace(step, ops=tuple(replace(op, layer="head") for op in step.ops))
    assert sums_apart(one, works) == works
    other = replace(step, ops=(*step.ops[:2], replace(step.ops[2], body=ElementWise("mul", 16))))
    assert sums_apart(other, works) == works
    longer = (Work(ops=(0, 1, 2), grouping="chain"),)
    assert sums_apart(step, longer) == (Work(ops=(0, 1), grouping="chain"), Work(ops=(2,)))


def test_sums_of_a_shared_parameters_gradients_are_added_where_the_first_of_its_layers_is() -> None:
    """Gradients of two Works of the second chunk and one of the first; there it is added, once, though most of it is elsewhere."""
    step = chain(2)
    first = len(step.tensors)
    gradient = TensorSpec((4, 4), role=Role.PARAMETER_GRADIENT)
    more = Op(body=MatMul(4, 4, 4), layer="1", phase=W, inputs=(4, 7), outputs=(first,))
    add = Op(body=ElementWise("add", 16), layer="1", phase=W, inputs=(2, 6, first), outputs=(first + 1,))
    place = next(number for number, op in enumerate(step.ops) if op.phase is U)
    step = replace(step, ops=(*step.ops[:place], more, add, *step.ops[place:]), tensors=(*step.tensors, gradient, gradient))
    cut = stages_of(step, alone(step), [1.0] * len(step.ops), 2)
    assert (cut.chunk[place], cut.done[place]) == (1, "backward")
    assert (cut.chunk[place + 1], cut.done[place + 1]) == (0, "once")
