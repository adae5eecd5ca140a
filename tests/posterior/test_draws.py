"""Draws: the same bits whatever the batch, and those of the plain loop."""

import pytest
import torch
from torch import nn

import arht
from arht import nets
from arht.posterior import Deterministic, Ensemble, FromCallable, MCDropout, MeanField, Tap, running


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


class Odd(nn.Module):
    """Batch norm, a residual, tied weights, a step in place, a functional layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.flat = nn.Flatten()
        self.encode = nn.Linear(4 * 36, 12)
        self.decode = nn.Linear(12, 4 * 36, bias=False)
        self.decode.weight = nn.Parameter(torch.randn(144, 12) / 10)
        self.again = nn.Linear(12, 12)
        self.tied = self.again

    def forward(self, x):
        h = self.act(self.norm(self.first(x)))
        y = self.second(h)
        y += h
        z = self.tied(torch.relu(self.again(self.encode(self.flat(y)))))
        return z + nn.functional.linear(z, self.again.weight)


class Branching(nn.Module):
    """Its path depends on its values: it has no graph."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x):
        return self.a(x) if self.a.weight.sum() > 0 else self.b(x)


def odd():
    torch.manual_seed(0)
    net = Odd()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return net


def noisy(x, draws, generator):
    return x.flatten(1)[:, None, :4] * torch.randn(draws, 1, generator=generator)


SMALL = {"image_size": 16, "in_channels": 2, "num_classes": 3}
RESNET = {"image_size": 16, "in_channels": 2}
# name -> (encoder, shape of an input, whether many draws go at once)
ENGINES = {
    "LeNet": (lambda: MeanField(nets.LeNet(**SMALL)), (2, 16, 16), True),
    "LeNet, late": (lambda: MeanField(nets.LeNet(**SMALL), "fc2"), (2, 16, 16), True),
    "CNN, second convolution": (lambda: MeanField(nets.CNN(**SMALL), ["conv2"]), (2, 16, 16), True),
    "ResNet18, late": (lambda: MeanField(nets.ResNet18(**RESNET), ["layer4.1.conv1", "fc"]), (2, 16, 16), True),
    "MLP": (lambda: MeanField(nets.MLP(5)), (5,), True),
    "odd": (lambda: MeanField(odd()), (2, 6, 6), True),
    "odd, late": (lambda: MeanField(odd(), ["again"]), (2, 6, 6), True),
    "branching": (lambda: MeanField(Branching()), (3,), False),
    "dropout": (lambda: MCDropout(nets.LeNet(**SMALL)), (2, 16, 16), True),
    "dropout, named": (lambda: MCDropout(nets.LeNet(**SMALL), layers=["fc1"]), (2, 16, 16), True),
    "ensemble": (lambda: Ensemble([nets.CNN(**SMALL) for _ in range(12)]), (2, 16, 16), True),
    "deterministic": (lambda: Deterministic(nets.CNN(**SMALL)), (2, 16, 16), True),
}


def by_hand(net, draw, x):
    """The net's output with the drawn values written over its own, and its own put back."""
    own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    kept = {name: own[name].clone() for name in draw}
    try:
        for name, value in draw.items():
            own[name].copy_(value)
        return net(x)
    finally:
        for name, value in kept.items():
            own[name].copy_(value)


@pytest.fixture(params=ENGINES)
def case(request):
    make, shape, many = ENGINES[request.param]
    torch.manual_seed(1)
    encoder = make()
    return encoder, torch.randn(45, *shape), many


def test_the_batch_changes_no_bit(case):
    encoder, x, many = case
    whole = encoder.draw(x, 11, generator=seeded())
    assert whole.shape[:2] == (45, 11 if encoder.most is None else min(11, encoder.most))
    ((executor, _),) = running._plans[encoder].values()
    assert (executor is not None) == many
    assert torch.equal(whole, encoder.draw(x, 11, generator=seeded(), batch_size=7))
    parts = [encoder.draw(x[start : start + 13], 11, generator=seeded()) for start in range(0, 45, 13)]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(whole, encoder.draw(x.flip(0), 11, generator=seeded()).flip(0))
    assert torch.equal(whole[:, :3], encoder.draw(x, 3, generator=seeded()))
    neighbours = torch.cat([100 * torch.ones_like(x[:3]), x[5:6]])
    assert torch.equal(whole[5], encoder.draw(neighbours, 11, generator=seeded())[3])


def test_a_bank_is_its_generator(case):
    encoder, x, _ = case
    bank = encoder.bank(11, generator=seeded())
    whole = encoder.draw(x, 11, generator=seeded())
    assert torch.equal(whole, encoder.draw(x, bank=bank))
    assert torch.equal(whole[:, :1], encoder.draw(x, bank=bank.first(1)))
    if encoder.most is None:
        assert not torch.equal(whole, encoder.draw(x, 11, generator=seeded(4)))
        assert (whole.std(1) > 0).any()


def test_threads_change_no_bit():
    encoder = MeanField(nets.LeNet(**SMALL))
    x = torch.randn(70, 2, 16, 16)
    one = encoder.draw(x, 19, generator=seeded())
    try:
        torch.set_num_threads(3)
        assert torch.equal(one, encoder.draw(x, 19, generator=seeded()))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


def test_draws_are_those_of_the_plain_loop(case):
    encoder, x, _ = case
    bank = encoder.bank(5, generator=seeded())
    encoder.eval()
    kept = []
    layer = encoder.net.get_submodule(encoder.embedding)
    handle = layer.register_forward_hook(lambda module, inputs, output: kept.append(output))
    with torch.no_grad():
        for k in range(bank.draws):
            draw = {name: tensor[k] for name, tensor in bank.tensors.items()}
            by_hand(encoder.net, draw, x.clone())
    handle.remove()
    expected = torch.stack(kept, 1)
    ours = encoder.draw(x, bank=bank)
    assert torch.allclose(ours, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_a_trained_net_is_seen_at_once():
    """Nothing of the weights stays from one call to the next."""
    encoder = MeanField(nets.ResNet18(**RESNET), ["layer4.1.conv1", "fc"])
    x = torch.randn(3, 2, 16, 16)
    before = encoder.draw(x, 4, generator=seeded())
    with torch.no_grad():
        encoder.net.layer4[1].conv2.weight.mul_(2)
    after = encoder.draw(x, 4, generator=seeded())
    running._plans.clear()
    assert torch.equal(after, encoder.draw(x, 4, generator=seeded()))
    assert not torch.equal(before, after)


def test_callable():
    encoder = FromCallable(noisy)
    x = torch.randn(45, 2, 3)
    whole = encoder.draw(x, 6, generator=seeded())
    assert whole.shape == (45, 6, 4)
    parts = torch.cat([encoder.draw(x[start : start + 13], 6, generator=seeded()) for start in range(0, 45, 13)])
    assert torch.equal(whole, parts)
    assert torch.equal(whole, encoder.draw(x, bank=encoder.bank(6, generator=seeded())))


def test_any_module_is_scored():
    net = odd()
    encoder = MeanField(net, embedding="tied")
    reference = arht.Reference.of(encoder.draw(torch.randn(60, 2, 6, 6), 10, generator=seeded()).flatten(0, 1))
    near = arht.arht_scores(encoder.draw(torch.randn(20, 2, 6, 6), 10, generator=seeded(5)), reference)
    far = arht.arht_scores(encoder.draw(8 * torch.randn(20, 2, 6, 6), 10, generator=seeded(5)), reference)
    assert float(far.score.mean()) > float(near.score.mean())


def test_dropout_drops_at_its_rate():
    encoder = MCDropout(nets.MLP(5, width=200, blocks=1), rate=0.2, layers=["act1"], embedding="act1")
    encoder.eval()
    draws = encoder.draw(torch.rand(2, 5), 100, generator=seeded())
    zeros = draws == 0
    assert torch.equal(zeros[0], zeros[1])  # a draw is one function
    assert abs(float(zeros[0].float().mean()) - 0.2) < 5 * (0.2 * 0.8 / 20_000) ** 0.5
    encoder.train()
    rows = encoder.net.act1(torch.ones(2, 200))
    assert not torch.equal(rows[0], rows[1])


def test_ensemble_members_train_apart(tmp_path):
    encoder = Ensemble([nets.MLP(3, 2) for _ in range(2)])
    before = [member.net.fc1.weight.clone() for member in encoder.members]
    data = (torch.randn(20, 3), torch.arange(20) % 2)
    arht.training.fit(encoder, data, epochs=1, folder=tmp_path, progress=False, generator=seeded())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["member-0", "member-1"]
    for old, member in zip(before, encoder.members, strict=True):
        assert not torch.equal(old, member.net.fc1.weight)
    assert encoder.draw(data[0], 20).shape == (20, 2, 64)


@pytest.mark.parametrize("pooling", ["mean", "spread", "moments", "grid2", "flatten"])
def test_poolings(pooling):
    import numpy as np

    encoder = Deterministic(nets.CNN(**SMALL))
    x = torch.randn(3, 2, 16, 16)
    maps = encoder.draw(x, at=Tap("conv1", "flatten"))[:, 0].numpy().astype(float).reshape(3, 10, 12, 12)
    mean, sd = maps.mean((2, 3)), maps.std((2, 3))
    if pooling == "mean":
        expected = mean
    elif pooling == "spread":
        expected = np.concatenate([mean, np.log(sd + 0.02)], 1)
    elif pooling == "moments":
        pairs = [(i, j) for i in range(10) for j in range(i + 1, 10)]
        flat = maps.reshape(3, 10, -1)
        fisher = [[np.arctanh(np.clip(np.corrcoef(row)[i, j], -0.999, 0.999)) for i, j in pairs] for row in flat]
        expected = np.concatenate([mean, np.log(sd + 0.02), fisher], 1)
    elif pooling == "grid2":
        expected = maps.reshape(3, 10, 2, 6, 2, 6).mean((3, 5)).reshape(3, -1)
    else:
        expected = maps.reshape(3, -1)
    found = encoder.draw(x, at=f"conv1:{pooling}")[:, 0]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_several_taps_are_the_single_ones():
    encoder = MeanField(nets.LeNet(**SMALL))
    x = torch.randn(5, 2, 16, 16)
    taps = ["embedding", "act1:spread", "act2:moments", "conv1"]
    together = encoder.draw(x, 9, at=taps, generator=seeded())
    assert list(together) == ["embedding", "act1:spread", "act2:moments", "conv1:mean"]
    for tap, values in zip(taps, together.values(), strict=True):
        assert torch.equal(values, encoder.draw(x, 9, at=tap, generator=seeded()))
