"""Running a net for every input and every weight draw, up to the last wanted layer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from arht.errors import ArhtError, InputError
from arht.posterior.calling import call
from arht.posterior.chunk import Each, Rows, Weights
from arht.posterior.products import Aligned
from arht.posterior.stacked import Executor
from arht.posterior.taps import Tap, find_module, pooled, tensor_of
from arht.posterior.tracing import trace

if TYPE_CHECKING:
    from arht.posterior.base import Draw, Posterior

__all__ = ["BLOCK", "Runner", "alone", "padded"]

BLOCK = 32
"""Inputs that go through the net together. Kernels may round differently for other shapes, so it never changes."""
CHUNK = 8
"""Weight draws that are taken together, at most; fixed for a net for the same reason."""
CHUNK_BYTES = 64 << 20
"""What the weights of a chunk may take."""
KEPT_BYTES = 512 << 20
"""What may be kept of the part without randomness; beyond it, that part is run again for each chunk of draws."""
CLOSE = 1e-3
"""How far the graph may be from the net itself, relative to the largest value, on the input that it is tried on."""

LINE = 64
"""Bytes of a line of memory: new tensors start on one."""
PLANS = 8
"""How many graphs are kept of an encoder: one for each set of layers and shape of the inputs."""

_plans: WeakKeyDictionary[Posterior, dict[Any, tuple[Executor | None, dict[str, int]]]] = WeakKeyDictionary()
_locks: WeakKeyDictionary[nn.Module, RLock] = WeakKeyDictionary()
_guard = Lock()


def alone(net: nn.Module) -> RLock:
    """What a thread holds while it runs a net with other tensors, or changes its modes: one thread at a time."""
    with _guard:
        return _locks.setdefault(net, RLock())


class _Reached(Exception):
    """The last wanted layer has been computed."""


class Runner:
    """Draws at some taps, for inputs of one shape.

    The net is traced into a graph, cut where the first random tensor is used; `Executor` takes many draws at once
    from there. The graph is tried against the net on one input and one draw. A net that cannot be traced, or whose
    graph says something else, is run as it is, draw by draw.
    """

    def __init__(self, posterior: Posterior, taps: list[Tap], inputs: Tensor) -> None:
        self.posterior, self.net = posterior, posterior.net
        self.taps = taps
        self.paths = list(dict.fromkeys(tap.layer for tap in taps))
        self.calls: dict[str, int] = {}
        self.device = posterior._device
        key = (*self.paths, inputs.shape[1:], inputs.dtype, self.device, _signature(posterior))
        plans = _plans.setdefault(posterior, {})
        if key not in plans:
            made = self._plan(inputs[:1].to(self.device))
            while len(plans) >= PLANS:
                del plans[next(iter(plans))]
            plans[key] = made
        self.executor, self.axes = plans[key]

    def _plan(self, one: Tensor) -> tuple[Executor | None, dict[str, int]]:
        """What runs the draws, if the graph serves, and the number of axes of each layer's output."""
        draw = self.posterior.sample(torch.Generator(device="cpu").manual_seed(0)) if self.posterior.random else {}
        features = self._features(one, draw)
        axes = {path: value.ndim for path, value in features.items()}
        graph = trace(self.net, self.paths, self.posterior.random)
        if graph is None:
            return None, axes
        executor = Executor(graph, _chunk(draw))
        try:
            found = self._stacked(executor, executor.shared(padded(one)), Weights([draw], executor.k))
        except ArhtError:
            raise
        except Exception:  # a rule that does not fit this net; what the net itself does is beyond doubt
            return None, axes
        for path, value in features.items():
            ours = found[path][0] if found[path].ndim > value.ndim else found[path]
            if ours[:1].shape != value.shape or not torch.allclose(
                ours[:1], value, rtol=0, atol=CLOSE * float(value.abs().max()), equal_nan=True
            ):
                return None, axes
        return executor, axes

    def __call__(self, x: Tensor, weights: Iterator[Draw], count: int) -> list[tuple[str, Tensor]]:
        """Name and values [B, K, P] of each tap."""
        sink = _Sink(len(self.taps), len(x), count, self.device)
        run = self._one_by_one if self.executor is None else self._in_chunks
        with Aligned():
            run(sink, x, islice(weights, count))
        names = [tap.name(self.axes[tap.layer]) for tap in self.taps]
        return list(zip(names, sink.tensors(), strict=True))

    # many draws at once

    def _in_chunks(self, sink: _Sink, x: Tensor, weights: Iterator[Draw]) -> None:
        executor = self.executor
        assert executor is not None
        kept: dict[int, Any] = {}
        room = KEPT_BYTES

        def given(start: int) -> Any:
            nonlocal room
            if start in kept:
                return kept[start]
            values = executor.shared(padded(x[start : start + BLOCK].to(self.device)))
            size = sum(value.nbytes for value in values.values() if isinstance(value, Tensor))
            if size <= room:
                room -= size
                kept[start] = values
            return values

        def work(start: int, first: int, weights: Weights) -> None:
            with torch.inference_mode(), aligned():
                found = self._stacked(executor, given(start), weights)
                for place, tap in enumerate(self.taps):
                    value, several = found[tap.layer], self.axes[tap.layer] < found[tap.layer].ndim
                    flat = pooled(value.flatten(0, 1) if several else value, tap).float()
                    each = flat.unflatten(0, (-1, BLOCK))
                    sink.put(
                        place, start, first, each[: weights.count] if several else each.expand(weights.count, -1, -1)
                    )

        threads = torch.get_num_threads() if executor.parallel and self.device.type == "cpu" else 1
        chunks = iter(lambda: list(islice(weights, executor.k)), [])
        tasks = (
            (start, place * executor.k, stacked)
            for place, stacked in enumerate(Weights(draws, executor.k) for draws in chunks)
            for start in range(0, len(x), BLOCK)
        )
        aligned = nullcontext if threads == 1 else Aligned  # a mode is on in the thread that entered it alone
        if threads == 1:
            for task in tasks:
                work(*task)
            return
        # the blocks side by side, each on one thread: their number and that of the threads change no bit
        ahead = max(2 * threads, -(-len(x) // BLOCK))
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                waiting = deque[Future[None]]()
                for task in tasks:
                    waiting.append(pool.submit(work, *task))
                    if len(waiting) > ahead:
                        waiting.popleft().result()
                for done in waiting:
                    done.result()
            finally:
                pool.shutdown(cancel_futures=True)
                torch.set_num_threads(threads)

    def _stacked(self, executor: Executor, given: Any, weights: Weights) -> dict[str, Tensor]:
        """Output of every tapped layer, [k, B, ...], or [B, ...] where no draw matters."""
        found = executor.drawn(given, weights)
        out = {}
        for path, value in found.items():
            if isinstance(value, Each):
                each = [tensor_of(one, path) for one in value.values]
                value = Rows(torch.stack([*each, *each[-1:] * (executor.k - weights.count)]))
            out[path] = value.tensor if isinstance(value, Rows) else tensor_of(value, path)
        return out

    # the net as it is

    def _one_by_one(self, sink: _Sink, x: Tensor, weights: Iterator[Draw]) -> None:
        for k, draw in enumerate(weights):
            for start in range(0, len(x), BLOCK):
                features = self._features(padded(x[start : start + BLOCK].to(self.device)), draw)
                for place, tap in enumerate(self.taps):
                    sink.put(place, start, k, pooled(features[tap.layer], tap).float()[None])

    def _features(self, x: Tensor, weights: Draw) -> dict[str, Tensor]:
        """Output of every tapped layer; the last one, where a layer runs several times."""
        found: dict[str, Tensor] = {}
        met = dict.fromkeys(self.paths, 0)

        def keep(path: str) -> Any:
            def hook(module: Any, inputs: Any, output: Any) -> None:
                met[path] += 1
                found[path] = tensor_of(output, path)
                if self.calls and all(met[other] == self.calls[other] for other in self.paths):
                    raise _Reached

            return hook

        hooks = [find_module("draw", self.net, path).register_forward_hook(keep(path)) for path in self.paths]
        try:
            call(self.net, weights, x)
        except _Reached:
            pass
        except (RuntimeError, TypeError, IndexError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"draw: {type(self.net).__name__} must be able to run inputs [B, ...] of shape {tuple(x.shape)}; "
                f"it says: {reason[:200]}. Check their channels, size and dtype."
            ) from error
        finally:
            for handle in hooks:
                handle.remove()
        missed = [path for path in self.paths if path not in found]
        if missed:
            raise InputError(f"draw: layer {missed[0]!r} does not run in the forward pass. Tap one that does.")
        self.calls = self.calls or met
        return found


class _Sink:
    """The tensors [B, K, P] to be filled, one a tap; made when their widths are known."""

    def __init__(self, taps: int, rows: int, draws: int, device: torch.device) -> None:
        self.out: list[Tensor | None] = [None] * taps
        self.rows, self.draws, self.device = rows, draws, device
        self.lock = Lock()

    def put(self, place: int, start: int, first: int, values: Tensor) -> None:
        """Values [k, B, P] of draws from `first` on; a block that is longer than the rest is cut."""
        with self.lock:
            out = self.out[place]
            if out is None:
                out = torch.empty(self.rows, self.draws, values.shape[-1], device=self.device)
                self.out[place] = out
        rows = out[start : start + values.shape[1], first : first + values.shape[0]]
        rows.copy_(values[:, : len(rows)].transpose(0, 1))

    def tensors(self) -> list[Tensor]:
        """All of them, filled."""
        return [out for out in self.out if out is not None]


def padded(block: Tensor) -> Tensor:
    """The block with its first row repeated up to the fixed number of rows, in memory as a block of its own lies."""
    if len(block) == BLOCK:
        settled = block.is_contiguous() and block.data_ptr() % LINE == 0
        return block if settled else block.clone(memory_format=torch.contiguous_format)
    return torch.cat([block, block[:1].expand(BLOCK - len(block), *block.shape[1:])])


def _chunk(draw: Draw) -> int:
    """How many draws are taken together: a power of two that the size of the weights allows."""
    size = sum(tensor.nbytes for tensor in draw.values())
    k = CHUNK if draw else 1
    while k > 1 and k * size > CHUNK_BYTES:
        k //= 2
    return k


def _signature(posterior: Posterior) -> tuple[Any, ...]:
    """What a graph rests on: the modules of the net, their hooks and their tensors, by identity."""
    net = posterior.net
    modules = tuple(
        (id(module), len(module._forward_hooks), len(module._forward_pre_hooks)) for module in net.modules()
    )
    tensors = tuple(id(tensor) for tensor in [*net.parameters(), *net.buffers()])
    return modules, tensors, posterior.random
