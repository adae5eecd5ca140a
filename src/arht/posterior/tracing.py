"""What a net computes, as a graph: which steps depend on random tensors, and what the taps need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx
from torch import nn

from arht.posterior.calling import canonical, places
from arht.posterior.masks import Mask

__all__ = ["Graph", "trace"]

_LOCK = threading.Lock()  # a tracer patches torch while it works: one at a time


class Graph:
    """The steps of a net up to some layers, in order.

    ``shared`` are the steps that no random tensor reaches: they are the same for every draw. ``drawn`` are the others.
    ``outputs`` says which node is a layer's output, ``inputs`` are the nodes that a step of ``drawn`` or an output
    needs of the shared part.
    """

    def __init__(
        self, net: nn.Module, graph: torch.fx.Graph, outputs: Mapping[str, Any], random: Sequence[str]
    ) -> None:
        self.net, self.random = net, tuple(random)
        self.modules = dict(net.named_modules(remove_duplicate=False))
        self.names = canonical(net)
        self.outputs: dict[str, torch.fx.Node] = dict(outputs)
        wanted, stack = set(), list(self.outputs.values())
        while stack:
            node = stack.pop()
            if node not in wanted:
                wanted.add(node)
                stack += node.all_input_nodes
        self.order = {node: place for place, node in enumerate(graph.nodes)}
        chance = set(random)
        drawn: set[torch.fx.Node] = set()
        self.shared: list[torch.fx.Node] = []
        self.drawn: list[torch.fx.Node] = []
        for node in graph.nodes:
            if node in wanted:
                if chance.intersection(self.tensors(node).values()) or drawn.intersection(node.all_input_nodes):
                    drawn.add(node)
                    self.drawn.append(node)
                else:
                    self.shared.append(node)
        needed = dict.fromkeys(parent for node in self.drawn for parent in node.all_input_nodes)
        needed |= dict.fromkeys(self.outputs.values())
        self.inputs = [node for node in needed if node not in drawn]

    def tensors(self, node: torch.fx.Node) -> dict[str, str]:
        """Names of the net's tensors that a step uses: its own name for each -> the name that a draw gives it."""
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            return {place: self.names[id(tensor)] for place, tensor in places(module).items()}
        if node.op == "get_attr":
            tensor = attribute(self.net, str(node.target))
            return {"": self.names[id(tensor)]} if id(tensor) in self.names else {}
        return {}


def trace(net: nn.Module, paths: Sequence[str], random: Sequence[str]) -> Graph | None:
    """The graph of a net, or None where it cannot be had: its steps depend on what it computes."""
    with _LOCK:
        tracer = _Tracer()
        try:
            graph = tracer.trace(net)
        except Exception:  # whatever a forward pass can say to a stand-in for its input: it is run as it is
            return None
    (last,) = (node for node in graph.nodes if node.op == "output")
    outputs = dict(tracer.outputs)
    outputs[""] = last.args[0]
    if sum(node.op == "placeholder" and not node.args for node in graph.nodes) != 1:
        return None
    if not all(isinstance(outputs.get(path), torch.fx.Node) for path in paths):
        return None
    return Graph(net, graph, {path: outputs[path] for path in paths}, random)


class _Tracer(torch.fx.Tracer):
    """Records the output of every module, by each of its paths; the last one, where it runs several times.

    What it patches is patched for every thread: calls of another one pass through.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[str, Any] = {}
        self.thread = threading.get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Mask) or bool(super().is_leaf_module(m, module_qualified_name))

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        output = super().call_module(m, forward, args, kwargs)
        found = getattr(output, "node", None)
        for path, module in self.root.named_modules(remove_duplicate=False):
            if module is m:
                self.outputs[path] = found
        return output

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def attribute(net: nn.Module, path: str) -> Any:
    """What stands at a dotted path."""
    found: Any = net
    for part in path.split("."):
        found = getattr(found, part)
    return found
