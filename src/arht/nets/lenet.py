"""LeNet-5, its two convolutions with softplus and maximum pooling, three linear layers."""

from __future__ import annotations

from torch import Tensor, nn

from arht.nets._base import Net, Size, activation, image_size, positive

__all__ = ["LeNet"]


class LeNet(Net):
    """LeNet: 62,006 parameters at 3 channels and 10 classes; the embedding is what the head reads, P = 84.

    Parameters
    ----------
    in_channels, num_classes : int
        ``num_classes=None``: no head, the output is the embedding.
    image_size : int or (int, int)
        At least 16.
    activation : "softplus" or "relu"
    embedding_dim : int
    """

    embedding_layer = "act4"

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int | None = 10,
        image_size: Size = 32,
        activation: str = "softplus",
        embedding_dim: int = 84,
    ) -> None:
        super().__init__(
            in_channels=in_channels,
            num_classes=num_classes,
            image_size=image_size,
            activation=activation,
            embedding_dim=embedding_dim,
        )
        positive("LeNet", in_channels=in_channels, num_classes=num_classes, embedding_dim=embedding_dim)
        height, width = (((side - 4) // 2 - 4) // 2 for side in _sides("LeNet", image_size, 16))
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.act1 = _act("LeNet", activation)
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.act2 = _act("LeNet", activation)
        self.pool2 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(16 * height * width, 120)
        self.act3 = _act("LeNet", activation)
        self.fc2 = nn.Linear(120, embedding_dim)
        self.act4 = _act("LeNet", activation)
        self.head = None if num_classes is None else nn.Linear(embedding_dim, num_classes)

    def trunk(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, P]."""
        x = self.chain(x, "conv1", "act1", "pool1")  # [B, 6, 14, 14] from 32 x 32
        x = self.chain(x, "conv2", "act2", "pool2")  # [B, 16, 5, 5]
        x = self.chain(x, "flatten", "fc1", "act3")  # [B, 120]
        return self.chain(x, "fc2", "act4")  # [B, P]


_act, _sides = activation, image_size  # the arguments carry the same names
