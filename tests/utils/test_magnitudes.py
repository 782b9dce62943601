"""Histograms of magnitudes: what is drawn in which step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from event_files import events

import dgc
from utils.curves import Curves
from utils.magnitudes import Magnitudes, log_magnitudes
from utils.progress import EpochMeters


class Drawn:
    """A log that keeps the histograms."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], torch.Tensor] = {}

    def histogram(self, name: str, values: torch.Tensor, step: int) -> None:
        self.found[name.rpartition('/')[2], step] = values

    def place(self, step: int) -> int:
        return step


def build() -> tuple[torch.nn.Module, dgc.DistributedOptimizer]:
    """A matrix of 20 × 20 elements, and its optimizer at a density of 1 %."""
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 20, bias=False)
    optimizer = dgc.DistributedOptimizer(
        dgc.DGCSGD(model.parameters(), lr=0.1, momentum=0.9),
        model.named_parameters(),
        dgc.deep_gradient_compression(0.01),
        dgc.create('local'),
    )
    return model, optimizer


def train(period: int | None, steps: int = 5) -> tuple[Drawn, list[torch.Tensor]]:
    """Five steps; returns the gradients too."""
    model, optimizer = build()
    log, gradients = Drawn(), []
    parts = SimpleNamespace(optimizer=optimizer, model=model, engine=SimpleNamespace(rank=0))
    magnitudes = Magnitudes(parts, log, period, first=0)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 20)).square().sum().backward()
        gradients.append(model.weight.grad.clone())
        magnitudes.before_exchange(step)
        optimizer.step()
        magnitudes.after_exchange(step)
    return log, gradients


def test_gradient_selection_and_residual_are_drawn_every_so_many_steps():
    log, gradients = train(2)
    assert set(log.found) == {
        (name, step) for name in ('gradient', 'selected', 'residual') for step in (0, 2, 4)
    }
    drawn = log.found['gradient', 2].sort().values
    assert torch.equal(drawn, log_magnitudes(gradients[2]).sort().values)
    assert len(log.found['selected', 2]) == 4  # 1 % of 400
    assert len(log.found['residual', 2]) == 396


def resumed(step: int, skips: bool) -> Drawn:
    """The steps from ``step`` to 4 of an epoch that is continued there."""
    model, optimizer = build()
    parts = SimpleNamespace(
        optimizer=optimizer,
        engine=dgc.create('local'),
        device=torch.device('cpu'),
        loaders={'train': range(5)},
        samples_per_step=4,
    )
    settings = SimpleNamespace(histogram_steps=2, selection_steps=None, trace_steps=None)
    log = Drawn()
    earlier, meters = (EpochMeters(parts, log, 0, settings) for _ in range(2))
    if skips:
        meters.skip(step)
    else:
        meters.load_state_dict({**earlier.state_dict(), 'step': step})
    for _ in range(step, 5):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 20)).square().sum()
        loss.backward()
        meters.before_exchange()
        optimizer.step()
        meters.add(loss.detach())
    return log


@pytest.mark.parametrize('skips', [False, True])
@pytest.mark.parametrize('step', [0, 1, 2])
def test_an_epoch_that_is_continued_draws_the_messages_of_its_own_steps(step, skips):
    log = resumed(step, skips)
    drawn = {at: len(values) for (name, at), values in log.found.items() if name == 'selected'}
    assert drawn == {at: 4 for at in (0, 2, 4) if at >= step}  # 1 % of 400


def test_nothing_is_drawn_unless_it_is_asked_for():
    log, _ = train(None)
    assert not log.found


def test_zeros_and_what_is_not_finite_have_no_logarithm():
    values = torch.tensor([0.0, -100.0, 0.1, torch.inf, torch.nan])
    assert torch.allclose(log_magnitudes(values), torch.tensor([2.0, -1.0]))


def test_an_event_has_the_counts_of_the_histogram(tmp_path):
    curves = Curves(tmp_path)
    curves.histogram('x', torch.tensor([1.0, 1.0, 2.0]), 7)
    curves.histogram('one value', torch.tensor([3.0]), 8)
    curves.close()
    (file,) = tmp_path.iterdir()
    found = {value.tag: value.histo for e in events(file) for value in e.summary.value}
    histogram = found['x']
    assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (1.0, 2.0, 3.0, 4.0)
    assert sum(histogram.bucket) == 3 and found['one value'].num == 1


def test_settings_and_the_layout_are_written_for_tensorboard(tmp_path):
    curves = Curves(tmp_path)
    curves.begin({'train.optimizer.lr': 0.1, 'model': print, 'data': None})
    curves.end()
    curves.close()
    (file,) = tmp_path.iterdir()
    values = {value.tag: value for e in events(file) for value in e.summary.value}
    start = values['_hparams_/session_start_info'].metadata.plugin_data.content
    assert b'train.optimizer.lr' in start and b'None' in start
    assert '_hparams_/session_end_info' in values
    assert '_hparams_/experiment' not in values  # TensorBoard then uses the settings of all runs
    (layout,) = values['custom_scalars__config__'].tensor.string_val
    assert b'quality' in layout and b'phases' in layout
