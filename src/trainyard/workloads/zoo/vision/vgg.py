"""VGG. K. Simonyan, A. Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition. ICLR 2015.

Configurations D (VGG-16) and E (VGG-19) of Table 1, without batch normalisation. MC-DLA calls configuration E "VGG-E".
"""

from __future__ import annotations

from torch import Tensor, nn

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.imagenet import CLASSES, classifier

# Table 1: filters of each convolution, one tuple per stage; a stage ends in a 2 x 2 max pooling.
# fmt: off
CONFIGURATION_D = ((64, 64), (128, 128), (256, 256, 256),      (512, 512, 512),      (512, 512, 512))
CONFIGURATION_E = ((64, 64), (128, 128), (256, 256, 256, 256), (512, 512, 512, 512), (512, 512, 512, 512))
# fmt: on

Configuration = tuple[tuple[int, ...], ...]


def convolutions(configuration: Configuration) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for stage in configuration:
        for filters in stage:
            layers += [nn.Conv2d(channels, filters, kernel_size=3, padding=1), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
    return nn.Sequential(*layers)


class VGG(nn.Module):
    """`features.N` are the 3 x 3 convolutions, `classifier.0, 3, 6` the fully connected layers."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__()
        self.features = convolutions(configuration)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, CLASSES),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores


def vgg16() -> Recipe:
    return classifier(lambda: VGG(CONFIGURATION_D))


def vgg19() -> Recipe:
    return classifier(lambda: VGG(CONFIGURATION_E))
