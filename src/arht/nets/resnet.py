"""ResNet-18 and ResNet-50, with the module names that torchvision uses."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from arht.errors import InputError
from arht.nets._base import Net, Size, activation, image_size, positive

__all__ = ["ResNet18", "ResNet50"]


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, act: str) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, planes, 3, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.act1 = activation("ResNet", act)
        self.conv2 = _conv(planes, planes, 3)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _shortcut(inputs, planes, stride)
        self.act2 = activation("ResNet", act)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] -> [B, planes, H / stride, W / stride]."""
        y = self.act1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.act2(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 (with the stride), 1 x 1 convolutions around a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int, act: str) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, planes, 1)
        self.bn1 = nn.BatchNorm2d(planes)
        self.act1 = activation("ResNet", act)
        self.conv2 = _conv(planes, planes, 3, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.act2 = activation("ResNet", act)
        self.conv3 = _conv(planes, 4 * planes, 1)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.downsample = _shortcut(inputs, 4 * planes, stride)
        self.act3 = activation("ResNet", act)

    def forward(self, x: Tensor) -> Tensor:
        """[B, inputs, H, W] -> [B, 4 planes, H / stride, W / stride]."""
        y = self.act1(self.bn1(self.conv1(x)))
        y = self.act2(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.act3(y + (x if self.downsample is None else self.downsample(x)))


class _ResNet(Net):
    embedding_layer = "fc"
    block: ClassVar[type[BasicBlock] | type[Bottleneck]]
    depths: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int | None = 10,
        image_size: Size = 32,
        activation: str = "relu",
        stem: str = "imagenet",
    ) -> None:
        super().__init__(
            in_channels=in_channels, num_classes=num_classes, image_size=image_size, activation=activation, stem=stem
        )
        name = type(self).__name__
        positive(name, in_channels=in_channels, num_classes=num_classes)
        _sides(name, image_size, 8)
        if stem not in ("imagenet", "cifar"):
            raise InputError(f"{name}: stem must be one of imagenet, cifar; got {stem!r}.")
        first = stem == "imagenet"
        self.conv1 = _conv(in_channels, 64, 7, 2) if first else _conv(in_channels, 64, 3)
        self.bn1 = nn.BatchNorm2d(64)
        self.act1 = _act(name, activation)
        self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1) if first else nn.Identity()
        self.layer1 = self._layer(64, 64, 1, self.depths[0], activation)
        width = self.block.expansion
        self.layer2 = self._layer(64 * width, 128, 2, self.depths[1], activation)
        self.layer3 = self._layer(128 * width, 256, 2, self.depths[2], activation)
        self.layer4 = self._layer(256 * width, 512, 2, self.depths[3], activation)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(512 * width, 1000)
        self.head = None if num_classes is None else nn.Linear(1000, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def _layer(self, inputs: int, planes: int, stride: int, depth: int, act: str) -> nn.Sequential:
        width = self.block.expansion * planes
        blocks: list[Any] = [self.block(inputs, planes, stride, act)]
        blocks += [self.block(width, planes, 1, act) for _ in range(depth - 1)]
        return nn.Sequential(*blocks)

    def trunk(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, 1000]."""
        x = self.chain(x, "conv1", "bn1", "act1", "maxpool")  # [B, 64, H / 4, W / 4]; [B, 64, H, W] at the cifar stem
        x = self.chain(x, "layer1", "layer2", "layer3", "layer4")  # [B, 512 or 2048, H / 32, W / 32]
        x = self.chain(x, "avgpool", "flatten")  # [B, 512 or 2048]
        return self.fc(x)  # [B, 1000]


class ResNet18(_ResNet):
    """ResNet-18 with its 1000 outputs as embedding and a linear head on them, as the paper counts it.

    11,699,522 parameters at 3 channels and 10 classes.

    Parameters
    ----------
    in_channels, num_classes : int
        ``num_classes=None``: no head, the output is the embedding.
    image_size : int or (int, int)
        At least 8.
    activation : "relu" or "softplus"
    stem : "imagenet" or "cifar"
        7 x 7 convolution with stride 2 and a pooling; or one 3 x 3 convolution, for small images.
    """

    block = BasicBlock
    depths = (2, 2, 2, 2)


class ResNet50(_ResNet):
    """ResNet-50 with its 1000 outputs as embedding and a linear head on them; arguments as `ResNet18`."""

    block = Bottleneck
    depths = (3, 4, 6, 3)


_act, _sides = activation, image_size  # the arguments carry the same names
