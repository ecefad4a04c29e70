"""GoogLeNet. C. Szegedy et al.: Going Deeper with Convolutions. CVPR 2015.

Table 1 as printed: biased convolutions, local response normalisation, no batch normalisation, true 5 x 5 convolutions.
(torch's port adds batch normalisation and turns the 5 x 5 convolutions into 3 x 3, hence its 6.6 M parameters.)
`googlenet` is the network without the two auxiliary classifiers, `googlenet-aux` trains them with weight 0.3 (Sec. 5).
Poolings round up, as the map sizes of Table 1 require.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.imagenet import CLASSES, classifier

FEATURES = 1024
AUXILIARY_WEIGHT = 0.3  # Sec. 5


class Convolution(nn.Module):
    """A convolution and its rectifier."""

    def __init__(self, channels: int, filters: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel_size, stride=stride, padding=kernel_size // 2)
        self.relu = nn.ReLU()

    def forward(self, maps: Tensor) -> Tensor:
        rectified: Tensor = self.relu(self.conv(maps))
        return rectified


class Inception(nn.Module):
    """Four branches over the same maps, concatenated (Fig. 2b). `widths` is a row of Table 1."""

    def __init__(self, channels: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        one, reduce_three, three, reduce_five, five, projection = widths
        self.branch1 = Convolution(channels, one, 1)
        self.branch2 = nn.Sequential(Convolution(channels, reduce_three, 1), Convolution(reduce_three, three, 3))
        self.branch3 = nn.Sequential(Convolution(channels, reduce_five, 1), Convolution(reduce_five, five, 5))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), Convolution(channels, projection, 1))

    def forward(self, maps: Tensor) -> Tensor:
        return torch.cat([self.branch1(maps), self.branch2(maps), self.branch3(maps), self.branch4(maps)], dim=1)


# Table 1: #1x1, #3x3 reduce, #3x3, #5x5 reduce, #5x5, pool proj, after the number of input maps.
# fmt: off
INCEPTION: dict[str, tuple[int, tuple[int, int, int, int, int, int]]] = {
    "3a": (192, ( 64,  96, 128, 16,  32,  32)),
    "3b": (256, (128, 128, 192, 32,  96,  64)),
    "4a": (480, (192,  96, 208, 16,  48,  64)),
    "4b": (512, (160, 112, 224, 24,  64,  64)),
    "4c": (512, (128, 128, 256, 24,  64,  64)),
    "4d": (512, (112, 144, 288, 32,  64,  64)),
    "4e": (528, (256, 160, 320, 32, 128, 128)),
    "5a": (832, (256, 160, 320, 32, 128, 128)),
    "5b": (832, (384, 192, 384, 48, 128, 128)),
}
# fmt: on


class InceptionStages(nn.Module):
    """Everything below the average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = Convolution(3, 64, 7, stride=2)
        self.norm1 = nn.LocalResponseNorm(size=5)
        self.conv2 = Convolution(64, 64, 1)
        self.conv3 = Convolution(64, 192, 3)
        self.norm2 = nn.LocalResponseNorm(size=5)
        for name, (channels, widths) in INCEPTION.items():
            self.add_module(f"inception{name}", Inception(channels, widths))
        self.pool = nn.MaxPool2d(3, stride=2, ceil_mode=True)

    def maps(self, images: Tensor) -> dict[str, Tensor]:
        """Output of each inception module by name."""
        current: Tensor = self.norm1(self.pool(self.conv1(images)))
        current = self.pool(self.norm2(self.conv3(self.conv2(current))))
        outputs: dict[str, Tensor] = {}
        for name in INCEPTION:
            current = self.get_submodule(f"inception{name}")(current)
            outputs[name] = current
            if name in ("3b", "4e"):
                current = self.pool(current)
        return outputs


class InceptionTrunk(InceptionStages):
    """Image to 1024 features, the encoder of Show and Tell."""

    def __init__(self) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.avgpool(self.maps(images)["5b"])
        return features.flatten(1)


class GoogLeNet(InceptionStages):
    """The stages, average pooling, dropout of 40 % and one fully connected layer."""

    def __init__(self) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(FEATURES, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features = self.avgpool(self.maps(images)["5b"]).flatten(1)
        scores: Tensor = self.fc(self.dropout(features))
        return scores


class Auxiliary(nn.Module):
    """The side classifier of Sec. 5: 5 x 5 average pooling of stride 3, 128 filters, two fully connected layers."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(5, stride=3)
        self.conv = Convolution(channels, 128, 1)
        self.fc1 = nn.Linear(128 * 4 * 4, 1024)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(0.7)
        self.fc2 = nn.Linear(1024, CLASSES)

    def forward(self, maps: Tensor) -> Tensor:
        hidden = self.fc1(self.conv(self.pool(maps)).flatten(1))
        scores: Tensor = self.fc2(self.dropout(self.relu(hidden)))
        return scores


class GoogLeNetAuxiliary(InceptionStages):
    """GoogLeNet as it was trained: side classifiers after 4a and 4d. Returns main, first and second scores."""

    def __init__(self) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(FEATURES, CLASSES)
        self.aux1 = Auxiliary(512)
        self.aux2 = Auxiliary(528)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps = self.maps(images)
        scores = self.fc(self.dropout(self.avgpool(maps["5b"]).flatten(1)))
        return scores, self.aux1(maps["4a"]), self.aux2(maps["4d"])


def auxiliary_loss(scores: tuple[Tensor, Tensor, Tensor], labels: Tensor) -> Tensor:
    main, first, second = (functional.cross_entropy(head, labels) for head in scores)
    return main + AUXILIARY_WEIGHT * (first + second)


def googlenet() -> Recipe:
    return classifier(GoogLeNet)


def googlenet_aux() -> Recipe:
    return classifier(GoogLeNetAuxiliary, loss=auxiliary_loss)
