"""Many draws of a net at once: each step of its graph, for a chunk of k draws.

A value that differs between draws is a `Rows`, [k, B, ...] with one slab a draw, or a `Wide`, [B, k * C, H, W] with
the channels of all draws side by side (one convolution makes it, where all draws read the same input), or an `Each`,
a list of anything. What all draws share is there once, as it is. A step without a rule of its own is taken draw by
draw.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.func import functional_call

from arht.posterior.chunk import Each, Rows, Weights, Wide
from arht.posterior.masks import Mask
from arht.posterior.tracing import Graph, attribute

__all__ = ["Executor"]

MONOTONE = (nn.Softplus, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.Hardtanh)
ELEMENTWISE = (*MONOTONE, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Identity, nn.Dropout, nn.Dropout2d)
ROWWISE = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d, nn.LayerNorm, nn.GroupNorm)
SPATIAL = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
FUNCTIONS = {F.relu: nn.ReLU, torch.relu: nn.ReLU, F.softplus: nn.Softplus, torch.tanh: nn.Tanh, F.gelu: nn.GELU}
SUMS = {operator.add, operator.sub, operator.mul, torch.add, torch.sub, torch.mul, operator.iadd}
WIDE = 64
"""With that many channels a convolution is as good alone as side by side with other draws."""


class Executor:
    """Runs a graph for blocks of inputs and chunks of draws. ``k`` is the size of a chunk and never changes."""

    def __init__(self, graph: Graph, k: int) -> None:
        self.graph, self.k = graph, k
        chance = set(graph.random)
        self.random = {
            node: {own: name for own, name in graph.tensors(node).items() if name in chance} for node in graph.drawn
        }
        """The random tensors that a step uses: the step's own name of each -> the net's."""
        self.pooled = {node: pool for node in graph.drawn if (pool := self._pool_after(node))}
        self.last = _last_uses([*graph.shared, *graph.drawn])
        self.parallel = True
        """Whether blocks may run side by side: no step puts tensors into a module."""

    def _pool_after(self, node: fx.Node) -> fx.Node | None:
        """The pooling that reads this activation, alone: max(f(x)) = f(max(x)), and f has less to do."""
        module = self._module(node)
        users = list(node.users)
        if not isinstance(module, MONOTONE) or len(users) != 1 or users[0].args != (node,):
            return None
        follows = self._module(users[0])
        return users[0] if type(follows) is nn.MaxPool2d and not follows.return_indices else None

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.graph.modules[str(node.target)] if node.op == "call_module" else None

    # the shared part

    def shared(self, block: Tensor) -> dict[fx.Node, Any]:
        """What the draws need of the part without randomness, for a block of inputs."""
        env: dict[fx.Node, Any] = {}
        keep = set(self.graph.inputs)
        for node in self.graph.shared:
            if node.op == "placeholder":
                env[node] = node.args[0] if node.args else block
            elif node.op == "get_attr":
                env[node] = attribute(self.graph.net, str(node.target))
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
                env[node] = self._call(node, args, kwargs)
            for done in self.last.get(node, ()):
                if done not in keep:
                    env.pop(done, None)
        return {node: env[node] for node in self.graph.inputs}

    def _call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], held: Any = None) -> Any:
        """One step as the net takes it; what would be changed in place is copied first."""
        module = self._module(node)
        name = str(getattr(node.target, "__name__", node.target))
        if (
            getattr(module, "inplace", False)
            or kwargs.get("inplace")
            or (node.op == "call_method" and name.endswith("_") and not name.endswith("__"))
            or (getattr(node.target, "__module__", "") == "_operator" and name in ("iadd", "imul", "isub", "itruediv"))
        ):
            args = (args[0].clone(), *args[1:])
        if module is not None:
            return functional_call(module, held, args, kwargs, tie_weights=False) if held else module(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    # the part that differs between draws

    def drawn(self, given: Mapping[fx.Node, Any], weights: Weights) -> dict[str, Any]:
        """Outputs of the wanted layers: a Rows, or a Tensor [B, ...] where no draw matters."""
        env: dict[fx.Node, Any] = dict(given)
        keep = set(self.graph.outputs.values())
        for node in self.graph.drawn:
            if node in env:
                continue
            pool = self.pooled.get(node)
            if pool is None or node in keep:
                env[node] = self._step(node, env, weights)
            if pool is not None and pool in self.random:
                before = env[node.all_input_nodes[0]]
                env[pool] = self._elementwise(node, self._spatial(self._module(pool), before))
            for done in self.last.get(node, ()):
                if done not in keep and done not in self.pooled:
                    env.pop(done, None)
        out = {path: env[node] for path, node in self.graph.outputs.items()}
        return {path: value.rows() if isinstance(value, Wide) else value for path, value in out.items()}

    def _step(self, node: fx.Node, env: dict[fx.Node, Any], weights: Weights) -> Any:
        random = self.random[node]
        if node.op == "get_attr":
            return Each([weights.of(random[""], k) for k in range(weights.count)])
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
        module = self._module(node)
        if module is not None and len(args) == 1 and not kwargs:
            done = self._module_step(node, module, args[0], weights)
        else:
            done = self._function_step(node, args, kwargs)
        return self._draw_by_draw(node, args, kwargs, weights) if done is None else done

    def _module_step(self, node: fx.Node, module: nn.Module, x: Any, weights: Weights) -> Any:
        """A module with a rule for stacked values; None where there is none."""
        if isinstance(x, Each):
            return None
        kind, random = type(module), self.random[node]
        if isinstance(module, Mask):
            return self._masked(node, module, x, weights) if random else None
        if random:
            if isinstance(module, nn.Conv2d) and kind is nn.Conv2d and module.padding_mode == "zeros":
                return self._convolution(node, module, x, weights)
            if isinstance(module, nn.Linear) and kind is nn.Linear and not (isinstance(x, Tensor) and x.ndim != 2):
                return self._linear(node, module, x, weights)
            return None
        if kind in ELEMENTWISE:
            return self._elementwise(node, x)
        if kind in SPATIAL:
            return self._spatial(module, x)
        if isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1:
            return Rows(_rows(x).flatten(2))
        if kind in ROWWISE:
            rows = _rows(x)
            merged = rows.flatten(0, 1)
            if isinstance(module, nn.Conv2d) and (places := _centre(module, merged)) is not None:
                taken = weights.made(node, lambda: module.weight[..., places[0], places[1]].contiguous())
                done = F.linear(merged.flatten(1), taken, module.bias)[:, :, None, None]
            else:
                done = module(merged)
            return Rows(done.unflatten(0, rows.shape[:2]))
        return None

    def _function_step(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function or a method with a rule for stacked values; None where there is none."""
        target: Any = node.target
        x = args[0] if args else None
        if target in FUNCTIONS and len(args) == 1 and isinstance(x, Rows | Wide) and not _holds(kwargs):
            return type(x)(target(x.tensor, **kwargs), *([x.draws] if isinstance(x, Wide) else []))
        if (target is torch.flatten or target == "flatten") and args[1:] == (1,) and isinstance(x, Rows | Wide):
            return Rows(_rows(x).flatten(2))
        if target in SUMS and len(args) == 2 and not kwargs:
            plain = operator.add if target is operator.iadd else target
            sides = [side.rows() if isinstance(side, Wide) else side for side in args]
            if any(isinstance(side, Each) for side in sides):
                return None
            if any(isinstance(side, int | float) for side in sides) or _same_axes(sides):
                return Rows(plain(*(side.tensor if isinstance(side, Rows) else side for side in sides)))
        return None

    def _draw_by_draw(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], weights: Weights) -> Any:
        random, count = self.random[node], weights.count
        if random:
            self.parallel = False
        done = []
        for k in range(count):
            mine, named = fx.node.map_aggregate((_in_rows(args), _in_rows(kwargs)), partial(_of, k))
            done.append(self._call(node, mine, named, {own: weights.of(name, k) for own, name in random.items()}))
        first = done[0]
        if isinstance(first, Tensor) and all(value.shape == first.shape for value in done):
            out = first.new_zeros((self.k, *first.shape))
            torch.stack(done, out=out[:count])
            return Rows(out)
        if isinstance(first, int | bool | torch.Size) and all(value == first for value in done):
            return first
        return Each(done)

    # rules

    def _elementwise(self, node: fx.Node, x: Any) -> Any:
        module: Any = self._module(node)
        if isinstance(x, Tensor):
            return self._call(node, (x,), {})
        value = x.tensor.clone() if getattr(module, "inplace", False) else x.tensor
        return Wide(module(value), x.draws) if isinstance(x, Wide) else Rows(module(value))

    def _spatial(self, module: Any, x: Any) -> Any:
        if isinstance(x, Wide):
            return Wide(module(x.tensor), x.draws)
        maps = x.tensor.flatten(0, 1)
        side = _windows(module) if type(module) is nn.MaxPool2d else None
        done = _max_pool(maps, side) if side else module(maps)
        return Rows(done.unflatten(0, x.tensor.shape[:2]))

    def _masked(self, node: fx.Node, module: Mask, x: Any, weights: Weights) -> Any:
        x = _rows(x) if isinstance(x, Rows | Wide) else x[None]
        name = self.random[node]["seed"]
        masks = weights.made(
            node, lambda: torch.stack([module.of_seed(int(draw[name]), x[0]) for draw in weights.draws])
        )
        return Rows(x * masks[:, None])

    def _parts(self, node: fx.Node, module: nn.Linear | nn.Conv2d, weights: Weights) -> tuple[Tensor, Tensor | None]:
        """Weight and bias, [k, ...] each."""
        random = self.random[node]
        both: list[Tensor | None] = []
        for name in ("weight", "bias"):
            own = getattr(module, name)
            stacked = weights.stack(random[name]) if name in random else own
            both.append(own.expand(self.k, *own.shape) if stacked is own and own is not None else stacked)
        assert both[0] is not None
        return both[0], both[1]

    def _linear(self, node: fx.Node, module: nn.Linear, x: Any, weights: Weights) -> Any:
        weight, bias = self._parts(node, module, weights)
        return self._product(x, weight, bias)

    def _product(self, x: Any, weight: Tensor, bias: Tensor | None) -> Rows:
        """x W' + b for each draw: [B, P] or [k, B, ..., P] and [k, O, P] -> [k, B, ..., O]."""
        if isinstance(x, Tensor):
            whole = F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
            return Rows(whole.unflatten(1, (self.k, -1)).transpose(0, 1).contiguous())
        rows = _rows(x)
        flat = rows.flatten(1, -2)
        done = torch.bmm(flat, weight.mT) if bias is None else torch.baddbmm(bias[:, None], flat, weight.mT)
        return Rows(done.view(*rows.shape[:-1], -1))

    def _convolution(self, node: fx.Node, module: nn.Conv2d, x: Any, weights: Weights) -> Any:
        random = self.random[node]
        maps = x if isinstance(x, Tensor) else _rows(x).flatten(0, 1)
        if (places := _centre(module, maps)) is not None:
            bias = self._parts(node, module, weights)[1] if module.bias is not None else None
            i, j = places
            taken = weights.made(
                node,
                lambda: torch.stack(
                    [
                        (draw[random["weight"]] if "weight" in random else module.weight)[..., i, j]
                        for draw in weights.draws
                    ]
                ),
            )
            flat = x.flatten(1) if isinstance(x, Tensor) else Rows(_rows(x).flatten(2))
            return Rows(self._product(flat, taken, bias).tensor[..., None, None])
        settings: Any = (module.stride, module.padding, module.dilation, module.groups)
        if isinstance(x, Tensor) and module.groups == 1 and module.out_channels < WIDE:
            weight, bias = self._parts(node, module, weights)
            wide = weights.made(node, lambda: weight.flatten(0, 1).contiguous(memory_format=torch.channels_last))
            image = x.contiguous(memory_format=torch.channels_last)
            return Wide(F.conv2d(image, wide, None if bias is None else bias.flatten(), *settings), self.k)
        out: Tensor | None = None
        each = None if isinstance(x, Tensor) else _rows(x)
        for k in range(weights.count):
            own: Any = [
                weights.of(random[name], k) if name in random else getattr(module, name) for name in ("weight", "bias")
            ]
            done = F.conv2d(x if each is None else each[k], *own, *settings)
            if out is None:
                make = torch.empty if weights.count == self.k else torch.zeros
                out = make(self.k, *done.shape, dtype=done.dtype, device=done.device)
            out[k] = done
        assert out is not None
        return Rows(out)


def _rows(x: Any) -> Tensor:
    return x.rows().tensor if isinstance(x, Wide) else x.tensor


def _holds(values: Any) -> bool:
    """Whether a stacked value is among them."""
    found = []
    fx.node.map_aggregate(values, lambda value: found.append(isinstance(value, Rows | Wide | Each)))
    return any(found)


def _in_rows(values: Any) -> Any:
    return fx.node.map_aggregate(values, lambda value: value.rows() if isinstance(value, Wide) else value)


def _of(k: int, value: Any) -> Any:
    """What one draw has of a value."""
    if isinstance(value, Rows):
        return value.tensor[k]
    return value.values[k] if isinstance(value, Each) else value


def _same_axes(sides: list[Any]) -> bool:
    """Whether a Rows and a shared tensor fit: the axes of one are those of the other but for k."""
    axes = [
        side.tensor.ndim if isinstance(side, Rows) else side.ndim + 1 if isinstance(side, Tensor) else 0
        for side in sides
    ]
    return axes[0] == axes[1] > 0


def _centre(module: nn.Conv2d, maps: Tensor) -> tuple[int, int] | None:
    """Place of the one tap of a kernel that meets a map of 1 x 1, where the others meet its padding only."""
    if maps.shape[-2:] != (1, 1) or module.groups != 1 or isinstance(module.padding, str):
        return None
    places = []
    sides = (module.kernel_size, module.stride, module.padding, module.dilation)
    for kernel, stride, padding, dilation in zip(*sides, strict=True):
        room = 2 * padding - dilation * (kernel - 1)
        if room < 0 or room // stride != 0 or padding % dilation or padding // dilation >= kernel:
            return None
        places.append(padding // dilation)
    return places[0], places[1]


def _windows(module: nn.MaxPool2d) -> int | None:
    """Side of the windows of a pooling, where they are small squares side by side."""

    def pair(value: Any) -> tuple[int, int]:
        return (value, value) if isinstance(value, int) else tuple(value)

    kernel = pair(module.kernel_size)
    plain = pair(module.padding) == (0, 0) and pair(module.dilation) == (1, 1) and not module.ceil_mode
    if plain and kernel == pair(module.stride) and kernel[0] == kernel[1] <= 3:
        return kernel[0]
    return None


def _max_pool(maps: Tensor, side: int) -> Tensor:
    """Maxima over windows side by side."""
    height, width = (size // side * side for size in maps.shape[2:])
    parts = [maps[..., i:height:side, j:width:side] for i in range(side) for j in range(side)]
    out = parts[0]
    for part in parts[1:]:
        out = torch.maximum(out, part)
    return out.contiguous()


def _last_uses(nodes: list[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """Step -> the values that no later step reads."""
    last: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        for parent in node.all_input_nodes:
            last[parent] = node
    found: dict[fx.Node, list[fx.Node]] = {}
    for parent, node in last.items():
        found.setdefault(node, []).append(parent)
    return found
