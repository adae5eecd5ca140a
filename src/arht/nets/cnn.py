"""The standard two-layer convolutional net."""

from __future__ import annotations

from torch import Tensor, nn

from arht.nets._base import Net, Size, activation, image_size, positive

__all__ = ["CNN"]


class CNN(Net):
    """Two convolutions, two linear layers: 31,340 parameters at 3 channels and 10 classes; P = 50.

    Parameters
    ----------
    in_channels, num_classes : int
        ``num_classes=None``: no head, the output is the embedding.
    image_size : int or (int, int)
        At least 16.
    activation : "softplus" or "relu"
    """

    embedding_layer = "act3"

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int | None = 10,
        image_size: Size = 32,
        activation: str = "softplus",
    ) -> None:
        super().__init__(in_channels=in_channels, num_classes=num_classes, image_size=image_size, activation=activation)
        positive("CNN", in_channels=in_channels, num_classes=num_classes)
        height, width = (((side - 4) // 2 - 4) // 2 for side in _sides("CNN", image_size, 16))
        self.conv1 = nn.Conv2d(in_channels, 10, 5)
        self.act1 = _act("CNN", activation)
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.act2 = _act("CNN", activation)
        self.pool2 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(20 * height * width, 50)
        self.act3 = _act("CNN", activation)
        self.head = None if num_classes is None else nn.Linear(50, num_classes)

    def trunk(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, 50]."""
        x = self.chain(x, "conv1", "act1", "pool1")  # [B, 10, 14, 14] from 32 x 32
        x = self.chain(x, "conv2", "act2", "pool2")  # [B, 20, 5, 5]
        return self.chain(x, "flatten", "fc1", "act3")  # [B, 50]


_act, _sides = activation, image_size  # the arguments carry the same names
