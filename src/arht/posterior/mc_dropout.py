"""Monte Carlo dropout: the masks of dropout are what is random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Generator, Tensor, nn

from arht.errors import InputError
from arht.posterior.base import Draw, Posterior
from arht.posterior.masks import Dropped, Mask
from arht.posterior.normal import seeds
from arht.posterior.taps import find_module

__all__ = ["MCDropout"]

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
ACTIVATIONS = (nn.Softplus, nn.ReLU, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid)


class MCDropout(Posterior):
    """Dropout that goes on after training: one set of masks a draw, the same for all inputs.

    The masks come from seeds, and the seeds from the generator; a bank holds the seeds. In training each row has its
    own mask, as usual.

    Parameters
    ----------
    net : nn.Module
        Its dropout layers are replaced; it is not copied.
    rate : float
        Share of the values that are set to zero, in every dropout layer.
    layers : list of str, optional
        Layers after which dropout is inserted. Default: the net's own dropout layers; where it has none, after every
        activation but the embedding's.
    embedding : str, optional
        Path of the layer whose output is the embedding; see `Posterior`.
    """

    def __init__(
        self,
        net: nn.Module,
        rate: float = 0.2,
        layers: str | Sequence[str] | None = None,
        *,
        embedding: str | None = None,
    ) -> None:
        super().__init__(net, embedding)
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
            raise InputError(f"MCDropout: rate must be a number between 0 and 1; got {rate!r}. The paper's is 0.2.")
        self.net, self.rate = net, float(rate)
        self.layers = [layers] if isinstance(layers, str) else None if layers is None else list(layers)
        named = dict(net.named_modules())
        if self.layers is not None:
            for path in self.layers:
                find_module("MCDropout", net, path)
                self._replace(path, lambda inner: Dropped(inner, Mask(self.rate)))
            own = self.layers
        else:
            own = [path for path, module in named.items() if isinstance(module, DROPOUTS)]
            for path in own:
                self._replace(path, lambda inner: Mask(self.rate, channels=not isinstance(inner, nn.Dropout)))
            if not own:
                own = [p for p, module in named.items() if isinstance(module, ACTIVATIONS) and p != self.embedding]
                for path in own:
                    self._replace(path, lambda inner: Dropped(inner, Mask(self.rate)))
        if not own:
            raise InputError(
                f"MCDropout: {type(net).__name__} must have dropout layers or activations; it has neither. "
                "Name the layers after which to drop: layers=[...]."
            )
        self._random = tuple(f"{path}.seed" for path, module in net.named_modules() if isinstance(module, Mask))

    def _replace(self, path: str, make: Any) -> None:
        if not path:
            raise InputError("MCDropout: layers must be inside the net; got '', the net itself. Name one of its parts.")
        above, _, name = path.rpartition(".")
        parent = self.net.get_submodule(above)
        setattr(parent, name, make(getattr(parent, name)))

    @property
    def random(self) -> tuple[str, ...]:
        """Names of the seeds of the masks."""
        return self._random

    def sample(self, generator: Generator | None = None) -> Draw:
        """The seed of each mask."""
        return dict(zip(self._random, seeds(len(self._random), generator), strict=True))

    def forward(self, x: Tensor, generator: Generator | None = None) -> Any:
        """The net's output: in training with a mask for each row, otherwise with one draw of the masks."""
        if not self.training:
            return super().forward(x, generator)
        masks = [module for module in self.net.modules() if isinstance(module, Mask)]
        try:
            for mask in masks:
                mask.generator = generator
            return self.net(x)
        finally:
            for mask in masks:
                mask.generator = None

    def config(self) -> dict[str, Any]:
        """The arguments, as JSON can hold them."""
        return {**super().config(), "rate": self.rate, "layers": self.layers}
