"""The one training loop: minibatch gradient descent on the evidence bound, on Lightning Fabric.

For a minibatch of B of the N training rows, with one fresh draw of the weights θ ~ q,

    loss = - (1/B) Σ_b log p(y_b | x_b, θ) + kl_weight · warm-up · KL(q ‖ π) / N

(the paper's eq. of the ELBO, divided by N), and the gradient goes through the draw and through the KL.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arht.errors import InputError
from arht.training import checkpoint
from arht.training.bar import Bar
from arht.training.history import Epoch, History
from arht.training.objectives import Augmentation, Objective, objective_of
from arht.training.settings import Settings
from arht.training.source import Source

__all__ = ["fit"]

SUMS = ("loss", "nll", "kl", "hits", "seconds")


def fit(
    encoder: nn.Module,
    data: Any,
    *,
    objective: str | Objective = "classification",
    epochs: int | None = None,
    settings: Settings | None = None,
    validation: Any = None,
    transform: Any = None,
    augment: Augmentation | None = None,
    generator: torch.Generator | None = None,
    folder: str | Path | None = None,
    resume: bool = True,
    checkpoint_steps: int | None = None,
    progress: bool = True,
    fabric: Any = None,
) -> History:
    """Train the encoder in place and return what happened.

    ``data`` and ``validation`` are Images, or pairs (inputs, targets) of tensors or arrays. A batch is cut from the
    data, then augmented, then transformed, then run under one weight draw. All randomness (order, augmentation, draws)
    comes from ``generator``, by default torch's own.

    With a ``folder``, ``checkpoint.safetensors`` is written there after every epoch, and every ``checkpoint_steps``
    steps if given, and ``history.jsonl`` has a line per epoch; a run that was cut off goes on from its checkpoint and
    ends with the weights it would have had. ``resume=False`` starts over.

    Device, precision and data-parallel strategy are those of ``fabric``, a ``lightning_fabric.Fabric`` that was
    launched; by default one device, an accelerator if there is one.
    """
    settings = settings or Settings()
    if epochs is not None:
        settings = replace(settings, epochs=epochs)
    if members := getattr(encoder, "members", None):  # an ensemble: one net after the other
        generator = torch.default_generator if generator is None else generator
        common: dict[str, Any] = {"settings": settings, "validation": validation, "transform": transform}
        common |= {"augment": augment, "generator": generator, "resume": resume, "progress": progress}
        common |= {"checkpoint_steps": checkpoint_steps, "fabric": fabric}
        rows: list[Epoch] = []
        for k, member in enumerate(members):
            place = None if folder is None else Path(folder) / f"member-{k}"
            rows += fit(member, data, objective=objective, folder=place, **common).epochs
        encoder.eval()
        return History(tuple(rows))
    source = Source.of(data, "data")
    held = None if validation is None else Source.of(validation, "validation")
    if settings.patience is not None and held is None:
        raise InputError(
            f"training.fit: patience={settings.patience} needs validation=...; got None. Early stopping looks at the "
            "loss on held-out data; hold some out, or set patience=None."
        )
    if fabric is None:
        from lightning_fabric import Fabric

        fabric = Fabric(accelerator="auto", devices=1)
    run = _Run(encoder, objective_of(objective), source, held, settings, transform, augment, fabric)
    run.begin(torch.default_generator if generator is None else generator)
    if folder is not None and run.place(Path(folder)) and resume:
        run.restore()
    with Bar(progress and fabric.global_rank == 0, settings.epochs, run.steps) as bar:
        while not run.finished:
            run.epoch(bar, checkpoint_steps)
    run.end()
    return run.history


class _Bound(nn.Module):
    """The loss of a batch; a module of its own, so that a data-parallel strategy sees every parameter."""

    def __init__(self, encoder: nn.Module, objective: Objective, local: bool):
        super().__init__()
        self.encoder, self.objective = encoder, objective
        if local and not hasattr(encoder, "local_reparameterisation"):
            raise InputError(
                f"training.fit: local_reparameterisation needs a MeanField encoder; got {type(encoder).__name__}. "
                "Set it to False."
            )
        if hasattr(encoder, "local_reparameterisation"):
            encoder.local_reparameterisation = local  # type: ignore[assignment]

    def outputs(self, views: Tensor, count: int, generator: torch.Generator) -> list[Tensor]:
        """Outputs of each view, all under one weight draw."""
        outputs: Tensor = self.encoder(views, generator=generator)
        return list(outputs.chunk(count)) if count > 1 else [outputs]

    def forward(
        self, views: Tensor, count: int, targets: Tensor | None, generator: torch.Generator, share: float, weight: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """loss, nll, kl and hits; ``share`` makes a mean of a sum of rows, ``weight`` multiplies the KL."""
        outputs = self.outputs(views, count, generator)
        nll = self.objective(outputs, targets).sum() * share
        kl: Tensor = self.encoder.kl()  # type: ignore[operator]
        return nll + weight * kl, nll.detach(), kl.detach(), self.objective.hits(outputs, targets)


class _Run:
    """A run and where it stands. What is in ``save`` is all that its next step depends on."""

    def __init__(
        self,
        encoder: nn.Module,
        objective: Objective,
        source: Source,
        held: Source | None,
        settings: Settings,
        transform: Any,
        augment: Augmentation | None,
        fabric: Any,
    ):
        self.source, self.held, self.settings, self.fabric = source, held, settings, fabric
        self.transform, self.augment = transform, augment
        self.world, self.rank = int(fabric.world_size), int(fabric.global_rank)
        self.steps = -(-len(source) // settings.batch_size)
        self.bound = _Bound(encoder, objective, settings.local_reparameterisation)
        self.epochs_done, self.step, self.waited = 0, 0, 0
        self.best_loss, self.best_epoch, self.best = float("inf"), None, {}  # type: float, int | None, dict[str, Tensor]
        self.rows: list[Epoch] = []
        self.order = torch.empty(0, dtype=torch.int64)
        self.sums = dict.fromkeys(SUMS, 0.0)
        self.path: Path | None = None

    def begin(self, generator: torch.Generator) -> None:
        """Check outputs and targets on a first few rows, and divide the randomness: order, views, noise."""
        given = None if generator is torch.default_generator else generator.initial_seed()
        self.seed = self.fabric.broadcast(given)  # of a generator of the caller's own: where it stands may differ
        seeds = torch.randint(2**62, (4,), generator=generator, device=generator.device)
        shared = int(self.fabric.broadcast(seeds)[3])  # one number for all processes
        self.streams = {
            name: torch.Generator().manual_seed(shared ^ int(word))
            for name, word in zip(("order", "views", "noise", "validation"), (0, 1, 2, 3), strict=True)
        }
        if self.world > 1 and self._noise_per_row():
            self.streams["noise"].manual_seed(shared ^ (2 + 4 * self.rank))
        self._check()
        trained = [parameter for parameter in self.bound.parameters() if parameter.requires_grad]
        if not trained:
            raise InputError("training.fit: the encoder must have parameters that require a gradient; got none.")
        fused = self.fabric.device.type in ("cpu", "cuda")
        self.bound.to(self.fabric.device)
        self.optimiser = torch.optim.Adam(
            trained, lr=self.settings.learning_rate, weight_decay=self.settings.weight_decay, fused=fused
        )
        self.module, self.stepper = self.fabric.setup(self.bound, self.optimiser)

    def _noise_per_row(self) -> bool:
        """Whether rows have noise of their own: then the processes must not repeat each other's."""
        from arht.posterior import MeanField

        return self.settings.local_reparameterisation or not isinstance(self.bound.encoder, MeanField)

    def _check(self) -> None:
        bound, objective = self.bound.eval(), self.bound.objective
        device = next((parameter.device for parameter in bound.parameters()), torch.device("cpu"))
        inputs, _ = self.source.batch(torch.arange(min(2, len(self.source))))
        generator = torch.Generator().manual_seed(0)
        objective.views(inputs, self.augment, generator)
        with torch.no_grad():
            (outputs,) = bound.outputs(self._ready([inputs]).to(device), 1, generator)
        for part in (self.source, self.held):
            if part is not None:
                objective.check(outputs, part.targets)

    def _ready(self, views: list[Tensor]) -> Tensor:
        """Views to one float tensor."""
        inputs = views[0] if len(views) == 1 else torch.cat(views)
        if self.transform is not None:
            return self.transform(inputs)
        return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs

    def _batch(
        self, source: Source, index: Tensor, augment: Augmentation | None, generator: torch.Generator
    ) -> tuple[Tensor, int, Tensor | None]:
        """This process's part of a batch: its views together, their number, its targets."""
        inputs, targets = source.batch(index)
        views = self.bound.objective.views(inputs, augment, generator)
        if self.world > 1:
            views = [view.tensor_split(self.world)[self.rank] for view in views]
            targets = None if targets is None else targets.tensor_split(self.world)[self.rank]
        device = self.fabric.device
        return self._ready(views).to(device), len(views), None if targets is None else targets.to(device)

    def epoch(self, bar: Bar, checkpoint_steps: int | None) -> None:
        """The rest of an epoch, its validation, its row of history and its checkpoint."""
        size = self.settings.batch_size
        self.module.train()
        if self.step == 0:
            self.order = torch.randperm(len(self.source), generator=self.streams["order"])
            self.sums = dict.fromkeys(SUMS, 0.0)
        started = time.perf_counter()
        while self.step < self.steps:
            self._step(self.order[self.step * size : (self.step + 1) * size])
            self.step += 1
            bar.at(self.epochs_done * self.steps + self.step)
            if checkpoint_steps and self.step % checkpoint_steps == 0 and self.step < self.steps:
                now = time.perf_counter()
                self.sums["seconds"], started = self.sums["seconds"] + now - started, now
                self.save()
        loss, accuracy = (None, None) if self.held is None else self._validate(self.held)
        self.sums["seconds"] += time.perf_counter() - started
        bar.done(self._close(loss, accuracy))
        self.save()

    def _step(self, index: Tensor) -> None:
        """One step: a fresh draw, the loss, its gradient, Adam."""
        settings = self.settings
        views, count, targets = self._batch(self.source, index, self.augment, self.streams["views"])
        share = self.world / len(index)  # the gradients of the processes are averaged
        weight = settings.kl_weight * settings.warmup(self.epochs_done) / len(self.source)
        loss, nll, kl, hits = self.module(views, count, targets, self.streams["noise"], share, weight)
        done = self.epochs_done * self.steps + self.step
        means = torch.stack([loss.detach(), nll, kl, hits * share if hits is not None else torch.full_like(kl, -1.0)])
        if self.world > 1:
            means = self.fabric.all_reduce(means, reduce_op="mean")
        values = means.tolist()
        if not all(map(math.isfinite, values)):
            raise InputError(self._not_finite(values, done))
        for group in self.optimiser.param_groups:
            group["lr"] = settings.rate(done, settings.epochs * self.steps)
        self.stepper.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        self.stepper.step()
        for name, value, rows in zip(
            SUMS, values, (len(index), len(index), len(self.source) / self.steps, len(index)), strict=False
        ):
            self.sums[name] += value * rows

    def _not_finite(self, values: list[float], done: int) -> str:
        if self.path is None:
            kept = "the weights are those of the step before"
        elif self.path.exists():
            kept = f"{self.path} holds the last good checkpoint"
        else:
            kept = "no checkpoint was written yet"
        loss, nll, kl, _ = values
        return (
            f"training.fit: the loss must be finite; got loss={loss:g}, nll={nll:g}, kl={kl:g} at step {done + 1}, in "
            f"epoch {self.epochs_done + 1}. Training stopped there and {kept}; check the data for NaN, or lower the "
            "learning rate."
        )

    @torch.no_grad()
    def _validate(self, held: Source) -> tuple[float, float | None]:
        """Mean loss of the held-out rows, one draw per batch; every epoch has the same noise."""
        self.module.eval()
        stream = torch.Generator()
        stream.set_state(self.streams["validation"].get_state())
        total, right = torch.zeros(2, dtype=torch.float64, device=self.fabric.device), True
        for index in torch.arange(len(held)).split(max(self.settings.batch_size, 256)):
            augment = self.augment if self.bound.objective.name == "contrastive" else None
            views, count, targets = self._batch(held, index, augment, stream)
            outputs = self.bound.outputs(views, count, stream)
            hits = self.bound.objective.hits(outputs, targets)
            total[0] += self.bound.objective(outputs, targets).sum()
            right = hits is not None
            total[1] += 0 if hits is None else hits
        self.module.train()
        if self.world > 1:
            total = self.fabric.all_reduce(total, reduce_op="sum")
        loss, hit = (total / len(held)).tolist()
        return loss, hit if right else None

    def _close(self, loss: float | None, accuracy: float | None) -> Epoch:
        """End the epoch: its row, and whether it is the best or the last."""
        self.epochs_done, self.step = self.epochs_done + 1, 0
        means = {name: self.sums[name] / len(self.source) for name in ("loss", "nll", "kl", "hits")}
        row = Epoch(
            epoch=self.epochs_done,
            step=self.epochs_done * self.steps,
            loss=means["loss"],
            nll=means["nll"],
            kl=means["kl"],
            accuracy=means["hits"] if means["hits"] >= 0 else None,
            validation_loss=loss,
            validation_accuracy=accuracy,
            learning_rate=self.optimiser.param_groups[0]["lr"],
            seconds=self.sums["seconds"],
        )
        self.rows.append(row)
        if self.settings.patience is not None and loss is not None:
            self.waited += 1
            if loss < self.best_loss:
                self.best_loss, self.best_epoch, self.waited = loss, self.epochs_done, 0
                self.best = {name: value.clone() for name, value in self.bound.state_dict().items()}
        return row

    @property
    def finished(self) -> bool:
        """No epoch is left, or patience is."""
        patience = self.settings.patience
        return self.epochs_done >= self.settings.epochs or (patience is not None and self.waited >= patience)

    @property
    def history(self) -> History:
        """What happened so far."""
        return History(tuple(self.rows), self.epochs_done < self.settings.epochs, self.best_epoch)

    def end(self) -> None:
        """Leave the encoder with the weights to keep, as it is used."""
        if self.best:
            self.bound.load_state_dict(self.best)
        self.bound.eval()

    def place(self, folder: Path) -> bool:
        """Checkpoints go to the folder; whether there is one."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"training.fit: folder must be one that can be written to; got {folder}: {error}"
            ) from None
        self.path = folder / "checkpoint.safetensors"
        self.run = {
            **asdict(self.settings),
            "objective": self.bound.objective.name,
            "processes": self.world,
            "data": self.source.digest(),
            "validation": None if self.held is None else self.held.digest(),
            "parameters": sum(value.numel() for value in self.bound.state_dict().values()),
            **checkpoint.origin(self.bound.encoder, self.bound.objective, self.transform, self.augment),
            "seed": self.seed,
        }
        return self.path.exists()

    def save(self) -> None:
        """Write the checkpoint and the history."""
        if self.path is None:
            return
        noise = self.streams["noise"].get_state()
        states = {name: stream.get_state() for name, stream in self.streams.items()}
        if self.world > 1:
            states["noise"] = self.fabric.all_gather(noise.to(self.fabric.device)).cpu()
        if self.rank == 0:
            header = {
                "run": self.run,
                "epochs_done": self.epochs_done,
                "step": self.step,
                "waited": self.waited,
                "best_loss": self.best_loss if self.best else None,
                "sums": self.sums,
                "history": self.history.as_dict(),
            }
            tensors = (
                checkpoint.group("model", self.bound.state_dict())
                | checkpoint.group("best", self.best)
                | checkpoint.group("optimiser", checkpoint.optimiser_tensors(self.optimiser))
                | checkpoint.group("stream", states)
                | ({"order": self.order} if self.step else {})
            )
            checkpoint.write(self.path, header, tensors)
            self.history.write(self.path.with_name("history.jsonl"))
        self.fabric.barrier()

    def restore(self) -> None:
        """Go on from the checkpoint."""
        assert self.path is not None
        header, tensors = checkpoint.read(self.path, self.run)
        self.bound.load_state_dict(checkpoint.ungroup("model", tensors))
        checkpoint.optimiser_state(self.optimiser, checkpoint.ungroup("optimiser", tensors))
        for name, state in checkpoint.ungroup("stream", tensors).items():
            self.streams[name].set_state(state[self.rank] if state.ndim == 2 else state)
        self.best = {name: value.to(self.fabric.device) for name, value in checkpoint.ungroup("best", tensors).items()}
        self.epochs_done, self.step, self.waited = header["epochs_done"], header["step"], header["waited"]
        history = History.of(header["history"])
        self.rows, self.best_epoch = list(history.epochs), history.best_epoch
        self.best_loss = float("inf") if header["best_loss"] is None else header["best_loss"]
        self.sums, self.order = dict(header["sums"]), tensors.get("order", self.order)
        self.fabric.barrier()
