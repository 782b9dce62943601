"""What a communication hook must know of DistributedDataParallel, which tells it little."""

from __future__ import annotations

import gc

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from dgc.checks import concrete


def owner(state: object) -> DistributedDataParallel | None:
    """Return the model with which a state was registered; None where another hook calls ours.

    DDP gives a hook neither itself nor its process group, and its list of hooks is what refers to
    the state. The search reads the type of every object of the process: about 0.05 s, once.
    """
    kinds = {id(kind) for kind in (DistributedDataParallel, *concrete(DistributedDataParallel))}
    models = [each for each in gc.get_objects() if id(type(each)) in kinds]
    for model in models:
        if any(registered is state for _, registered in getattr(model, '_comm_hooks', ())):
            return model
    return None


def named_parameters(model: DistributedDataParallel) -> list[tuple[str, Parameter]]:
    """Return the parameters of ``model.module`` except those that DDP ignores."""
    ignored = model.parameters_to_ignore
    return [(name, p) for name, p in model.module.named_parameters() if name not in ignored]


def gradients_of(bucket: GradBucket) -> list[tuple[Tensor, Tensor]]:
    """Return the parameters of one of DDP's buckets with elements, and their gradients: views of
    its buffer; a dense copy of a sparse gradient, which is alone in its bucket."""
    parameters, buffer = bucket.parameters(), bucket.buffer()
    if buffer.is_sparse:
        gradients = [buffer.to_dense()]
    else:
        gradients = [laid_out(*each) for each in zip(bucket.gradients(), parameters, strict=True)]
    return [pair for pair in zip(parameters, gradients, strict=True) if pair[0].numel()]


def laid_out(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a parameter's part of a buffer with the elements where DDP stores them: in the memory
    format of the parameter, such as channels last, which ``GradBucket.gradients()`` leaves out."""
    if parameter.is_contiguous():  # as it has been cut already
        return gradient
    strides = torch.empty_like(parameter, device='meta').stride()
    if strides != parameter.stride():  # with gaps or overlaps, for which DDP has no place
        return gradient
    return gradient.as_strided(parameter.shape, strides)


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor in the strided layout."""
    return tensor.to_dense() if tensor.is_sparse else tensor
