"""ResNet. K. He, X. Zhang, S. Ren, J. Sun: Deep Residual Learning for Image Recognition. CVPR 2016.

Table 1 with projection shortcuts where the shape changes (option B). The stride of a down-sampling bottleneck sits in
its 3 x 3 convolution, as in torch and most trained checkpoints ("v1.5"); the paper puts it in the first 1 x 1.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from trainyard.workloads.zoo.recipe import Recipe
from trainyard.workloads.zoo.vision.imagenet import CLASSES, classifier

Normalisation = Callable[[int], nn.Module]


def projection(channels: int, filters: int, stride: int, norm: Normalisation) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, filters, 1, stride=stride, bias=False), norm(filters))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions (Fig. 5, left)."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, norm: Normalisation) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        self.relu = nn.ReLU()
        changed = stride != 1 or channels != width
        self.downsample = projection(channels, width, stride, norm) if changed else None

    def forward(self, maps: Tensor) -> Tensor:
        residual = self.relu(self.bn1(self.conv1(maps)))
        residual = self.bn2(self.conv2(residual))
        shortcut = maps if self.downsample is None else self.downsample(maps)
        output: Tensor = self.relu(residual + shortcut)
        return output


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions (Fig. 5, right)."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, norm: Normalisation) -> None:
        super().__init__()
        filters = width * self.expansion
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = norm(width)
        self.conv3 = nn.Conv2d(width, filters, 1, bias=False)
        self.bn3 = norm(filters)
        self.relu = nn.ReLU()
        changed = stride != 1 or channels != filters
        self.downsample = projection(channels, filters, stride, norm) if changed else None

    def forward(self, maps: Tensor) -> Tensor:
        residual = self.relu(self.bn1(self.conv1(maps)))
        residual = self.relu(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        shortcut = maps if self.downsample is None else self.downsample(maps)
        output: Tensor = self.relu(residual + shortcut)
        return output


Block = type[BasicBlock] | type[Bottleneck]


def stage(block: Block, channels: int, width: int, blocks: int, stride: int, norm: Normalisation) -> nn.Sequential:
    """Blocks of one map size; the first one changes stride and width."""
    first = block(channels, width, stride, norm)
    rest = [block(width * block.expansion, width, 1, norm) for _ in range(blocks - 1)]
    return nn.Sequential(first, *rest)


class ResNetStages(nn.Module):
    """conv1, pooling and the stages `layer1` .. `layerN`, N = len(depths)."""

    def __init__(self, block: Block, depths: tuple[int, ...], norm: Normalisation = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for index, blocks in enumerate(depths):
            width = 64 << index
            self.add_module(f"layer{index + 1}", stage(block, channels, width, blocks, min(index + 1, 2), norm))
            channels = width * block.expansion
        self.channels = channels
        self.stages = tuple(f"layer{index + 1}" for index in range(len(depths)))

    def maps(self, images: Tensor) -> list[Tensor]:
        """The output of every stage."""
        current = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        outputs: list[Tensor] = []
        for name in self.stages:
            current = self.get_submodule(name)(current)
            outputs.append(current)
        return outputs


class ResNet(ResNetStages):
    """The stages, global average pooling and one fully connected layer."""

    def __init__(self, block: Block, depths: tuple[int, ...]) -> None:
        super().__init__(block, depths)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.channels, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.avgpool(self.maps(images)[-1]).flatten(1))
        return scores


def resnet18(size: int = 224) -> Recipe:
    return classifier(lambda: ResNet(BasicBlock, (2, 2, 2, 2)), size=size)


def resnet34() -> Recipe:
    return classifier(lambda: ResNet(BasicBlock, (3, 4, 6, 3)))


def resnet50(size: int = 224) -> Recipe:
    return classifier(lambda: ResNet(Bottleneck, (3, 4, 6, 3)), size=size)
