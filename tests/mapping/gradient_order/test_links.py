"""Which layers' gradients can be one piece of work, found from the ops and tensors of a step."""

from __future__ import annotations

import pytest

from trainyard.ir import Convolution, ElementWise, MatMul, Op, Phase, Reduction, Role, Step, TensorSpec
from trainyard.mapping.gradient_order.chain import chosen_chains
from trainyard.mapping.gradient_order.links import Link, gradient_links, table
from trainyard.mapping.gradient_order.works import is_chain, join_works, joinable_links, split_layers
from trainyard.mapping.works import group, separate_products
from trainyard.workloads import zoo


def found(name: str) -> dict[str, Link]:
    return {link.upper: link for link in gradient_links(zoo.load(name))}


@pytest.mark.parametrize(
    ("network", "upper", "lower", "why"),
    [
        ("resnet50", "layer4.2.conv3", "layer4.2.conv2", "BatchNorm's backward needs sums over the whole batch"),
        ("resnet50", "layer4.2.conv2", "layer4.2.conv1", "a 3x3 convolution's dX overlaps between tiles (col2im); BatchNorm"),
        ("resnet50", "layer4.2.conv1", "layer4.1.conv3", "more than one op reads it (a residual"),
        ("resnet50", "layer4.0.downsample.0", "layer3.5.conv3", "a 1x1 convolution of stride 2 leaves rows"),
        ("resnet50", "fc", "layer4.2.conv3", "it is spread over 49 times as many elements (pooling)"),
        ("mobilenet", "blocks.12.depthwise", "blocks.11.pointwise", "a 3x3 convolution in 1024 groups is many small products"),
        ("vgg16", "features.28", "features.26", "a 3x3 convolution's dX overlaps between tiles (col2im)"),
        ("vgg16", "classifier.0", "features.28", "max-pooling scatters it over windows"),
        ("dlrm", "top_l.0", "bot_l.4", "more than one op reads it"),
        ("ncf-3b", "final", "mlp.2", "only a part of it goes on (X was put together from several tensors)"),
        ("rnn-gemv", "rnn", "rnn", "the same layer at another time"),
    ],
)
def test_why_layers_stay_apart(network: str, upper: str, lower: str, why: str) -> None:
    link = found(network)[upper]
    assert not link.fuses
    assert link.lower == lower
    assert link.why.startswith(why)


@pytest.mark.parametrize(
    ("network", "upper", "lower", "epilogue", "relu"),
    [
        ("dlrm", "top_l.6", "top_l.4", ("ReLU mask from X",), True),
        ("alexnet", "classifier.6", "classifier.4", ("ReLU mask from X",), True),
        ("vgg16", "classifier.6", "classifier.3", ("mul with 1 tensor of its own", "ReLU mask from its own output"), False),
        ("squeezenet", "features.3.expand1x1", "features.3.squeeze",
         ("adds the gradient of another reader", "ReLU mask from X"), True),
        ("bert-tiny", "bert.encoder.layer.1.output.dense", "bert.encoder.layer.1.intermediate.dense",
         ("gelu_backward with 1 tensor of its own",), False),
    ],
)  # fmt: skip
def test_what_is_done_on_the_way(network: str, upper: str, lower: str, epilogue: tuple[str, ...], relu: bool) -> None:
    link = found(network)[upper]
    assert link.fuses
    assert (link.lower, link.epilogue, link.relu, link.why) == (lower, epilogue, relu, "")


@pytest.mark.parametrize("network", ["dlrm", "vgg16", "squeezenet", "resnet50", "mobilenet", "ncf-3b", "bert-tiny", "googlenet"])
def test_a_link_either_fuses_or_says_why(network: str) -> None:
    step = zoo.load(network)
    links = gradient_links(step)
    assert len(links) == sum(op.is_product and op.phase is Phase.GRAD_INPUT and "W" in op.letters for op in step.ops)
    for link in links:
        assert link.fuses == (not link.why)
        if link.fuses:
            assert link.lower_product is not None
            assert (link.upper_product.M, link.upper_product.K) == (link.lower_product.M, link.lower_product.N)
            assert link.bytes == 4 * link.upper_product.M * link.upper_product.K


def test_the_first_layer_has_no_dx() -> None:
    assert not found("dlrm")["bot_l.2"].lower_dx
    assert found("dlrm")["bot_l.4"].lower_dx


def step_of(*between: Op, specs: tuple[TensorSpec, ...] = ()) -> Step:
    """An upper layer (8,4)->(8,2) over a lower one; `between` leads from tensor 5 (dX) to tensor 6 (dY below)."""
    gradient, activation = Role.GRADIENT, Role.ACTIVATION
    tensors = (
        TensorSpec((8, 2), role=gradient), TensorSpec((2, 4), role=Role.PARAMETER), TensorSpec((8, 4), role=activation),
        TensorSpec((4, 3), role=Role.PARAMETER), TensorSpec((8, 3), role=activation), TensorSpec((8, 4), role=gradient),
        TensorSpec((8, 4), role=gradient), TensorSpec((2, 4), role=Role.PARAMETER_GRADIENT), TensorSpec((8, 3), role=gradient),
        TensorSpec((4, 3), role=Role.PARAMETER_GRADIENT), *specs,
    )  # fmt: skip
    down, across = Phase.GRAD_INPUT, Phase.GRAD_WEIGHT
    ops = (
        Op(body=MatMul(8, 4, 2), layer="upper", phase=down, inputs=(0, 1), outputs=(5,), letters=("G", "W")),
        Op(body=MatMul(2, 4, 8), layer="upper", phase=across, inputs=(0, 2), outputs=(7,), letters=("G", "A")),
        *between,
        Op(body=MatMul(8, 3, 4), layer="lower", phase=down, inputs=(6, 3), outputs=(8,), letters=("G", "W")),
        Op(body=MatMul(4, 3, 8), layer="lower", phase=across, inputs=(6, 4), outputs=(9,), letters=("G", "A")),
    )
    return Step(name="two layers", batch=8, ops=ops, tensors=tensors)


def relu(inputs: tuple[int, ...] = (5, 2), outputs: tuple[int, ...] = (6,)) -> Op:
    return Op(
        body=ElementWise("threshold_backward", 32),
        name="threshold_backward",
        phase=Phase.GRAD_INPUT,
        inputs=inputs,
        outputs=outputs,
    )


def test_a_relu_alone_between_two_layers() -> None:
    link, last = gradient_links(step_of(relu()))
    assert (link.upper_product, link.lower_product) == (MatMul(8, 2, 4), MatMul(8, 4, 3))
    assert link.fuses
    assert link.relu
    assert link.bytes == 4 * 32
    assert last.why == "no layer with weights is below"


def test_tensors_of_its_own_are_those_that_do_not_arrive_from_the_op_before() -> None:
    """Dropout's mask and a scale: each op reads the gradient that the one before it left, and one tensor more."""
    steps = [
        Op(body=ElementWise("mul", 32), name=name, phase=Phase.GRAD_INPUT, inputs=inputs, outputs=outputs)
        for name, inputs, outputs in (("mul", (5, 10), (11,)), ("div", (11, 10), (12,)), ("neg", (12,), (6,)))
    ]
    (link, _) = gradient_links(step_of(*steps, specs=(TensorSpec((8, 4)),) * 3))
    assert link.epilogue == ("mul with 1 tensor of its own", "div with 1 tensor of its own", "neg")


def test_the_bias_below_is_no_second_reader() -> None:
    bias = Op(body=Reduction("sum", 32, 4), name="sum", layer="lower", phase=Phase.GRAD_WEIGHT, inputs=(6,), outputs=(10,))
    assert gradient_links(step_of(relu(), bias, specs=(TensorSpec((4,), role=Role.PARAMETER_GRADIENT),)))[0].fuses


@pytest.mark.probe
def test_a_gradient_that_is_added_must_be_there_before() -> None:
    """The same sum, with the other gradient made before the upper product, and after it."""
    other = TensorSpec((8, 4), role=Role.GRADIENT)
    add = Op(body=ElementWise("add", 32), name="add", phase=Phase.GRAD_INPUT, inputs=(5, 10), outputs=(6,))
    makes = Op(body=ElementWise("neg", 32), name="neg", layer="branch", phase=Phase.GRAD_INPUT, inputs=(2,), outputs=(10,))
    early = step_of(add, specs=(other,))
    early = Step(name="early", batch=8, ops=(makes, *early.ops), tensors=early.tensors)
    assert gradient_links(early)[0].epilogue == ("adds the gradient of another reader",)
    late = gradient_links(step_of(makes, add, specs=(other,)))[0]
    assert not late.fuses
    assert late.why == "add waits for the gradient of another reader (branch)"


def test_a_second_reader_keeps_the_tensor_in_memory() -> None:
    beside = Op(body=ElementWise("add", 32), name="add", phase=Phase.GRAD_INPUT, inputs=(6, 2), outputs=(10,))
    link = gradient_links(step_of(relu(), beside, specs=(TensorSpec((8, 4), role=Role.GRADIENT),)))[0]
    assert link.why == "more than one op reads it (a residual, a branch or a norm: add)"


def test_a_convolution_of_one_by_one_hands_its_rows_down() -> None:
    step = step_of(relu())
    geometry = {"batch": 2, "in_channels": 4, "out_channels": 2, "size": (2, 2)}
    for kernel, padding, fuses in (((1, 1), (0, 0), True), ((3, 3), (1, 1), False)):
        body = Convolution(**geometry, kernel=kernel, padding=padding, product="grad_input")  # type: ignore[arg-type]
        upper = Op(body=body, layer="upper", phase=Phase.GRAD_INPUT, inputs=(0, 1), outputs=(5,), letters=("G", "W"))
        link = gradient_links(Step(name="convolution", batch=8, ops=(upper, *step.ops[1:]), tensors=step.tensors))[0]
        assert link.fuses is fuses
        assert ("col2im" in link.why) is not fuses


def test_frozen_weights_have_no_dw() -> None:
    step = step_of(relu())
    frozen = Step(name="frozen", batch=8, ops=(step.ops[0], *step.ops[2:]), tensors=step.tensors)
    assert gradient_links(frozen)[0].why == "the upper layer's weights are frozen: it has no dW"


def test_chosen_links_pay_and_share_no_layer() -> None:
    chosen = chosen_chains(zoo.load("squeezenet"), capacity_bytes=2**19, element_bytes=4, policy="farthest")
    assert len(chosen) == 8
    layers = [layer for link, _ in chosen for layer in (link.upper, link.lower)]
    assert len(set(layers)) == len(layers)
    assert all(chained.pays and link.fuses for link, chained in chosen)
    assert sum(chained.saved_bytes for _, chained in chosen) == sum(2 * link.bytes for link, _ in chosen)


def test_joined_works_meet_where_nothing_keeps_them_apart() -> None:
    bias = Op(body=Reduction("sum", 32, 4), name="sum", layer="lower", phase=Phase.GRAD_WEIGHT, inputs=(6,), outputs=(10,))
    step = step_of(relu(), bias, specs=(TensorSpec((4,), role=Role.PARAMETER_GRADIENT),))
    works = group(step, "epilogue", "none", "col2im")
    ((link, members),) = joinable_links(step, works).items()
    assert (link.upper, link.head, [member.ops for member in members]) == ("upper", 0, [(0, 2, 1), (4, 5), (3,)])
    (work,) = join_works(step, works, (members,))
    assert work.ops == (0, 2, 1, 4, 5, 3)
    assert is_chain(step, work)
    assert split_layers(step, work) == members
    assert [part.ops for part in separate_products(step, work)] == [(0, 2), (1,), (4,), (5,), (3,)]
    assert join_works(step, works, (members, members)) == (work,)  # the second time they are no longer there
    assert not any(is_chain(step, member) for member in members)


def test_without_epilogues_a_relu_keeps_works_apart() -> None:
    step = step_of(relu())
    assert not joinable_links(step, group(step, "none", "none", "col2im"))
    assert joinable_links(step, group(step, "epilogue", "none", "col2im"))
    assert not joinable_links(step, group(step, "epilogue"))  # no pairs


def test_a_table_names_every_link() -> None:
    rows = table(step_of(relu())).splitlines()
    assert rows[1].split() == ["upper", "lower", "yes", "ReLU", "mask", "from", "X"]
    assert rows[2].split(maxsplit=3) == ["lower", "-", "no", "no layer with weights is below"]
