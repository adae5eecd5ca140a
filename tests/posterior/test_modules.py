"""Modules that the library has never seen."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import arht
from arht.posterior import Deterministic, MCDropout, MeanField


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


@dataclass
class Output:
    last_hidden_state: torch.Tensor
    pooled: torch.Tensor


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens):
        mixed, weights = self.attention(tokens, tokens, tokens)
        return self.norm(tokens + self.dropout(mixed)), weights


class Pretrained(nn.Module):
    """In the manner of a transformer from elsewhere: layers give tuples, the whole an object; input and output tied."""

    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(30, width)
        self.layer = nn.ModuleList([Layer(width), Layer(width)])
        self.pooler = nn.Linear(width, width)
        self.output = nn.Linear(width, 30, bias=False)
        self.output.weight = self.embed.weight

    def forward(self, ids):
        tokens = self.embed(ids)
        for layer in self.layer:
            tokens, _ = layer(tokens)
        return Output(tokens, torch.tanh(self.pooler(tokens[:, 0])) + self.output(tokens[:, 0]).sum(1, keepdim=True))


def pretrained():
    torch.manual_seed(0)
    return Pretrained(), torch.randint(30, (40, 9))


@pytest.mark.parametrize("embedding", ["", "layer.0", "layer.1"])
def test_what_a_layer_returns(embedding):
    net, ids = pretrained()
    kept = {}
    net.get_submodule(embedding).register_forward_hook(lambda module, inputs, output: kept.update(output=output))
    with torch.no_grad():
        net.eval()(ids)
    tokens = kept["output"].last_hidden_state if embedding == "" else kept["output"][0]
    found = Deterministic(net, embedding=embedding).draw(ids)
    torch.testing.assert_close(found[:, 0], tokens.mean(1))


@pytest.mark.parametrize("embedding", ["", "layer.1", "pooler"])
@pytest.mark.parametrize(
    "make",
    [
        lambda net, embedding: MeanField(net, embedding=embedding),
        lambda net, embedding: MeanField(net, ["layer.0"], embedding=embedding),
        lambda net, embedding: MCDropout(net, embedding=embedding),
    ],
    ids=["all weights", "one layer", "dropout"],
)
def test_a_pretrained_module_becomes_random(make, embedding):
    net, ids = pretrained()
    encoder = make(net, embedding)
    draws = encoder.draw(ids, 5, generator=seeded())
    assert draws.shape == (40, 5, 32)
    assert (draws.std(1) > 0).all(1).all()
    assert torch.equal(draws, encoder.draw(ids.flip(0), 5, generator=seeded()).flip(0))
    assert torch.equal(draws[:3], encoder.draw(ids[:3], 5, generator=seeded()))


class Residual(nn.Module):
    """Batch norm, residuals, a tied layer, a tied weight under transposition."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU())
        self.body = nn.Conv2d(6, 6, 3, padding=1)
        self.again = self.body
        self.norm = nn.BatchNorm2d(6)
        self.encode = nn.Linear(6 * 9, 10)
        self.embedding = nn.Linear(10, 10)

    def forward(self, x):
        h = self.stem(x)
        h = h + torch.relu(self.norm(self.again(torch.relu(self.body(h)))))
        z = torch.relu(self.encode(nn.functional.adaptive_avg_pool2d(h, 3).flatten(1)))
        return self.embedding(z) + z @ self.embedding.weight


@pytest.mark.parametrize("layers", ["all", ["body"], ["stem.1", "embedding"]])
def test_three_lines_and_a_score(layers):
    torch.manual_seed(0)
    x, near, far = torch.randn(60, 1, 9, 9), torch.randn(20, 1, 9, 9), 6 * torch.randn(20, 1, 9, 9)
    encoder = MeanField(Residual(), layers)
    reference = arht.Reference.of(encoder.draw(x, 10, generator=seeded()).flatten(0, 1))
    scores = [arht.arht_scores(encoder.draw(some, 10, generator=seeded()), reference).score for some in (near, far)]
    assert arht.evaluation.auroc(*scores).value > 0.9
    bank = encoder.bank(3, generator=seeded())
    names = [name for name, _ in encoder.net.named_parameters()]  # tied ones once
    assert set(bank.tensors) <= set(names)
    changed = [torch.equal(encoder.draw(near, bank=bank)[:, 0], encoder.draw(near, bank=bank)[:, 1])]
    assert changed == [False]
