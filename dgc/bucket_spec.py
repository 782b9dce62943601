"""Descriptions of parameters and buckets: names, shapes and schedules, without storage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dgc.schedule import DensitySchedule

CPU = torch.device('cpu')


class ParameterSpec(NamedTuple):
    """A parameter as planners see it.

    Attributes:
        name: As in ``named_parameters()``.
        shape: Of the parameter, and of its gradient.
        dtype, device: Of both.
        momentum, nesterov: Settings of the optimizer's group. A memory that holds the momentum
            updates a whole bucket at once, so these must be equal inside a bucket.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    momentum: float = 0.0
    nesterov: bool = False

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the gradient."""
        return self.numel * self.dtype.itemsize


class MemberSpec(NamedTuple):
    """A parameter of a bucket.

    Attributes:
        name, shape: As in ``ParameterSpec``.
        offset: Index of its first element in the bucket's flat tensors.
    """

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class BucketSpec:
    """Parameters that are compressed and sent together, as flat tensors of ``n`` elements.

    A value: ranks compare specs before training, plans save them, and ``Bucket`` allocates storage
    from one.

    Attributes:
        members: In the order in which they lie in the flat tensors.
        dtype, device: Of all members.
        schedule: The density over time; ``None`` where the bucket is never compressed.
        requested: The final density by the run's own schedule and layer rules. A planner
            that chooses densities by layer (LAGS-SGD) may deviate from it in ``schedule``.
    """

    members: tuple[MemberSpec, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    schedule: DensitySchedule | None = None
    requested: float | None = None

    @classmethod
    def of(
        cls,
        parameters: Iterable[ParameterSpec],
        schedule: DensitySchedule | None,
        requested: DensitySchedule | None = None,
    ) -> BucketSpec:
        """Return a bucket in which ``parameters`` follow one another.

        Args:
            parameters: At least one; all of one dtype and device.
            schedule: The density over time, or None.
            requested: The schedule of the run's settings, where a planner chose another one.
        """
        listed = list(parameters)
        members, offset = [], 0
        for parameter in listed:
            members.append(MemberSpec(parameter.name, tuple(parameter.shape), offset))
            offset += parameter.numel
        final = requested or schedule
        density = None if final is None else final.density
        return cls(tuple(members), listed[0].dtype, listed[0].device, schedule, density)

    @classmethod
    def of_shape(cls, *shape: int, schedule: DensitySchedule | None = None) -> BucketSpec:
        """Return a bucket of one float32 parameter of this shape on the CPU."""
        return cls.of([ParameterSpec('weight', shape)], schedule)

    def between(self, first: int, stop: int) -> BucketSpec:
        """Return the bucket of members ``first`` … ``stop`` - 1, counted from 0."""
        begin = self.members[first].offset
        members = (each._replace(offset=each.offset - begin) for each in self.members[first:stop])
        return replace(self, members=tuple(members))

    def views(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's name and its view of ``flat[n]``, in the parameter's shape."""
        for member in self.members:
            values = flat[member.offset : member.offset + member.numel]
            yield member.name, values.view(member.shape)

    @property
    def count(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def numel(self) -> int:
        """``n``, the number of elements."""
        return self.members[-1].offset + self.members[-1].numel

    @property
    def name(self) -> str:
        """The first parameter's name and the number of the others, for messages."""
        more = self.count - 1
        return self.members[0].name + (f' and {more} more' if more else '')

    @property
    def names(self) -> tuple[str, ...]:
        """The members' names, in order."""
        return tuple(member.name for member in self.members)

    @property
    def density(self) -> float | None:
        """The density after the warm-up; None for uncompressed."""
        return None if self.schedule is None else self.schedule.density

    @property
    def nbytes(self) -> int:
        """The bytes of all gradients."""
        return self.numel * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """Return names, shapes, type and densities as plain numbers, lists and strings.

        The device and the warm-up are those of the run that replays a plan, so they are not saved.
        """
        return {
            'parameters': {member.name: list(member.shape) for member in self.members},
            'dtype': str(self.dtype).removeprefix('torch.'),
            'is_compressed': self.schedule is not None,
            'density': self.density,
            'requested': self.requested,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> BucketSpec:
        """Read what ``to_json`` wrote.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: For anything else.
        """
        shapes: Mapping[str, Sequence[int]] = content['parameters']
        if not shapes:
            raise ValueError('a bucket has no parameters')
        dtype = getattr(torch, str(content['dtype']))
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f'{content["dtype"]!r} is no type of a parameter')
        parameters = [
            ParameterSpec(str(name), tuple(int(length) for length in shape), dtype)
            for name, shape in shapes.items()
        ]
        density, requested = (
            None if content[key] is None else float(content[key])
            for key in ('density', 'requested')
        )
        schedule = DensitySchedule(density) if content['is_compressed'] else None
        spec = cls.of(parameters, schedule)
        return cls(spec.members, dtype, CPU, schedule, requested)


class Stretch(BucketSpec):
    """``spec.between(first, stop)``, whose members are listed only where they are asked for.

    Planners compare some ten thousand such buckets, and most parts read the number of elements
    alone.
    """

    def __init__(self, spec: BucketSpec, first: int, stop: int) -> None:
        # The fields of a frozen dataclass, without ``members``.
        own = {'dtype': spec.dtype, 'device': spec.device, 'schedule': spec.schedule}
        self.__dict__.update(own, requested=spec.requested, _source=(spec, first, stop))

    @cached_property
    def members(self) -> tuple[MemberSpec, ...]:
        """The members, with their offsets in this bucket."""
        spec, first, stop = self.__dict__['_source']
        return spec.between(first, stop).members

    @property
    def count(self) -> int:
        """The number of members."""
        _, first, stop = self.__dict__['_source']
        return stop - first

    @property
    def numel(self) -> int:
        """``n``, the number of elements."""
        spec, first, stop = self.__dict__['_source']
        last = spec.members[stop - 1]
        return last.offset + last.numel - spec.members[first].offset
