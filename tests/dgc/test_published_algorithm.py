"""Deep Gradient Compression against a plain reference of the paper, element by element."""

import numpy as np
import pytest
import torch
from dgc_helpers import SHAPES, exact, keep_count, loss, parameters, values, wrap

import dgc
from dgc.memory import MomentumCorrection, Residual

DENSITY, LR, DECAY, STEPS = 0.05, 0.1, 0.01, 6


def top(array: np.ndarray, k: int) -> list[int]:
    """Positions of the k largest magnitudes of a flat array."""
    return sorted(range(len(array)), key=lambda i: -abs(array[i]))[:k]


def gradient_of(weights: list[np.ndarray], rank: int, step: int) -> list[np.ndarray]:
    named = parameters()
    with torch.no_grad():
        for (_, parameter), weight in zip(named, weights, strict=True):
            parameter.copy_(torch.from_numpy(weight).view(parameter.shape))
    loss(named, rank, step).backward()
    return [p.grad.numpy().flatten().astype(np.float64) for _, p in named]


def published(
    size: int,
    momentum: float,
    nesterov: bool,
    masking: bool,
    decay: float,
    density: float = DENSITY,
):
    """Section 3 of the paper, a parameter at a time; returns the weights after each step."""
    weights = [p.detach().numpy().flatten().astype(np.float64) for _, p in parameters()]
    zeros = lambda: [np.zeros_like(w) for w in weights]  # noqa: E731
    u, v = [zeros() for _ in range(size)], [zeros() for _ in range(size)]
    decay_momentum, history = zeros(), []
    for step in range(STEPS):
        total = zeros()
        for rank in range(size):
            gradients = gradient_of(weights, rank, step)
            for index, shape in enumerate(SHAPES.values()):
                g = gradients[index]
                if nesterov:
                    u[rank][index] = momentum * (u[rank][index] + g)
                    v[rank][index] += u[rank][index] + g
                else:
                    u[rank][index] = momentum * u[rank][index] + g
                    v[rank][index] += u[rank][index]
                sparse = len(shape) > 1
                chosen = range(len(g))
                if sparse:
                    chosen = top(v[rank][index], keep_count(len(g), density))
                for i in chosen:
                    total[index][i] += v[rank][index][i]
                    v[rank][index][i] = 0
                    if sparse and masking:
                        u[rank][index][i] = 0
        for index, weight in enumerate(weights):
            update = total[index] / size
            d = decay * weight
            decay_momentum[index] = momentum * decay_momentum[index] + d
            update += d + momentum * decay_momentum[index] if nesterov else decay_momentum[index]
            weights[index] = weight - LR * update
        history.append([weight.copy() for weight in weights])
    return history


@pytest.mark.parametrize('size', [1, 3])
@pytest.mark.parametrize('masking', [True, False], ids=['masking', 'no masking'])
@pytest.mark.parametrize(
    ('momentum', 'nesterov'), [(0.9, False), (0.9, True), (0.0, False)], ids=str
)
@pytest.mark.parametrize('decay', [0.0, DECAY])
def test_it_is_the_paper_step_by_step(size, masking, momentum, nesterov, decay):
    def worker(engine):
        named = parameters()
        composition = exact(DENSITY, memory=MomentumCorrection(masking))
        settings = {'momentum': momentum, 'nesterov': nesterov, 'weight_decay': decay}
        optimizer = wrap(named, composition, engine, lr=LR, **settings)
        history = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(named, engine.rank, step).backward()
            optimizer.step()
            history.append(values(named))
        return history

    expected = published(size, momentum, nesterov, masking, decay)
    for history in dgc.simulate(size, worker):
        for ours, theirs in zip(history, expected, strict=True):
            for weight, right in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(weight.numpy().flatten(), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('always_sparse', [True, False])
def test_messages_longer_than_dense_are_sent_as_published_on_request(always_sparse):
    """failures row 6: at a density of 0.6, as in a warm-up, 8-byte indices make messages longer."""

    def worker(engine):
        named = parameters()
        composition = exact(0.6, memory=MomentumCorrection(), always_sparse=always_sparse)
        optimizer = wrap(named, composition, engine, lr=LR, momentum=0.9)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(named, engine.rank, step).backward()
            optimizer.step()
        return values(named), optimizer.progress

    right = published(3, 0.9, False, True, 0.0, density=0.6)[-1]
    for ours, progress in dgc.simulate(3, worker):
        same = [
            np.allclose(weight.numpy().flatten(), expected, rtol=1e-4, atol=1e-5)
            for weight, expected in zip(ours, right, strict=True)
        ]
        assert all(same) == always_sparse
        assert (progress.sent > progress.dense_sent) == always_sparse
        assert (progress.sent_elements < progress.elements) == always_sparse


def test_residual_is_error_feedback_step_by_step():
    """Two ranks whose gradients differ: each subtracts its own message, not the average."""

    def worker(engine):
        named = parameters({'w': (8, 8)})
        composition = exact(DENSITY, memory=Residual())
        optimizer = wrap(named, composition, engine, lr=LR)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(named, engine.rank, step).backward()
            optimizer.step()
        return values(named)[0].flatten(), optimizer.reducer.state_dict()['memory']['w']['residual']

    weight = parameters({'w': (8, 8)})[0][1].detach().double().flatten()
    kept = [torch.zeros(64, dtype=torch.float64) for _ in range(2)]
    for step in range(STEPS):
        total = torch.zeros_like(weight)
        for rank in range(2):
            named = parameters({'w': (8, 8)})
            with torch.no_grad():
                named[0][1].copy_(weight.view(8, 8))
            loss(named, rank, step).backward()
            kept[rank] += named[0][1].grad.double().flatten()
            chosen = top(kept[rank].numpy(), keep_count(64, DENSITY))
            total[chosen] += kept[rank][chosen]
            kept[rank][chosen] = 0
        weight -= LR * total / 2
    for rank, (ours, residual) in enumerate(dgc.simulate(2, worker)):
        torch.testing.assert_close(ours.double(), weight, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(residual.double().flatten(), kept[rank], rtol=1e-4, atol=1e-5)
