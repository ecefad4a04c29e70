"""torchvision: classification, segmentation, detection, video and optical flow, as its reference scripts train them."""

from __future__ import annotations

from functools import partial
from typing import Any

from coverage_cases.case import Case, Training

# fmt: off
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "alexnet":            {"size": 64},
    "squeezenet1_1":      {"size": 64},
    "googlenet":          {"size": 64, "aux_logits": True, "init_weights": False},
    "inception_v3":       {"size": 299, "aux_logits": True, "init_weights": False},
    "mnasnet0_5":         {"size": 64},
    "mobilenet_v3_small": {"size": 64},
    "shufflenet_v2_x0_5": {"size": 64},
    "efficientnet_b0":    {"size": 64},
    "regnet_y_400mf":     {"size": 64},
    "convnext_tiny":      {"size": 32},
    "swin_t":             {"size": 64},
    "vit_b_16":           {"size": 32, "image_size": 32},
    "resnext50_32x4d":    {"size": 64},
}
SEGMENTERS = {"fcn_resnet50": True, "deeplabv3_mobilenet_v3_large": True, "lraspp_mobilenet_v3_large": False}  # with aux loss
REGIONS = {"rpn_pre_nms_top_n_train": 100, "rpn_post_nms_top_n_train": 50, "rpn_batch_size_per_image": 32,
           "box_batch_size_per_image": 16}
DETECTORS: dict[str, dict[str, Any]] = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": {**REGIONS},
    "fasterrcnn_resnet50_fpn":               {**REGIONS},
    "maskrcnn_resnet50_fpn":                 {**REGIONS, "masks": True},
    "keypointrcnn_resnet50_fpn":             {**REGIONS, "keypoints": 4, "classes": 2},
    "retinanet_resnet50_fpn":                {},
    "fcos_resnet50_fpn":                     {},
    "ssdlite320_mobilenet_v3_large":         {"size": 320},
}
VIDEOS: dict[str, dict[str, Any]] = {
    "r3d_18":      {"frames": 4, "size": 32},
    "r2plus1d_18": {"frames": 4, "size": 32},
    "mc3_18":      {"frames": 4, "size": 32},
    "swin3d_t":    {"frames": 4, "size": 32},
}
# fmt: on
CLASSES = 5


def cases() -> list[Case]:
    builders = [
        *((name, partial(_classifier, name, **options)) for name, options in CLASSIFIERS.items()),
        *((name, partial(_segmenter, name, aux)) for name, aux in SEGMENTERS.items()),
        *((name, partial(_detector, name, **options)) for name, options in DETECTORS.items()),
        *((name, partial(_video, name, **options)) for name, options in VIDEOS.items()),
        ("raft_small", _optical_flow),
    ]
    return [Case("torchvision", name, build) for name, build in builders]


def _classifier(name: str, *, size: int, **options: Any) -> Training:
    """references/classification: SGD with momentum; auxiliary classifiers count 0.3."""
    import torch
    import torch.nn.functional as F
    import torchvision

    model = torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **options).train()

    def loss(output: Any, targets: Any) -> Any:
        if not isinstance(output, tuple):
            return F.cross_entropy(output, targets)
        first, *others = (part for part in output if part is not None)
        return F.cross_entropy(first, targets) + 0.3 * sum(F.cross_entropy(other, targets) for other in others)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    return Training(model, torch.randn(2, 3, size, size), torch.randint(0, CLASSES, (2,)), loss=loss, optimizer=optimizer)


def _segmenter(name: str, aux: bool) -> Training:
    """references/segmentation: a cross-entropy for each pixel; the auxiliary head counts a half."""
    import torch
    import torch.nn.functional as F
    import torchvision

    options = {"weights_backbone": None, **({"aux_loss": True} if aux else {})}
    model = torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **options).train()

    def loss(output: Any, targets: Any) -> Any:
        terms = {head: F.cross_entropy(logits, targets, ignore_index=255) for head, logits in output.items()}
        return terms["out"] + 0.5 * terms["aux"] if "aux" in terms else terms["out"]

    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    images, labels = torch.randn(2, 3, 64, 64), torch.randint(0, CLASSES, (2, 64, 64))
    return Training(model, images, labels, loss=loss, optimizer=optimizer)


def _detector(
    name: str, *, size: int = 96, classes: int = CLASSES, masks: bool = False, keypoints: int = 0, **options: Any
) -> Training:
    """references/detection: a list of images, a list of dictionaries, and the sum of the losses that the model returns."""
    import torch
    import torchvision

    if size < 300:  # SSD's size is in its name
        options |= {"min_size": size, "max_size": size}
    if keypoints:
        options["num_keypoints"] = keypoints
    model = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=classes, **options).train()
    images = [torch.rand(3, size, size), torch.rand(3, size - 16, size)]
    targets = [_target(classes, size - 20, objects, masks, keypoints) for objects in (2, 3)]
    if masks:
        for image, target in zip(images, targets, strict=True):
            target["masks"] = (torch.rand(len(target["boxes"]), *image.shape[1:]) > 0.5).to(torch.uint8)
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.02, momentum=0.9, weight_decay=1e-4
    )
    return Training(model, (images, targets), loss=lambda losses: sum(losses.values()), optimizer=optimizer)


def _target(classes: int, size: int, objects: int, masks: bool, keypoints: int) -> dict[str, Any]:
    import torch

    corners = torch.rand(objects, 2) * size / 2
    boxes = torch.cat([corners, corners + 8 + torch.rand(objects, 2) * (size / 2 - 8)], dim=1)
    target = {"boxes": boxes, "labels": torch.randint(1, classes, (objects,))}
    if keypoints:
        places = boxes[:, None, :2] + torch.rand(objects, keypoints, 2) * (boxes[:, None, 2:] - boxes[:, None, :2])
        target["keypoints"] = torch.cat([places, torch.ones(objects, keypoints, 1)], dim=2)
    return target


def _video(name: str, *, frames: int, size: int) -> Training:
    """references/video_classification."""
    import torch
    import torchvision

    model = torchvision.models.get_model(name, weights=None, num_classes=CLASSES).train()
    clips = torch.randn(2, 3, frames, size, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    return Training(model, clips, torch.randint(0, CLASSES, (2,)), loss=torch.nn.CrossEntropyLoss(), optimizer=optimizer)


def _optical_flow() -> Training:
    """references/optical_flow: the distance of every refinement from the flow, later ones counting more."""
    import torch
    import torchvision

    model = torchvision.models.optical_flow.raft_small(weights=None).train()

    def loss(flows: Any, truth: Any) -> Any:
        return sum(0.8 ** (len(flows) - 1 - number) * (flow - truth).abs().mean() for number, flow in enumerate(flows))

    images = torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128), 3
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=1e-5)
    return Training(model, images, torch.randn(1, 2, 128, 128), loss=loss, optimizer=optimizer)
