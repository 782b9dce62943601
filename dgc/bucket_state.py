"""The state that a composition's parts keep of one bucket, allocated, saved and restored."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dgc.bucket_spec import BucketSpec, MemberSpec
from dgc.state import (
    Elements,
    Entries,
    Entry,
    OwnedSlice,
    PerParameter,
    Values,
    copied,
    owned_range,
)


class BucketState(dict[str, dict[str, Any]]):
    """Role of a part → entry → a tensor, a dictionary of tensors, or one of plain values.

    Attributes:
        parts: Role of a part → what it keeps between steps, as declared (see ``dgc.state``).
        spec: The bucket.
        owned: The range of ``[n]`` that this rank owns.
    """

    def __init__(
        self, spec: BucketSpec, parts: Mapping[str, Entries], rank: int = 0, size: int = 1
    ) -> None:
        """Allocate what ``parts`` declare, for a bucket, this rank and this world size."""
        self.parts = parts
        self.owned = owned_range(spec.numel, rank, size)
        self.spec = spec
        super().__init__(
            {
                role: {name: self._initial(entry) for name, entry in entries.items()}
                for role, entries in parts.items()
            }
        )

    def _initial(self, entry: Entry) -> Any:
        """Return the value of an entry before the first step."""
        spec = self.spec
        if isinstance(entry, Values):
            return {}
        if isinstance(entry, PerParameter):
            tensors = {member.name: entry.initial(member) for member in spec.members}
            return {name: t.to(spec.device) for name, t in tensors.items() if t is not None}
        if isinstance(entry, Elements):
            return torch.zeros(spec.numel, dtype=entry.dtype, device=spec.device)
        first, last = self.owned
        return torch.zeros(last - first, dtype=torch.float32, device=spec.device)

    def snapshot(self, renewed: Container[str] = ()) -> dict[str, Any]:
        """Return a copy of all parts' state: of each ``Elements`` entry, 4 bytes an element (2 of
        bfloat16).

        Args:
            renewed: Entries of the memory that will be replaced and not changed. They are not
                copied.
        """
        memory = self.get('memory', {})
        kept = {name: held for name, held in memory.items() if name in renewed}
        found: dict[str, Any] = {
            role: {name: copied(held) for name, held in entries.items() if name not in stays}
            for role, entries in self.items()
            for stays in [kept if role == 'memory' else ()]
        }
        found.get('memory', {}).update(kept)
        return found

    def roll_back(self, snapshot: Mapping[str, Any]) -> None:
        """Restore the state to ``snapshot``, in place."""
        for role, entries in snapshot.items():
            for name, saved in entries.items():
                current = self[role][name]
                if isinstance(saved, Tensor):
                    current.copy_(saved)
                else:
                    current.clear()
                    current.update(copied(saved))

    def resize(self, rank: int, size: int) -> None:
        """Own the slice of another rank or world size, with zeros where the slice changes.

        Other entries stay as they are: ``dgc.elastic`` converts them.
        """
        self._own(owned_range(self.spec.numel, rank, size))

    def disown(self) -> None:
        """Own no slice, until ``resize``: other ranks have them all."""
        self._own((0, 0))

    def _own(self, owned: tuple[int, int]) -> None:
        if owned == self.owned:
            return
        self.owned = owned
        for role, entries in self.parts.items():
            for name, entry in entries.items():
                if isinstance(entry, OwnedSlice):
                    self[role][name] = self._initial(entry)

    @property
    def of_elements(self) -> list[tuple[str, str]]:
        """Role and name of each entry that has a number for each element."""
        return [
            (role, name)
            for role, entries in self.parts.items()
            for name, entry in entries.items()
            if isinstance(entry, Elements | OwnedSlice)
        ]

    def expanded(self, role: str, name: str) -> Tensor:
        """Return ``[n]`` with an ``OwnedSlice`` in this rank's slice, and zeros elsewhere."""
        return self._expanded(self[role][name])

    def reset(self, role: str) -> float:
        """Set what one part keeps to what it was before the first step, in place.

        Returns:
            The Euclidean norm of the tensors that it kept for the whole bucket.
        """
        kept = [value for value in self[role].values() if isinstance(value, Tensor)]
        norm = math.sqrt(sum(float(value.double().square().sum()) for value in kept))
        self.roll_back(
            {role: {name: self._initial(entry) for name, entry in self.parts[role].items()}}
        )
        return norm

    def copy_of(self, names: Container[str]) -> dict[str, list[Tensor]]:
        """Return copies of what the parts keep of some parameters, for ``put_back``."""
        return {
            member.name: [view.clone() for view in self._views_of(member)]
            for member in self.spec.members
            if member.name in names
        }

    def put_back(self, copies: Mapping[str, Sequence[Tensor]]) -> None:
        """Restore some parameters' state to what ``copy_of`` returned, in place."""
        for member in self.spec.members:
            if member.name in copies:
                for view, saved in zip(self._views_of(member), copies[member.name], strict=True):
                    view.copy_(saved)

    def _views_of(self, member: MemberSpec) -> Iterator[Tensor]:
        """Yield the parts of all tensors that belong to one parameter, in a fixed order."""
        name, begin, end = member.name, member.offset, member.offset + member.numel
        for role, entries in self.parts.items():
            for entry, kind in entries.items():
                held = self[role][entry]
                if isinstance(kind, PerParameter):
                    if name in held:
                        yield held[name]
                elif isinstance(kind, OwnedSlice):
                    first, last = self.owned
                    low, high = max(begin, first), min(end, last)
                    yield held[low - first : max(high, low) - first]
                elif isinstance(kind, Elements):
                    yield held[begin:end]

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all state, by parameter name.

        Returns:
            ``{role: {parameter: {entry: tensor}}}`` for tensors, and under ``'values'`` what
            describes the bucket as a whole: ``{role: {entry: plain values}}``.
        """
        saved: dict[str, Any] = {'values': {}}
        for role, entries in self.parts.items():
            tensors = saved[role] = {name: {} for name in self.spec.names}
            for name, entry in entries.items():
                held = self[role][name]
                if isinstance(entry, Values):
                    saved['values'].setdefault(role, {})[name] = copied(held)
                elif isinstance(entry, PerParameter):
                    for parameter, tensor in held.items():
                        tensors[parameter][name] = tensor.clone()
                else:
                    flat = self._expanded(held) if isinstance(entry, OwnedSlice) else held
                    for parameter, view in self.spec.views(flat):
                        tensors[parameter][name] = view.clone()
        return saved

    def load_state_dict(self, state: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned, for any division into buckets.

        Args:
            state: ``{role: {parameter: {entry: tensor}}}``; an entry that is missing is set to its
                initial value.
            values: ``{role: {entry: plain values}}`` of a bucket of the same parameters; empty
                where there was none, so that thresholds and the like start anew.

        Raises:
            ValueError: Where a saved tensor has another shape than the parameter.
        """
        for role, entries in self.parts.items():
            saved = state.get(role, {})
            for name, entry in entries.items():
                held = self[role][name]
                if isinstance(entry, Values):
                    held.clear()
                    held.update(copied(values.get(role, {}).get(name, {})))
                elif isinstance(entry, PerParameter):
                    for parameter, initial in self._initial(entry).items():
                        found = saved.get(parameter, {}).get(name)
                        fits = found is not None and found.shape == initial.shape
                        held[parameter].copy_(found if fits else initial)
                elif isinstance(entry, OwnedSlice):
                    flat = self._expanded(torch.zeros_like(held))
                    self._load_flat(flat, name, saved)
                    held.copy_(flat[slice(*self.owned)])
                else:
                    self._load_flat(held, name, saved)

    def _load_flat(self, flat: Tensor, entry: str, saved: Mapping[str, Any]) -> None:
        """Copy ``saved[parameter][entry]`` into each parameter's view of ``flat``."""
        for parameter, view in self.spec.views(flat):
            found = saved.get(parameter, {}).get(entry)
            if found is None:
                view.zero_()
            elif found.shape != view.shape:
                raise ValueError(
                    f'{entry} of {parameter} was saved with shape {tuple(found.shape)}, '
                    f'the parameter has {tuple(view.shape)}'
                )
            else:
                view.copy_(found)

    def _expanded(self, owned: Tensor) -> Tensor:
        """Return ``[n]`` that holds ``owned`` in this rank's slice and zeros elsewhere."""
        flat = torch.zeros(self.spec.numel, dtype=torch.float32, device=self.spec.device)
        flat[slice(*self.owned)] = owned
        return flat
