"""Cases of test_horovod_interface on real ranks: Horovod's own functions beside our wrapper."""

from __future__ import annotations

import horovod.torch as hvd
import torch
from torch import nn

import dgc


def wrapped(engine: dgc.Engine, **settings) -> tuple[nn.Module, dgc.DistributedOptimizer]:
    """A model that differs between the ranks until it is wrapped."""
    torch.manual_seed(engine.rank)
    model = nn.Linear(4, 3)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, dgc.DistributedOptimizer(inner, None, dgc.dense(), engine, **settings)


def broadcasts(engine: dgc.Engine) -> tuple[list[torch.Tensor], str]:
    """The parameters after hvd.broadcast_parameters of rank 1, and what hvd's broadcast of the
    state of an optimizer without state says."""
    model, optimizer = wrapped(engine)
    with torch.no_grad():
        model.weight.fill_(float(engine.rank))
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    found = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    except RuntimeError as error:
        return found, str(error)
    finally:
        optimizer.detach()
    return found, ''


def broadcast_after_a_step(engine: dgc.Engine) -> tuple[float, float]:
    """The rate and the sum of the momenta after hvd's broadcast; rank 0 changed both."""
    model, optimizer = wrapped(engine)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    if engine.rank == 0:
        optimizer.param_groups[0]['lr'] = 0.5
        for entries in optimizer.state.values():
            entries['momentum_buffer'].fill_(2.0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    momenta = [entries['momentum_buffer'].sum() for entries in optimizer.state.values()]
    optimizer.detach()
    return optimizer.param_groups[0]['lr'], float(sum(momenta))


def settings_of_horovod(engine: dgc.Engine) -> int:
    """The steps of a loop with Horovod's own values of its settings."""
    model, optimizer = wrapped(
        engine,
        op=hvd.Average,
        backward_passes_per_step=2,
        process_set=hvd.global_process_set,
        sparse_as_dense=True,
        gradient_predivide_factor=1.0,
        num_groups=0,
    )
    for _ in range(2):
        model(torch.ones(1, 4)).sum().backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.detach()
    return optimizer.steps
