"""A net for vectors, for regression as in the paper: two or three blocks of linear layer and activation."""

from __future__ import annotations

from torch import Tensor, nn

from arht.nets._base import Net, activation, positive

__all__ = ["MLP"]


class MLP(Net):
    """Blocks ``fc1, act1, fc2, act2, ...`` and a linear head; the embedding is the last activation, P = width.

    Parameters
    ----------
    in_features, out_features : int
        ``out_features=None``: no head, the output is the embedding.
    blocks : int
    width : int
    activation : "softplus" or "relu"
    """

    def __init__(
        self,
        in_features: int,
        out_features: int | None = 1,
        blocks: int = 2,
        width: int = 64,
        activation: str = "softplus",
    ) -> None:
        super().__init__(
            in_features=in_features, out_features=out_features, blocks=blocks, width=width, activation=activation
        )
        positive("MLP", in_features=in_features, out_features=out_features, blocks=blocks, width=width)
        for i in range(1, blocks + 1):
            setattr(self, f"fc{i}", nn.Linear(in_features if i == 1 else width, width))
            setattr(self, f"act{i}", _act("MLP", activation))
        self.embedding_layer = f"act{blocks}"  # type: ignore[misc]
        self.head = None if out_features is None else nn.Linear(width, out_features)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (self._arguments["in_features"],)

    def trunk(self, x: Tensor) -> Tensor:
        """[B, in_features] -> [B, width]."""
        for i in range(1, self._arguments["blocks"] + 1):
            x = self.chain(x, f"fc{i}", f"act{i}")
        return x


_act = activation  # the argument carries the same name
