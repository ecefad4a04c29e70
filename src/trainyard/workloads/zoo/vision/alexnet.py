"""AlexNet. A. Krizhevsky: One weird trick for parallelizing convolutional neural networks. arXiv:1404.5997, 2014.

The one-tower network of that note (64-192-384-256-256 filters), as torch users know it: 224 x 224 images padded by 2,
no local response normalisation. The two-tower network of NIPS 2012 (96-256-384-384-256 filters, 227 x 227 images,
grouped convolutions) has the same number of weights within 2 %.
"""

from __future__ import annotations

from torch import Tensor, nn

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.imagenet import CLASSES, classifier


class AlexNet(nn.Module):
    """Five convolutions (`features.0, 3, 6, 8, 10`), three fully connected layers (`classifier.1, 4, 6`)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, CLASSES),
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores


def alexnet() -> Recipe:
    return classifier(AlexNet)
