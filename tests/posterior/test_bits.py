"""Bit for bit: small and odd widths, views of memory, threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from arht import nets
from arht.posterior import Deterministic, MeanField, Tap, running, tracing
from arht.posterior.products import Aligned

WIDTHS = [*range(1, 14), 17, 31, 33, 50, 84]


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def odd_one_out(product, x):
    """Whether equal rows have results that differ."""
    with torch.inference_mode(), Aligned():
        found = product(x)
    return not torch.equal(found, found[..., :1, :].expand_as(found))


@pytest.mark.parametrize("width", WIDTHS)
def test_equal_rows_have_equal_products(width):
    generator = seeded(width)
    for out in WIDTHS:
        x = torch.randn(8, 1, width, generator=generator).expand(8, 32, width).contiguous()
        weight, bias = (torch.randn(8, *shape, generator=generator) for shape in ((out, width), (1, out)))
        ways = {
            "linear": lambda x, w=weight, b=bias: nn.functional.linear(x[0], w[0], b[0, 0]),
            "side by side": lambda x, w=weight: nn.functional.linear(x[0], w.flatten(0, 1)),
            "batched": lambda x, w=weight: x @ w.mT,
            "batched with bias": lambda x, w=weight, b=bias: torch.baddbmm(b, x, w.mT),
            "matmul": lambda x, w=weight: torch.matmul(x.flatten(0, 1)[:32], w[0].T),
        }
        assert [name for name, product in ways.items() if odd_one_out(product, x)] == [], out


def test_without_it_they_do_not():
    """What the page of the mode says of routines, on the machine of this test: else it tests nothing."""
    generator = seeded()
    differing = 0
    for width in WIDTHS:
        x = torch.randn(1, width, generator=generator).expand(32, width).contiguous()
        found = x @ torch.randn(width, 6, generator=generator)
        differing += not torch.equal(found, found[:1].expand_as(found))
    if not differing:
        pytest.skip("the products of this machine do not depend on the place of a row")
    assert not odd_one_out(lambda x: x @ torch.ones(6, 6), torch.randn(1, 6, generator=generator).expand(32, 6))


class Small(nn.Module):
    """Two linear layers and a step between them; traced or not."""

    def __init__(self, width, out, branching):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, out)
        self.branching = branching

    def forward(self, x):
        h = torch.tanh(self.first(x))
        if self.branching and bool(h.isnan().any()):
            return h
        return self.second(h)


@pytest.mark.parametrize("layers", ["all", ["second"]])
@pytest.mark.parametrize("branching", [False, True])
def test_small_nets(layers, branching):
    torch.manual_seed(0)
    for width in (1, 2, 3, 5, 6, 7, 9, 11, 13, 21, 50):
        for out in (1, 2, 6, 10, 11):
            encoder = MeanField(Small(width, out, branching), layers)
            x = torch.randn(37, width)
            whole = encoder.draw(x, 9, generator=seeded())
            ((executor, _),) = running._plans[encoder].values()
            assert (executor is None) == branching
            assert torch.equal(whole, encoder.draw(x.flip(0), 9, generator=seeded()).flip(0)), (width, out)
            alone = [encoder.draw(x[i : i + 1], 9, generator=seeded()) for i in (1, 6, 36)]
            assert torch.equal(whole[[1, 6, 36]], torch.cat(alone)), (width, out)
            assert torch.equal(whole, encoder.draw(x, bank=encoder.bank(9, generator=seeded()))), (width, out)


@pytest.mark.parametrize("pooling", ["mean", "spread", "moments", "grid", "flatten"])
def test_taps_of_odd_maps(pooling):
    """Maps of 5 x 5 and 7 x 7 do not lie on lines of memory."""
    torch.manual_seed(0)
    for size in (5, 7):
        encoder = MeanField(nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.Softplus()))
        x = torch.randn(33, 2, size, size)
        whole = encoder.draw(x, 3, at=Tap("1", pooling, 2), generator=seeded())
        assert torch.equal(whole, encoder.draw(x.flip(0), 3, at=Tap("1", pooling, 2), generator=seeded()).flip(0))


def test_where_the_inputs_lie_does_not_matter():
    encoder = MeanField(nets.MLP(3, width=5))
    base = np.random.default_rng(0).standard_normal((71, 3)).astype(np.float32)
    whole = encoder.draw(base, 5, generator=seeded())
    for start in (1, 2, 5):
        view = torch.from_numpy(base)[start : start + 64]
        assert torch.equal(whole[start : start + 64], encoder.draw(view, 5, generator=seeded()))
    columns = torch.from_numpy(np.asfortranarray(base))
    assert torch.equal(whole, encoder.draw(columns, 5, generator=seeded()))


def test_threads_that_draw_at_once():
    """First draws, which trace, of one encoder and of several; in training mode, with batch norm."""
    torch.manual_seed(0)
    encoders = [MeanField(nets.ResNet18(in_channels=1, image_size=16, stem="cifar"), "fc") for _ in range(2)]
    encoders += [MeanField(nets.LeNet(in_channels=1, image_size=16)) for _ in range(3)]
    x = torch.randn(5, 1, 16, 16)
    alone = [encoder.draw(x, 3, generator=seeded()) for encoder in encoders]
    running._plans.clear()
    for encoder in encoders:
        encoder.train()
    start = threading.Barrier(10)

    def work(place):
        start.wait()
        return encoders[place % 5].draw(x, 3, at="embedding" if place < 5 else ["embedding"], generator=seeded())

    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(work, range(10)))
    for place, draws in enumerate(found):
        assert torch.equal(alone[place % 5], draws["embedding"] if place >= 5 else draws)
    assert all(module.training for encoder in encoders for module in encoder.modules())


def test_a_net_is_traced_once(monkeypatch):
    count = []
    real = tracing.trace
    monkeypatch.setattr(running, "trace", lambda *arguments: count.append(1) or real(*arguments))
    encoder = MeanField(nets.LeNet(in_channels=1, image_size=16))
    x = torch.randn(5, 1, 16, 16)
    for _ in range(3):
        encoder.draw(x, 2)
        encoder.predict(x, 2)
        encoder.draw(x[:2], 5, at=["act1", "embedding"])
    assert len(count) == 3  # one for each set of layers


def test_a_thread_that_traces_disturbs_no_other():
    """A forward pass of another module while a tracer has torch patched."""
    inside, done = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            if isinstance(x, torch.fx.Proxy):
                inside.set()
                assert done.wait(30)
            return self.layer(x)

    slow, other = Slow(), nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    tracer = threading.Thread(target=lambda: Deterministic(slow).draw(torch.randn(2, 3)))
    x = torch.randn(2, 3)
    expected = other(x)
    tracer.start()
    assert inside.wait(30)
    try:
        assert torch.equal(other(x), expected)
        assert isinstance(slow.layer.weight, nn.Parameter)
    finally:
        done.set()
        tracer.join()


def test_threads_are_as_before_where_a_run_fails():
    """The blocks of a run take one thread each; a failure in the middle leaves torch's number as it was."""

    def drawn():
        for _ in range(40):
            yield encoder.sample(generator)
        raise ValueError("no more draws")

    def number():
        with ThreadPoolExecutor(1) as pool:  # a thread that has not asked yet
            return pool.submit(torch.get_num_threads).result()

    encoder, generator = MeanField(nn.Sequential(nn.Linear(4, 8), nn.ReLU())), seeded()
    x = torch.randn(3 * running.BLOCK, 4)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ValueError, match="no more draws"), torch.no_grad():
            running.Runner(encoder, [Tap("0")], x)(x, drawn(), 100)
        assert number() == 2
    finally:
        torch.set_num_threads(before)
