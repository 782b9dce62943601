"""A GPU that is not there: tensors in the CPU's memory that count as being on ``cuda:0``.

Inside ``pretended()`` torch refuses what it refuses for tensors of two devices, gives ``.device``
as a GPU would have it, and counts the kernels that are started and the calls for which the host
waits. So the paths for GPUs are tested, and their cost is counted, on a machine without one.

A tensor is on the GPU where its storage is, and so are its views. Triton's kernels are replaced by
their reference. Everything is done at once: streams and what they can get wrong are not tested.
An operation that is no view counts as one kernel, though some of torch's take several. On an H200
``torch.cuda.set_sync_debug_mode`` counted 56, 73 and 290 waits in updates of which this counted
54, 71 and 287.

    DGC_TEST_DEVICE=pretended python -m pytest tests/dgc/test_properties.py

runs tests that train by ``dgc_helpers`` on it. Some of others put tensors on the CPU themselves.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dgc import ops
from dgc.codec import message
from dgc.ops import reference

CPU, GPU = torch.device('cpu'), torch.device('cuda', 0)
# These take tensors of two devices.
MIXING = {'aten.copy_', 'aten._to_copy', 'aten.index', 'aten.index_put_', 'aten._index_put_impl_',
          'aten.set_'}  # fmt: skip
JOINING = ('aten.stack', 'aten.cat')
# For these the host waits: the result is a number, or has a size that the data decides.
WAITING = {'aten._local_scalar_dense', 'aten.nonzero', 'aten.masked_select', 'aten.equal',
           'aten._unique2', 'aten.unique_consecutive', 'aten.repeat_interleave'}  # fmt: skip
WITHOUT_KERNEL = {'aten.empty', 'aten.empty_like', 'aten.detach', 'aten.new_empty',
                  'aten.empty_strided', 'aten._local_scalar_dense', 'dgc.holders'}  # fmt: skip
FROM_DATA = ('tensor', 'as_tensor', 'asarray', 'new_tensor')  # are copied to the GPU
MOST = 100_000  # storages that are known, before those that are gone are forgotten

# By address. A weak reference keeps the address from being used again.
_on_gpu: dict[int, StorageWeakRef] = {}
_of_thread = threading.local()


@dataclass
class Count:
    """What was counted while ``counted()`` was open: by the name of an operation."""

    kernels: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)


_counts: list[Count] = []


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Count what all threads do."""
    count = Count()
    _counts.append(count)
    try:
        yield count
    finally:
        _counts.remove(count)


def note_kernel(name: str, number: int = 1) -> None:
    """Count kernels."""
    for count in _counts:
        count.kernels[name] += number


def note_wait(name: str) -> None:
    """Count a call for which the host waits."""
    for count in _counts:
        count.waits[name] += 1


def is_on_gpu(tensor: Tensor) -> bool:
    """Return whether a tensor counts as being on the GPU."""
    if tensor.layout != torch.strided:
        return False
    return tensor.untyped_storage()._cdata in _on_gpu


def put_on_gpu(tensor: Tensor) -> Tensor:
    """Count a tensor that shares its storage with no other one as being on the GPU."""
    if len(_on_gpu) > MOST:
        for key in [key for key, each in [*_on_gpu.items()] if each.expired()]:
            _on_gpu.pop(key, None)
    storage = tensor.untyped_storage()
    _on_gpu[storage._cdata] = StorageWeakRef(storage)
    return tensor


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Let this thread compute as if nothing were pretended."""
    before = getattr(_of_thread, 'unobserved', False)
    _of_thread.unobserved = True
    try:
        yield
    finally:
        _of_thread.unobserved = before


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries."""
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]


class Transfer(torch.autograd.Function):
    """Copies to the other device."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, to_gpu: bool) -> Tensor:
        """Return the copy."""
        ctx.to_gpu = to_gpu
        note_wait('copy')
        note_kernel('copy')
        with unobserved():
            copy = tensor.clone()
        return put_on_gpu(copy) if to_gpu else copy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Copy the gradient back."""
        return moved(gradient.contiguous(), not ctx.to_gpu), None


def moved(tensor: Tensor, to_gpu: bool, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor on a device and of a type; itself where it is so."""
    there = tensor if is_on_gpu(tensor) == to_gpu else Transfer.apply(tensor, to_gpu)
    return there if dtype in (None, there.dtype) else there.type(dtype)


def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Do as ``Tensor.to``."""
    device = dtype = None
    for each in (*args, kwargs.get('device'), kwargs.get('dtype')):
        if isinstance(each, torch.dtype):
            dtype = each
        elif isinstance(each, torch.device | str):
            device = torch.device(each)
        elif isinstance(each, Tensor):
            device, dtype = (GPU if is_on_gpu(each) else CPU), each.dtype
    result = moved(tensor, is_on_gpu(tensor) if device is None else device.type == 'cuda', dtype)
    return result.clone() if kwargs.get('copy') and result is tensor else result


def backward(
    tensor: Tensor, gradient: Tensor | None = None, retain_graph: bool = False, **_: Any
) -> None:
    """Do as ``Tensor.backward``, which would call the mode that calls this."""
    gradient = torch.ones_like(tensor) if gradient is None else gradient
    _engine_run_backward(
        (tensor,), (gradient,), bool(retain_graph), False, (), allow_unreachable=True,
        accumulate_grad=True,
    )  # fmt: skip


class Functions(TorchFunctionMode):
    """Tells devices, moves tensors, and makes new ones on the GPU."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch as a process with a GPU would."""
        kwargs = dict(kwargs or {})
        if getattr(_of_thread, 'unobserved', False):
            return function(*args, **kwargs)
        if function == Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU if is_on_gpu(args[0]) else CPU
        if function == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return is_on_gpu(args[0])
        if function == Tensor.is_cpu.__get__:  # type: ignore[attr-defined]
            return not is_on_gpu(args[0])
        if function is Tensor.backward:
            with self:  # its hooks call torch
                return backward(*args, **kwargs)
        if function is Tensor.to:
            return to(*args, **kwargs)
        if function in (Tensor.cpu, Tensor.cuda):
            return moved(args[0], function is Tensor.cuda)
        if function in (Tensor.numpy, Tensor.__array__) and is_on_gpu(args[0]):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if function is Tensor.tolist and is_on_gpu(args[0]):
            note_wait('tolist')
            with unobserved():
                return function(*args, **kwargs)
        return made(function, args, kwargs)


def made(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a function; what it makes on a device is put there."""
    device = kwargs.get('device')
    if function is Tensor.new_tensor and device is None and is_on_gpu(args[0]):
        device = GPU
    if device is None:
        return function(*args, **kwargs)
    kwargs['device'] = CPU
    if torch.device(device).type == 'cpu':
        with unobserved() if any(map(is_on_gpu, tensors_in(args))) else contextlib.nullcontext():
            return function(*args, **kwargs)
    if kwargs.get('generator') is not None:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    name = getattr(function, '__name__', '?')
    if name in FROM_DATA:
        note_wait(name)
    if not name.startswith(('empty', 'new_empty')):
        note_kernel(name)
    with unobserved():
        return put_on_gpu(function(*args, **kwargs))


class Operations(TorchDispatchMode):
    """Refuses what mixes devices, and puts results where their arguments are."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call an operation as a process with a GPU would."""
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        if getattr(_of_thread, 'unobserved', False) or not any(map(is_on_gpu, given)):
            return function(*args, **kwargs)
        schema = function._schema
        name = f'{function.namespace}.{schema.name.split("::")[1]}'
        check(name, given)
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        is_view = not writes and any(a.alias_info is not None for a in schema.returns)
        if name in WAITING or (name == 'aten.index' and has_mask(args[1])):
            note_wait(name)
        if name == 'aten.copy_' and not all(map(is_on_gpu, given)) and given[-1].dim():
            note_wait('copy_ between devices')
        if not is_view and name not in WITHOUT_KERNEL:
            note_kernel(name)
        result = (topk if name == 'aten.topk' else function)(*args, **kwargs)
        if not writes and not is_view:
            for each in tensors_in(result):
                put_on_gpu(each)
        return result


def topk(
    values: Tensor, k: int, dim: int = -1, largest: bool = True, _: bool = True
) -> tuple[Tensor, ...]:
    """Return what ``torch.topk`` of CUDA does: of equal elements the first ones. That of a CPU
    returns any of them."""
    in_order = values.sort(dim=dim, descending=largest, stable=True)
    return tuple(part.narrow(dim, 0, k).clone() for part in in_order)


def check(name: str, given: Sequence[Tensor]) -> None:
    """Raise what torch raises for an operation on these tensors, some of which are on the GPU."""
    if name.startswith('dgc.') and name != 'dgc.holders':
        raise NotImplementedError(f"Could not run '{name}' with arguments from the 'CUDA' backend")
    if name in MIXING:
        if name == 'aten.index' and not is_on_gpu(given[0]):
            raise RuntimeError('indices should be either on cpu or on the same device')
    # Operations by element also take numbers of the CPU, as tensors without dimensions.
    elif not all(is_on_gpu(each) or not (each.dim() or name in JOINING) for each in given):
        raise RuntimeError(
            'Expected all tensors to be on the same device, but found at least two devices, cuda:0 '
            f'and cpu! (in {name})'
        )


def has_mask(indices: Sequence[Tensor | None]) -> bool:
    """Return whether the number of indexed elements depends on what a mask holds."""
    return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices)


class Stream:
    """A stream or an event on which nothing is ever queued."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_event(self, _: Any = None) -> None:
        """Return at once."""

    wait = record = wait_stream = record_event = wait_event

    def synchronize(self) -> None:
        """Count a wait."""
        note_wait('synchronize')


CUDA: dict[str, Any] = {  # of torch.cuda
    'Stream': Stream,
    'Event': Stream,
    'synchronize': lambda *_: note_wait('synchronize'),
    'current_stream': Stream,
    'stream': lambda *_: contextlib.nullcontext(),
    'device_of': lambda *_: contextlib.nullcontext(),
    'set_device': lambda *_: None,
}


def kernels() -> ModuleType:
    """Return what stands for the Triton kernels: their reference, and what they cost."""
    module = ModuleType('dgc.ops.pretended')
    # Those that search fill a list with zeros, search, sort and gather, and wait for the number.
    for name, number, waits in [
        ('accumulate', 4, True),
        ('collect', 4, True),
        ('sample', 1, False),
    ]:
        setattr(module, name, as_kernel(name, getattr(reference, name), number, waits))
    module.finite, module.spread = reference.finite, reference.spread  # type: ignore[attr-defined]
    return module


def as_kernel(name: str, job: Callable[..., Any], number: int, waits: bool) -> Callable[..., Any]:
    """Return a function that counts as so many kernels of a GPU."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        assert all(map(is_on_gpu, tensors_in((args, kwargs)))), f'{name} of tensors of two devices'
        with unobserved():
            result = job(*args, **kwargs)
        for each in tensors_in(result):
            put_on_gpu(each)
        note_kernel(name, number)
        if waits:
            note_wait(name)
        return result

    return kernel


@contextlib.contextmanager
def pretended() -> Iterator[None]:
    """Pretend that there is a GPU, in this thread and in those that begin meanwhile."""
    begin, real, ours = threading.Thread.run, ops._kernels, kernels()
    kept: dict[Any, Tensor] = {}  # of headers, which lie in the CPU's memory here

    def run(thread: threading.Thread) -> None:
        with Functions(), Operations():
            begin(thread)

    with (
        patch.object(threading.Thread, 'run', run),
        patch.object(ops, '_kernels', lambda kind: ours if kind == 'cuda' else real(kind)),
        patch.multiple(torch.cuda, **CUDA),
        patch.object(message, 'KEPT', kept),
        Functions(),
        Operations(),
    ):
        yield
