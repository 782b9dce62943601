"""The state of all buckets as one dictionary: saved, restored, and merged for other world sizes.

{'memory' | 'compressor' | 'exchange' | 'transform' | 'codec': {parameter: {entry: tensor}},
 'buckets': [{'parameters': [name, …], 'values': {role: {entry: plain values}}}],
 'resize': {role: {entry: what becomes of it at another world size}}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from dgc.bucket_state import BucketState
from dgc.state import ROLES, Resize


def save(states: Sequence[BucketState]) -> dict[str, Any]:
    """Return copies of the state of all parts, by parameter name."""
    saved: dict[str, Any] = {role: {} for role in ROLES}
    saved['buckets'] = []
    saved['resize'] = {role: {} for role in ROLES}
    for state in states:
        tensors = state.state_dict()
        values = tensors.pop('values')
        for role, by_parameter in tensors.items():
            saved[role].update(by_parameter)
        saved['buckets'].append({'parameters': list(state.spec.names), 'values': values})
        for role, entries in state.parts.items():
            rules = {name: entry.resize.value for name, entry in entries.items()}
            saved['resize'][role].update(rules)
    return saved


def restore(states: Sequence[BucketState], saved: Mapping[str, Any], world_size: int) -> None:
    """Restore what ``save`` or ``merge_states`` returned, for any division into buckets.

    Plain values are restored for buckets of the same parameters only; others are reset.

    Args:
        states: States of this run's buckets, changed in place.
        saved: What was saved by, or merged for, this rank.
        world_size: The number of ranks of this run.

    Raises:
        ValueError: Where this composition has no memory for a saved residual or momentum.
    """
    if 'resize' not in saved:  # of an earlier version, whose other state cannot be used
        saved = {'memory': saved['memory'], 'resize': older_rules(saved)}
    if saved.get('world_size', world_size) != world_size:
        raise ValueError(
            f'the state is that of one of {saved["world_size"]} ranks, and there are {world_size} '
            "here: merge all ranks' states (dgc.saved_state.merge_states)"
        )
    check_places(states, saved)
    check_slices(states, saved, world_size)
    values = {tuple(each['parameters']): each['values'] for each in saved.get('buckets', [])}
    for state in states:
        state.load_state_dict(saved, values.get(state.spec.names, {}))


def check_places(states: Sequence[BucketState], saved: Mapping[str, Any]) -> None:
    """Raise ValueError where this composition has no memory for saved residuals."""
    places = {name: state.parts for state in states for name in state.spec.names}
    for role in ROLES:
        rules = saved.get('resize', {}).get(role, {})
        for name, entries in saved.get(role, {}).items():
            for entry in entries.keys() - places.get(name, {}).get(role, {}).keys():
                if rules.get(entry, Resize.SUM) in (Resize.SUM, Resize.OWNER_SLICE):
                    raise ValueError(
                        f'the saved {entry} of {name} would be lost: resume with the model and '
                        f'the {role} that the state was saved with'
                    )


def check_slices(states: Sequence[BucketState], saved: Mapping[str, Any], world_size: int) -> None:
    """Raise ValueError where a rank's saved slices belong to another division into buckets."""
    rules = [rule for role in saved.get('resize', {}).values() for rule in role.values()]
    is_complete = saved.get('has_all_slices') or world_size == 1
    if is_complete or Resize.OWNER_SLICE.value not in rules:
        return
    if [tuple(each['parameters']) for each in saved['buckets']] != [s.spec.names for s in states]:
        raise ValueError(
            'the state holds slices that this rank owned, of other buckets than those of this '
            "run: merge all ranks' states (dgc.saved_state.merge_states), or replay the saved plan"
        )


def merge_states(states: Sequence[Mapping[str, Any]], rank: int, size: int) -> dict[str, Any]:
    """Compute one rank's state from those that another number of ranks saved.

    Args:
        states: ``Reducer.state_dict()`` of every old rank, in order of rank.
        rank, size: Of the new rank, and the new world size.

    Returns:
        What ``Reducer.load_state_dict`` takes. Entries that are meaningful for one rank of the old
        world size only are removed, and reset to their initial values.
    """
    old = len(states)
    rules: Mapping[str, Mapping[str, str]] = states[0].get('resize') or older_rules(states[0])
    if old == size:
        # Which elements a rank owns depends on the division into buckets, which may differ.
        own = {**states[rank], 'has_all_slices': True, 'world_size': size}
        for role, entries in rules.items():
            owned = [entry for entry, rule in entries.items() if rule == Resize.OWNER_SLICE]
            own[role] = {name: dict(tensors) for name, tensors in own.get(role, {}).items()}
            for entry in owned:
                for tensors in own[role].values():
                    tensors.pop(entry, None)
                _add_up(own[role], role, entry, states, 1.0)
        return own
    merged: dict[str, Any] = {'resize': rules, 'buckets': [], 'has_all_slices': True}
    merged['world_size'] = size
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
    """Return the resize rules of a state saved by a version without them: SUM for all memories."""
    entries = {entry for tensors in state['memory'].values() for entry in tensors}
    return {'memory': dict.fromkeys(sorted(entries), Resize.SUM.value)}


def _add_up(
    target: dict[str, dict[str, Tensor]],
    role: str,
    entry: str,
    states: Sequence[Mapping[str, Any]],
    scale: float,
) -> None:
    """Compute ``target[name][entry] = scale · Σ states[role][name][entry]``."""
    for state in states:
        for name, entries in state.get(role, {}).items():
            if entry in entries:
                scaled = entries[entry] * scale
                of_parameter = target.setdefault(name, {})
                of_parameter[entry] = (
                    of_parameter[entry] + scaled if entry in of_parameter else scaled
                )
