"""The mean-field posterior: its KL, local reparameterisation, files and refusals."""

import json
import pickle
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch.distributions import Normal, kl_divergence

from arht import nets
from arht.errors import InputError
from arht.io import artefact
from arht.posterior import Deterministic, Ensemble, MCDropout, MeanField, load

PRIOR = {"prior_mean": 0.3, "prior_scale": 0.7}


def small(**options):
    torch.manual_seed(0)
    return MeanField(nets.MLP(3, 2, width=5), generator=torch.Generator().manual_seed(0), **options)


def test_kl_is_that_of_torch_and_of_monte_carlo():
    encoder = small(**PRIOR)
    prior = Normal(0.3, 0.7)
    laws = [Normal(mean, encoder.scales()[name]) for name, mean in encoder.means().items()]
    exact = sum(kl_divergence(law, prior).sum() for law in laws)
    assert torch.allclose(encoder.kl(), exact, rtol=1e-5)
    torch.manual_seed(1)
    draws = []
    with torch.no_grad():
        for _ in range(4000):
            values = [law.sample() for law in laws]
            draws.append(sum((q.log_prob(v) - prior.log_prob(v)).sum() for q, v in zip(laws, values, strict=True)))
    draws = torch.stack(draws)
    assert (
        abs(float(draws.mean() - exact.detach())) < 5 * float(draws.std()) / len(draws) ** 0.5
    )  # wrong once in 1.7 million


def test_kl_pulls_mean_and_scale():
    encoder = small(**PRIOR)
    encoder.kl().backward()
    for name, mean in encoder.means().items():
        scale, rho = encoder.scales()[name], encoder.rho[name.replace(".", "/")]
        assert torch.allclose(mean.grad, (mean - 0.3) / 0.7**2, rtol=1e-4, atol=1e-5)
        assert torch.allclose(rho.grad, (scale / 0.49 - 1 / scale) * torch.sigmoid(rho), rtol=1e-4, atol=1e-4)


def test_local_reparameterisation_has_the_mean_and_variance_of_weight_draws():
    torch.manual_seed(0)
    encoder = MeanField(torch.nn.Sequential(torch.nn.Linear(4, 3)), rho_mean=0.0)
    x = torch.randn(2, 4)
    encoder.local_reparameterisation = True
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        found = torch.stack([encoder(x, generator) for _ in range(20_000)])
        layer, (scale, bias) = encoder.net[0], encoder.scales().values()
        mean, variance = layer(x), x.square() @ scale.square().T + bias.square()
    assert ((found.mean(0) - mean).abs() < 5 * (variance / 20_000).sqrt()).all()
    assert ((found.var(0) / variance - 1).abs() < 5 * (2 / 20_000) ** 0.5).all()


CODE = """
import sys, torch
from arht.posterior import load
torch.set_num_threads(1)
x = torch.linspace(-1, 1, 3 * 512).reshape(3, 2, 16, 16)
draws = load(sys.argv[1]).draw(x, 4, generator=torch.Generator().manual_seed(5))
sys.stdout.write(draws.numpy().tobytes().hex())
"""


@pytest.mark.parametrize(
    "make",
    [MeanField, MCDropout, lambda net: Ensemble(net, 3), Deterministic],
    ids=["MeanField", "MCDropout", "Ensemble", "Deterministic"],
)
def test_a_file_gives_the_same_draws_in_a_fresh_process(make, tmp_path):
    torch.manual_seed(0)
    encoder = make(nets.LeNet(in_channels=2, image_size=16))
    path = tmp_path / "encoder.safetensors"
    encoder.save(path)
    x = torch.linspace(-1, 1, 3 * 512).reshape(3, 2, 16, 16)
    ours = encoder.draw(x, 4, generator=torch.Generator().manual_seed(5))
    done = subprocess.run([sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == ours.numpy().tobytes().hex()


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def newer(path):
    kind, header, tensors = artefact.read(path)
    about = {"schema": artefact.SCHEMA + 1, "kind": kind, "version": "9", "digest": "", "header": header}
    save_file(tensors, path, metadata={"arht": json.dumps(about)})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut, "must be a whole safetensors file"),
        (lambda path: save_file({"a": torch.zeros(1)}, path), "must be written by arht"),
        (newer, "this arht reads schemas up to"),
        (lambda path: path.write_bytes(pickle.dumps([1])), "got a pickle"),
        (lambda path: path.write_bytes(b""), "must not be empty"),
        (lambda path: artefact.write(path, "detector", {}, {}), "must be an encoder; it is a detector"),
    ],
)
def test_files_that_are_refused(spoil, said, tmp_path):
    path = tmp_path / "encoder.safetensors"
    small().save(path)
    spoil(path)
    with pytest.raises(InputError) as caught:
        load(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ask", ["draw", "predict"])
@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((2, 3, 16, 16), "LeNet: images must have 2 channels; got 3"),
        ((2, 2, 20, 20), "LeNet: images must be 16x16; got 20x20"),
    ],
)
def test_wrong_inputs(ask, shape, said):
    encoder = MeanField(nets.LeNet(in_channels=2, image_size=16))
    with pytest.raises(InputError) as caught:
        getattr(encoder, ask)(torch.rand(shape), 3)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda net: MeanField(net, ["layer4.1.conv3"]), "near it: layer4.1.conv"),
        (lambda net: MeanField(net, embedding="fcc"), "near it: fc"),
        (lambda net: MCDropout(net, layers=["layer4.1.act3"]), "near it: layer4.1.act"),
        (lambda net: Deterministic(net).draw(torch.rand(1, 3, 32, 32), at="layer5"), "near it: layer"),
        (lambda net: MCDropout(net, rate=1.0), "rate must be a number between 0 and 1; got 1.0"),
        (lambda net: Ensemble([net, nets.CNN()]), "all nets must be of one architecture"),
        (lambda net: Ensemble([]), "must hold at least one net"),
        (lambda net: Deterministic(lambda x: x), "net must be a torch.nn.Module; got function"),
        (lambda net: Deterministic(net).draw(torch.rand(1, 3, 32, 32), 0), "draws must be a whole number"),
    ],
)
def test_wrong_calls(call, said):
    with pytest.raises(InputError) as caught:
        call(nets.ResNet18())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_foreign_net_that_cannot_run_says_so_in_one_line():
    with pytest.raises(InputError, match=r"draw: Linear must be able to run inputs .* of shape \(1, 4\)") as caught:
        Deterministic(torch.nn.Linear(3, 2)).draw(torch.rand(2, 4))
    assert "\n" not in str(caught.value)
