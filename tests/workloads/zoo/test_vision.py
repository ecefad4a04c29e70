"""The vision zoo: published parameter and operation counts, training on meta and with real numbers, box geometry."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from trainyard.workloads.zoo.catalogue import VISION, Entry
from trainyard.workloads.zoo.language import show_and_tell, video_captioning
from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision import boxes as geometry
from trainyard.workloads.zoo.vision import (
    faster_rcnn,
    faster_rcnn_mobilenet,
    googlenet,
    mask_rcnn,
    mobilenet,
    regions,
    resnet,
    squeezenet,
    yolov2,
    yolov5,
)

pytestmark = pytest.mark.unit

BY_NAME = {entry.name: entry for entry in VISION}
every_model = pytest.mark.parametrize("entry", VISION, ids=lambda entry: entry.name)
LARGE = ("video-captioning", "yolov5l", "mask-rcnn", "faster-rcnn")  # smaller ones of their kind hold the line in every run
DEEP = (*LARGE, "resnet34", "resnet50", "googlenet-aux")  # resnet18 and googlenet are made by the same code


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small products are slowed by many threads, the more so beside other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def recipe_of(entry: Entry) -> Recipe:
    module = importlib.import_module(f"trainyard.workloads.zoo.{entry.module}")
    recipe: Recipe = getattr(module, entry.function)()
    return recipe


def train(recipe: Recipe, model: torch.nn.Module, batch: int) -> Tensor:
    loss = recipe.loss(model(*recipe.inputs(batch)), *recipe.targets(batch))
    loss.backward()
    return loss


class Shapes(TorchDispatchMode):
    """Every operation with the shapes of the tensors it reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[tuple[int, ...]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, output)) if isinstance(leaf, Tensor)]
        self.seen.append((str(func), [tuple(tensor.shape) for tensor in tensors]))
        return output


@every_model
def test_parameters_are_exact_and_within_the_published_rounding(entry: Entry) -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in recipe_of(entry).model().parameters())
    assert count == entry.parameters
    if entry.published is not None:
        assert abs(count / entry.published - 1) <= entry.within


@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name, marks=pytest.mark.slow if e.name in DEEP else ()) for e in VISION])
def test_a_step_on_meta_has_dimensions_affine_in_the_batch(entry: Entry) -> None:
    recipe, runs = recipe_of(entry), []
    with torch.device("meta"):
        model = recipe.model()
        for batch in (2, 3, 4):
            with Shapes() as shapes:
                loss = train(recipe, model, batch)
            assert loss.shape == ()
            assert all(tensor.shape[0] == batch for tensor in (*recipe.inputs(batch), *recipe.targets(batch)))
            assert all((p.grad is not None) == p.requires_grad for p in model.parameters())
            model.zero_grad()
            runs.append(shapes.seen)
    for (name, two), (other, three), (third, four) in zip(*runs, strict=True):
        assert name == other == third
        for a, b, c in zip(two, three, four, strict=True):
            assert [y - x for x, y in zip(a, b, strict=True)] == [y - x for x, y in zip(b, c, strict=True)], name


# Multiply-accumulates of one image, as printed.
# fmt: off
PUBLISHED_MACS = [
    ("alexnet",       0.714e9, 0.001),   # torch's model table
    ("vgg16",        15.47e9,  0.001),   # torch's model table
    ("vgg19",        19.63e9,  0.001),   # torch's model table
    ("googlenet",     1.586e9, 0.005),   # Szegedy et al. 2015, Table 1: 1502 M, with conv1's true 118 M instead of 34 M
    ("resnet18",      1.814e9, 0.001),   # torch's model table
    ("resnet34",      3.664e9, 0.001),   # torch's model table
    ("resnet50",      4.089e9, 0.001),   # torch's model table
    ("squeezenet",    0.819e9, 0.001),   # torch's model table
    ("mobilenet",     0.569e9, 0.001),   # Howard et al. 2017, Table 4
    ("yolov2-tiny",   2.705e9, 0.002),   # Darknet's table: 5.41 billion operations
    ("yolov5l",      54.55e9,  0.002),   # Ultralytics' table: 109.1 billion operations
]
# fmt: on


@pytest.mark.parametrize(("name", "published", "within"), PUBLISHED_MACS)
def test_forward_macs_are_the_published_ones(name: str, published: float, within: float) -> None:
    recipe = recipe_of(BY_NAME[name])
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        recipe.model()(*recipe.inputs(1))
    assert counter.get_total_flops() / 2 == pytest.approx(published, rel=within)


def test_paths_are_those_of_the_known_implementations() -> None:
    expected = {
        "alexnet": ["features.10", "classifier.6"],
        "vgg19": ["features.34", "classifier.6"],
        "googlenet-aux": ["inception4e.branch3.1.conv", "aux2.fc2"],
        "resnet50": ["layer4.0.conv2", "layer1.0.downsample.0", "fc"],
        "squeezenet": ["features.12.expand3x3", "classifier.1"],
        "yolov5l": ["model.0.conv", "model.8.m.2.cv2.conv", "model.24.m.2"],
        "mask-rcnn": ["backbone.body.layer4.2.conv3", "backbone.fpn.inner_blocks.3", "rpn.head.cls_logits"],
        "faster-rcnn": ["backbone.body.layer3.5.conv3", "roi_heads.layer4.2.conv2", "roi_heads.cls_score"],
    }
    with torch.device("meta"):
        for name, paths in expected.items():
            layers = {path for path, _ in recipe_of(BY_NAME[name]).model().named_modules()}
            assert layers.issuperset(paths), name


def test_video_captioning_does_not_fit_sixteen_gigabytes() -> None:
    entry = BY_NAME["video-captioning"]
    recipe = recipe_of(entry)
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.device("meta"):
        model = recipe.model()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = recipe.loss(model(*recipe.inputs(entry.batch)), *recipe.targets(entry.batch))
    assert loss.requires_grad
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    activations = sum(storage.nbytes() for key, storage in kept.items() if key not in weights)
    total = activations + 3 * 4 * entry.parameters  # weights, gradients, momentum
    assert total > 16e9
    assert f"{total / 1e9:.1f} GB" in entry.note
    assert f"{activations / 1e9:.1f} GB" in entry.note


# Small images, so that a real step takes about a second.
REAL_STEPS = {
    "squeezenet": lambda: squeezenet.squeezenet(48),
    "mobilenet": lambda: mobilenet.mobilenet(32),
    "resnet18": lambda: resnet.resnet18(32),
    "googlenet-aux": googlenet.googlenet_aux,
    "yolov2-tiny": lambda: yolov2.yolov2_tiny(64),
    "yolov5l": lambda: yolov5.yolov5l(64),
    "faster-rcnn": lambda: faster_rcnn.faster_rcnn(96, 128),
    "faster-rcnn-mobilenet": lambda: faster_rcnn_mobilenet.faster_rcnn_mobilenet(160, 224),
    "mask-rcnn": lambda: mask_rcnn.mask_rcnn(96, 128),
    "show-and-tell": lambda: show_and_tell.show_and_tell(48),
    "video-captioning": lambda: video_captioning.video_captioning(2, 32),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in REAL_STEPS])
def test_one_real_step_trains_every_parameter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (faster_rcnn, faster_rcnn_mobilenet, mask_rcnn):
        monkeypatch.setattr(module, "REGIONS", 12)
        monkeypatch.setattr(module, "FOREGROUND", 4)
    torch.manual_seed(0)
    recipe = REAL_STEPS[name]()
    model = recipe.model()
    optimizer = recipe.optimizer(model.parameters())
    loss = train(recipe, model, 2)
    assert torch.isfinite(loss)
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, path
            assert torch.isfinite(parameter.grad).all(), path
    before = {path: parameter.detach().clone() for path, parameter in model.named_parameters()}
    optimizer.step()
    moved = {path for path, parameter in model.named_parameters() if not torch.equal(parameter, before[path])}
    trainable = {path for path, parameter in model.named_parameters() if parameter.requires_grad}
    assert moved <= trainable
    assert len(moved) > 0.8 * len(trainable)


side = st.floats(2, 60)
place = st.floats(0, 100)
box = st.tuples(place, place, side, side).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))


@given(st.lists(st.tuples(box, box), min_size=1, max_size=5))
def test_decode_inverts_encode(pairs: list[tuple[tuple[float, ...], tuple[float, ...]]]) -> None:
    ours = torch.tensor([[a for a, _ in pairs]])
    anchors = torch.tensor([[b for _, b in pairs]])
    back = geometry.decode(geometry.encode(ours, anchors), anchors, 400, 400)
    torch.testing.assert_close(back, ours, rtol=1e-4, atol=1e-2)


@given(st.lists(box, min_size=1, max_size=4), st.lists(box, min_size=1, max_size=3))
def test_iou_is_intersection_over_union(left: list[tuple[float, ...]], right: list[tuple[float, ...]]) -> None:
    result = geometry.iou(torch.tensor([left]), torch.tensor([right]))[0]
    for i, (a, b, c, d) in enumerate(left):
        for j, (p, q, r, s) in enumerate(right):
            shared = max(0.0, min(c, r) - max(a, p)) * max(0.0, min(d, s) - max(b, q))
            union = (c - a) * (d - b) + (r - p) * (s - q) - shared
            assert float(result[i, j]) == pytest.approx(shared / union, rel=1e-3, abs=1e-4)


def test_decode_clips_to_the_image() -> None:
    anchors = torch.tensor([[[0.0, 0.0, 50.0, 20.0]]])
    grown = geometry.decode(torch.tensor([[[0.0, 0.0, 3.0, 3.0]]]), anchors, height=30, width=40)
    assert grown.tolist() == [[[0.0, 0.0, 40.0, 30.0]]]


def test_anchor_grid_is_centred_on_its_cells() -> None:
    anchors = geometry.anchor_grid(2, 3, 16, (32, 64), (0.5, 1.0, 2.0))
    assert anchors.shape == (2 * 3 * 6, 4)
    assert ((anchors[:6, 0] + anchors[:6, 2]) / 2).tolist() == [8.0] * 6
    width, height = (anchors[:, 2] - anchors[:, 0]), (anchors[:, 3] - anchors[:, 1])
    torch.testing.assert_close((width * height)[:6], torch.tensor([1024.0] * 3 + [4096.0] * 3))
    torch.testing.assert_close((height / width)[:3], torch.tensor([0.5, 1.0, 2.0]))


def ramp(height: int, width: int, stride: int) -> Tensor:
    """Two channels that hold the pixel coordinates of each cell's centre."""
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    return torch.stack([x * stride, y * stride])


def bin_centres(region: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    fraction = (torch.arange(bins) + 0.5) / bins
    return region[0] + fraction * (region[2] - region[0]), region[1] + fraction * (region[3] - region[1])


def test_roi_align_of_a_ramp_is_the_centre_of_each_bin() -> None:
    maps = torch.stack([ramp(20, 30, 16), 1000 + ramp(20, 30, 16)])
    places = torch.tensor([[[20.0, 30.0, 300.0, 200.0], [100.0, 50.0, 130.0, 90.0]]]).expand(2, -1, -1)
    pooled = geometry.align_on(maps, places, bins=7, stride=16)
    assert pooled.shape == (4, 2, 7, 7)
    for image in range(2):
        for index in range(2):
            x, y = bin_centres(places[image, index], 7)
            got = pooled[2 * image + index] - 1000 * image
            torch.testing.assert_close(got[0], x.expand(7, 7), rtol=1e-4, atol=1e-2)
            torch.testing.assert_close(got[1], y[:, None].expand(7, 7), rtol=1e-4, atol=1e-2)


def test_pyramid_regions_read_the_level_of_their_size() -> None:
    height, width = 512, 640
    levels = []
    for level, stride in ((2, 4), (3, 8), (4, 16), (5, 32)):
        cells = ramp(height // stride, width // stride, stride)
        levels.append(torch.cat([cells, torch.full_like(cells[:1], float(level))]).unsqueeze(0))
    sides = [40.0, 112.0, 224.0, 449.0]  # FPN, Eq. 1: levels 2 (clamped), 3, 4, 5
    places = torch.tensor([[[50.0, 40.0, 50.0 + size, 40.0 + size] for size in sides]])
    pooled = geometry.align_on_pyramid(levels, places, bins=7)
    for index, level in enumerate((2, 3, 4, 5)):
        x, y = bin_centres(places[0, index], 7)
        torch.testing.assert_close(pooled[index, 2], torch.full((7, 7), float(level)))
        torch.testing.assert_close(pooled[index, 0], x.expand(7, 7), rtol=1e-4, atol=1e-2)
        torch.testing.assert_close(pooled[index, 1], y[:, None].expand(7, 7), rtol=1e-4, atol=1e-2)


def test_regions_at_the_border_stay_on_their_level() -> None:
    levels = [torch.full((1, 1, 128 // stride, 192 // stride), float(stride)) for stride in (4, 8, 16, 32)]
    corners = [[0, 0, 120, 120], [72, 8, 192, 128], [0, 8, 120, 128], [72, 0, 192, 120]]
    pooled = geometry.align_on_pyramid(levels, torch.tensor([corners], dtype=torch.float32), bins=7)
    torch.testing.assert_close(pooled, torch.full_like(pooled, 8.0))  # all four are of level 3


def test_sampled_regions_lead_with_the_matches() -> None:
    torch.manual_seed(0)
    truth = regions.objects(2, 256, 256)
    corner = torch.rand(2, 300, 2) * 200
    proposals = torch.cat([corner, corner + 4 + torch.rand(2, 300, 2) * 50], dim=-1)
    sampled = regions.sample_regions(proposals, truth, count=64, foreground=8)
    overlap = geometry.iou(sampled, truth).amax(-1)
    assert sampled.shape == (2, 64, 4)
    assert overlap[:, :8].eq(1).all()  # the true boxes themselves
    assert overlap[:, 8:].lt(regions.REGION_FOREGROUND).all()


def test_a_perfect_detector_has_almost_no_loss() -> None:
    truth = regions.objects(1, 256, 256)
    labels = torch.arange(1, regions.OBJECTS + 1).unsqueeze(0)
    anchors = torch.cat([truth[0], 300 + geometry.anchor_grid(16, 16, 16, (32,), (1.0,))])
    certain = torch.cat([torch.full((1, regions.OBJECTS), 20.0), torch.full((1, 256), -20.0)], dim=1)
    scores = torch.full((regions.OBJECTS, regions.CLASSES), -20.0).scatter(1, labels.T, 20.0)
    perfect = regions.Detection(
        anchors=anchors,
        objectness=certain,
        deltas=torch.zeros(1, anchors.shape[0], 4),
        regions=truth,
        scores=scores,
        corrections=torch.zeros(regions.OBJECTS, 4 * regions.CLASSES),
        boxes=truth,
    )
    assert float(regions.detection_loss(perfect, labels)) < 1e-6
    assert float(regions.detection_loss(perfect._replace(objectness=-certain), labels)) > 1
    assert float(regions.detection_loss(perfect, labels.roll(1))) > 1
    assert float(regions.detection_loss(perfect._replace(corrections=perfect.corrections + 1), labels)) > 1


def test_mask_targets_show_the_object_inside_the_region() -> None:
    own = torch.tensor([[[20.0, 20.0, 60.0, 60.0]]])
    raster = torch.ones(1, 1, mask_rcnn.RASTER, mask_rcnn.RASTER)
    matched = torch.zeros(1, 2, dtype=torch.int64)
    views = torch.tensor([[[20.0, 20.0, 60.0, 60.0], [0.0, 20.0, 40.0, 60.0]]])  # the box; shifted left by half of it
    target = mask_rcnn.mask_targets(views, own, matched, raster)
    assert target[0].eq(1).all()
    assert target[1, :, :14].eq(0).all()
    assert target[1, :, 14:].eq(1).all()


@given(box, box)
def test_complete_iou_is_one_only_for_the_same_box(left: tuple[float, ...], right: tuple[float, ...]) -> None:
    a, b = (torch.tensor([(p + r) / 2, (q + s) / 2, r - p, s - q]) for p, q, r, s in (left, right))
    assert float(yolov5.complete_iou(a, a)) == pytest.approx(1.0, abs=1e-4)
    plain = float(geometry.iou(torch.tensor([[left]]), torch.tensor([[right]])))
    assert float(yolov5.complete_iou(a, b)) <= plain + 1e-4


def test_yolo_losses_fall_along_their_gradient() -> None:
    torch.manual_seed(0)
    recipe = yolov5.yolov5l(64)
    targets = recipe.targets(2)
    predictions = [torch.randn(2, 3 * (64 // stride) ** 2, 85, requires_grad=True) for stride in yolov5.STRIDES]
    before = recipe.loss(predictions, *targets)
    slopes = torch.autograd.grad(before, predictions)
    stepped = [p.detach() - slope for p, slope in zip(predictions, slopes, strict=True)]
    assert float(recipe.loss(stepped, *targets)) < float(before.detach())
