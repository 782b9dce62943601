"""What a part remembers between steps, and how that follows a change of the world size.

Every part of a composition (memory, compressor, exchange, transform) is a rule without storage.
``state_for(spec)`` declares what the part remembers of one bucket; the bucket allocates it, saves
it by parameter name and restores it, so that a later run may plan its buckets differently:

    Elements       float32 [n], one number per element       saved by parameter
    PerParameter   one tensor per parameter, of any shape    saved by parameter
    OwnedSlice     float32, the rank's slice of [n]          saved by parameter
    Values         plain numbers that describe the bucket    saved with the bucket's names; a bucket
                                                             of other parameters starts anew

Each entry declares what becomes of it when a run resumes with another number of ranks:

    SUM            the ranks' entries add up to something that is divided by the world size
                   (residuals): new ranks share the sums, scaled by new / old world size
    REPLICATED     equal on all ranks: every new rank takes rank 0's
    PER_RANK       meaningful for one rank of one world size only: starts anew
    OWNER_SLICE    each rank holds the slice that it owns: slices are cut anew
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor

from dgc.bucket_spec import MemberSpec


class Resize(str, Enum):
    """How an entry follows a change of the number of ranks; see the module's table."""

    SUM = 'sum'
    REPLICATED = 'replicated'
    PER_RANK = 'per rank'
    OWNER_SLICE = "owner's slice"


@dataclass(frozen=True)
class Elements:
    """A float32 tensor ``[n]`` of zeros: one number for each element of the bucket."""

    resize: Resize = Resize.SUM


@dataclass(frozen=True)
class PerParameter:
    """One tensor for each parameter for which ``initial(member)`` returns one."""

    initial: Callable[[MemberSpec], Tensor | None]
    resize: Resize = Resize.REPLICATED


@dataclass(frozen=True)
class OwnedSlice:
    """A float32 tensor of zeros: the slice of ``[n]`` that this rank owns (``owned_range``)."""

    resize: Resize = Resize.OWNER_SLICE


@dataclass(frozen=True)
class Values:
    """A dictionary of plain numbers, strings and lists, empty at first."""

    resize: Resize = Resize.PER_RANK


Entry = Elements | PerParameter | OwnedSlice | Values
Entries = Mapping[str, Entry]  # entry name → what it is
ROLES = ('memory', 'compressor', 'exchange', 'transform', 'codec')


def owned_range(numel: int, rank: int, size: int) -> tuple[int, int]:
    """Return the first and the last (exclusive) of the elements that ``rank`` of ``size`` owns."""
    return rank * numel // size, (rank + 1) * numel // size


def merge_states(states: Sequence[Mapping[str, Any]], rank: int, size: int) -> dict[str, Any]:
    """Compute one rank's state from those that another number of ranks saved.

    Args:
        states: ``Reducer.state_dict()`` of every old rank, in order of rank.
        rank, size: Of the new rank, and the new world size.

    Returns:
        What ``Reducer.load_state_dict`` takes. Entries that are meaningful for one rank of the old
        world size only are left out, and start anew.
    """
    old = len(states)
    rules: Mapping[str, Mapping[str, str]] = states[0].get('resize') or older_rules(states[0])
    if old == size:
        # Which elements a rank owns depends on the division into buckets, which may differ.
        own = {**states[rank], 'has_all_slices': True}
        for role, entries in rules.items():
            owned = [entry for entry, rule in entries.items() if rule == Resize.OWNER_SLICE]
            own[role] = {name: dict(tensors) for name, tensors in own.get(role, {}).items()}
            for entry in owned:
                for tensors in own[role].values():
                    tensors.pop(entry, None)
                _add_up(own[role], role, entry, states, 1.0)
        return own
    merged: dict[str, Any] = {'resize': rules, 'buckets': [], 'has_all_slices': True}
    for role in ROLES:
        merged[role] = {}
        for entry, rule in rules.get(role, {}).items():
            if rule == Resize.SUM:
                # A residual is divided by the world size when it is sent: new / old keeps its
                # weight in the mean.
                _add_up(merged[role], role, entry, states[rank::size], size / old)
            elif rule == Resize.OWNER_SLICE:
                _add_up(merged[role], role, entry, states, 1.0)
            elif rule == Resize.REPLICATED:
                _add_up(merged[role], role, entry, states[:1], 1.0)
    for bucket in states[0].get('buckets', []):
        values = {
            role: {e: v for e, v in entries.items() if rules[role][e] == Resize.REPLICATED}
            for role, entries in bucket['values'].items()
        }
        merged['buckets'].append({'parameters': bucket['parameters'], 'values': values})
    return merged


def older_rules(state: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the rules of a state without them, from a version whose memories all added up."""
    entries = {entry for tensors in state['memory'].values() for entry in tensors}
    return {'memory': dict.fromkeys(sorted(entries), Resize.SUM.value)}


def _add_up(
    target: dict[str, dict[str, Tensor]],
    role: str,
    entry: str,
    states: Sequence[Mapping[str, Any]],
    scale: float,
) -> None:
    """``target[name][entry] = scale · Σ states[role][name][entry]``."""
    for state in states:
        for name, entries in state.get(role, {}).items():
            if entry in entries:
                scaled = entries[entry] * scale
                of_parameter = target.setdefault(name, {})
                of_parameter[entry] = (
                    of_parameter[entry] + scaled if entry in of_parameter else scaled
                )


def copied(value: Any) -> Any:
    """Return a copy of tensors, dictionaries of tensors, and plain values."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return copy.deepcopy(value)
