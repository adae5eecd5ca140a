"""AlexNet in the form for images of 32 pixels."""

from __future__ import annotations

from torch import Tensor, nn

from arht.nets._base import Net, Size, activation, after_window, image_size, positive

__all__ = ["AlexNet"]


class AlexNet(Net):
    """Five convolutions and a linear head: 2,472,266 parameters at 3 channels and 10 classes; P = 256 at 32 x 32.

    Parameters
    ----------
    in_channels, num_classes : int
        ``num_classes=None``: no head, the output is the embedding.
    image_size : int or (int, int)
        At least 29; larger images give a wider embedding.
    activation : "softplus" or "relu"
    """

    embedding_layer = "flatten"

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int | None = 10,
        image_size: Size = 32,
        activation: str = "softplus",
    ) -> None:
        super().__init__(in_channels=in_channels, num_classes=num_classes, image_size=image_size, activation=activation)
        positive("AlexNet", in_channels=in_channels, num_classes=num_classes)
        height, width = (after_window(side, 11, 4, 5) // 2 // 2 // 2 for side in _sides("AlexNet", image_size, 29))
        self.conv1 = nn.Conv2d(in_channels, 64, 11, stride=4, padding=5)
        self.act1 = _act("AlexNet", activation)
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(64, 192, 5, padding=2)
        self.act2 = _act("AlexNet", activation)
        self.pool2 = nn.MaxPool2d(2)
        self.conv3 = nn.Conv2d(192, 384, 3, padding=1)
        self.act3 = _act("AlexNet", activation)
        self.conv4 = nn.Conv2d(384, 256, 3, padding=1)
        self.act4 = _act("AlexNet", activation)
        self.conv5 = nn.Conv2d(256, 256, 3, padding=1)
        self.act5 = _act("AlexNet", activation)
        self.pool5 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.head = None if num_classes is None else nn.Linear(256 * height * width, num_classes)

    def trunk(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, P]."""
        x = self.chain(x, "conv1", "act1", "pool1")  # [B, 64, 4, 4] from 32 x 32
        x = self.chain(x, "conv2", "act2", "pool2")  # [B, 192, 2, 2]
        x = self.chain(x, "conv3", "act3", "conv4", "act4")  # [B, 256, 2, 2]
        return self.chain(x, "conv5", "act5", "pool5", "flatten")  # [B, 256]


_act, _sides = activation, image_size  # the arguments carry the same names
