"""The state of all buckets as one dictionary: saved, restored, and merged for other world sizes.

{'memory' | 'compressor' | 'exchange' | 'transform' | 'codec': {parameter: {entry: tensor}},
 'buckets': [{'parameters': [name, …], 'values': {role: {entry: plain values}},
              'meaning': ``Composition.meaning``}],
 'resize': {role: {entry: what becomes of it at another world size}},
 'world_size': of the ranks that saved it}

Optimizers save it under a key of its rank, beside what is the same on all ranks, so that one rank's
state is never taken for another's, and the states of all ranks fit into one dictionary:

{'ranks': {'rank 0 of 2': as above, 'rank 1 of 2': …}}
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dgc.bucket_state import BucketState
from dgc.state import ROLES, Resize

KEY = re.compile(r'rank (\d+) of (\d+)')
EMPTY: Mapping[str, Any] = {'memory': {}, 'resize': {}}  # restores initial values


def save(states: Sequence[BucketState], meaning: Mapping[str, str]) -> dict[str, Any]:
    """Return copies of the state of all parts, by parameter name.

    Args:
        states: Of the buckets.
        meaning: ``Composition.meaning``.
    """
    saved: dict[str, Any] = {role: {} for role in ROLES}
    saved['buckets'] = []
    saved['resize'] = {role: {} for role in ROLES}
    for state in states:
        tensors = state.state_dict()
        values = tensors.pop('values')
        for role, by_parameter in tensors.items():
            saved[role].update(by_parameter)
        # Not beside 'resize': torch.distributed.checkpoint would then miss it in older folders.
        names = list(state.spec.names)
        own = {'parameters': names, 'values': values, 'meaning': dict(meaning)}
        saved['buckets'].append(own)
        for role, entries in state.parts.items():
            rules = {name: entry.resize.value for name, entry in entries.items()}
            saved['resize'][role].update(rules)
    return saved


def restore(
    states: Sequence[BucketState],
    saved: Mapping[str, Any],
    world_size: int,
    meaning: Mapping[str, str],
) -> None:
    """Restore what ``save`` or ``merge_states`` returned, for any division into buckets.

    Plain values are restored for buckets of the same parameters only; others are reset.

    Args:
        states: States of this run's buckets, changed in place.
        saved: What was saved by, or merged for, this rank.
        world_size: The number of ranks of this run.
        meaning: ``Composition.meaning`` of this run.

    Raises:
        ValueError: Where this composition has no memory for a saved residual or momentum, or would
            take it for something else.
    """
    if 'resize' not in saved:  # of an earlier version, whose other state cannot be used
        saved = {'memory': saved['memory'], 'resize': older_rules(saved)}
    if saved.get('world_size', world_size) != world_size:
        raise ValueError(
            f'the state is that of one of {saved["world_size"]} ranks, and there are {world_size} '
            "here: merge all ranks' states (dgc.saved_state.merge_states)"
        )
    check_places(states, saved)
    check_meaning(states, saved, meaning)
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


def check_meaning(
    states: Sequence[BucketState], saved: Mapping[str, Any], meaning: Mapping[str, str]
) -> None:
    """Raise ValueError where this composition would take saved residuals for something else."""
    places = {name: state for state in states for name in state.spec.names}
    for bucket in saved.get('buckets', []):
        theirs = bucket.get('meaning', meaning)  # not known of an earlier version's
        if theirs == meaning:
            continue
        for name in bucket['parameters']:
            for role, entry in places[name].of_elements if name in places else ():
                held = saved.get(role, {}).get(name, {}).get(entry)
                if held is not None and held.any():
                    raise ValueError(
                        f'the saved {entry} of {name} is that of {described(theirs)}, and would '
                        f'be taken for that of {described(meaning)}: resume with the memory and '
                        'the transform that the state was saved with'
                    )


def described(meaning: Mapping[str, str]) -> str:
    """Return a composition's meaning as text: 'memory Residual, transform Identity'."""
    return ', '.join(f'{role} {name}' for role, name in meaning.items())


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
        merged['buckets'].append({**bucket, 'values': values})
    return merged


def labelled(saved: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return the state of one rank under a key of its own.

    Args:
        saved: ``Reducer.state_dict()`` of ``rank``.
        rank: The rank that saves it.
    """
    # torch.distributed.checkpoint loads a tuple as one value. Of dictionaries in a list it loads
    # only the entries that a new optimizer has already.
    own = {**saved, 'buckets': tuple(saved['buckets'])}
    return {'ranks': {f'rank {rank} of {saved["world_size"]}': own}}


def share_of(saved: Mapping[str, Any], rank: int, size: int) -> Mapping[str, Any]:
    """Return this rank's share of a state with any number of ranks' states.

    The states of all ranks serve any world size. One rank's state serves that rank. Another rank
    of the same world size takes from it what is the same on all ranks, and starts with an empty
    memory: residuals of one rank that several ranks load would be applied several times.

    Args:
        saved: What an optimizer's ``state_dict()`` or ``gather_state_dict()`` returned; of earlier
            versions, with one rank's state at the top.
        rank, size: Of this rank.

    Returns:
        What ``restore`` takes.

    Raises:
        ValueError: Where ``saved`` has no rank's state, or those of some of the ranks of another
            world size.
    """
    if 'ranks' not in saved and 'memory' in saved:
        return saved
    states = by_rank(saved)
    others = next(iter(states))[1]
    if len(states) == others:
        return merge_states([states[each, others] for each in range(others)], rank, size)
    if (rank, size) in states:
        return states[rank, size]
    ranks = ', '.join(str(each) for each, _ in states)
    if others != size:
        raise ValueError(
            f'the state is that of rank {ranks} of {others}, and there are {size} ranks here: '
            "save gather_state_dict(), which has all ranks' residuals, or load only its 'state' "
            "and 'param_groups' to start with an empty memory"
        )
    warnings.warn(
        f'rank {rank} of {size} loads the state of rank {ranks}, whose residuals would be applied '
        f'twice: the memory of rank {rank} starts empty, and the gradients that it had not sent '
        'are lost. Save the states of all ranks: gather_state_dict(), or one file per rank',
        stacklevel=4,
    )
    return without_residuals(next(iter(states.values())))


def has_memory(saved: Mapping[str, Any]) -> bool:
    """Return whether ``saved`` has the state of any rank's parts, as no plain optimizer's has."""
    return 'ranks' in saved or 'memory' in saved


def state_of_wrapped(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the wrapped optimizer's own state: 'state' and 'param_groups'.

    Args:
        saved: What ``DistributedOptimizer.state_dict()`` returned, that of an earlier version, or
            the state of a plain optimizer.

    Raises:
        ValueError: Where ``saved`` has no such state, or lacks entries that were saved.
    """
    is_older = 'memory' in saved and 'optimizer' in saved
    found = saved['optimizer'] if is_older else saved
    # torch.distributed.checkpoint leaves out empty dictionaries: the state of DGCSGD is one.
    known_empty = saved.get('entries') == 0
    if 'param_groups' not in found or not ('state' in found or known_empty):
        raise ValueError(
            f"load_state_dict() needs an optimizer's state with 'state' and 'param_groups', and "
            f'got {", ".join(map(str, saved)) or "an empty dictionary"}'
        )
    state: dict[Any, dict[str, Any]] = {}
    for key, entries in found.get('state', {}).items():  # there keys are strings
        number = int(key) if isinstance(key, str) and key.isdigit() else key
        state.setdefault(number, {}).update(entries)
    entries, expected = count_entries(state), saved.get('entries', 0)
    if entries < expected:
        raise ValueError(
            f"the state has {entries} of the {expected} entries of the wrapped optimizer's state "
            'that were saved. torch.distributed.checkpoint.load() reads only entries that the '
            'optimizer has already: convert the checkpoint with '
            'torch.distributed.checkpoint.format_utils.dcp_to_torch_save, and load that file'
        )
    return {'state': state, 'param_groups': found['param_groups']}


def count_entries(state: Mapping[Any, Mapping[str, Any]]) -> int:
    """Return the number of entries in an optimizer's state of all parameters."""
    return sum(len(entries) for entries in state.values())


def by_rank(saved: Mapping[str, Any]) -> dict[tuple[int, int], Mapping[str, Any]]:
    """Return the states in ``saved`` by rank and world size.

    Raises:
        ValueError: For a key that names no rank, and where there is none, or several world sizes.
    """
    states, ranks = {}, saved.get('ranks', {})
    for key, state in ranks.items():
        match = KEY.fullmatch(key)
        if match is None:
            raise ValueError(f"the state has {key!r} in 'ranks': expected such as 'rank 0 of 2'")
        states[int(match[1]), int(match[2])] = state
    if len({size for _, size in states}) != 1:
        raise ValueError(
            f"the state has {', '.join(ranks) or 'nothing'} in 'ranks': expected ranks of "
            'one world size'
        )
    return dict(sorted(states.items()))


def join_ranks(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of all ranks: the first one's, with the 'ranks' of all."""
    ranks = {key: each for state in states for key, each in state['ranks'].items()}
    return {**states[0], 'ranks': ranks}


def without_residuals(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return one rank's state for another rank of the same world size.

    Tensors that are not the same on all ranks are removed. Plain values stay, since some of them
    decide which collectives a rank makes.
    """
    kept = dict(saved)
    for role, rules in saved['resize'].items():
        same = {entry for entry, rule in rules.items() if rule == Resize.REPLICATED}
        kept[role] = {
            name: {entry: tensor for entry, tensor in entries.items() if entry in same}
            for name, entries in saved.get(role, {}).items()
        }
    return kept


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
    """Compute ``target[name][entry] = scale · Σ states[role][name][entry]``, of bfloat16 tensors in
    float32."""
    for state in states:
        for name, entries in state.get(role, {}).items():
            if entry in entries:
                saved = entries[entry]
                scaled = (saved.float() if saved.dtype == torch.bfloat16 else saved) * scale
                of_parameter = target.setdefault(name, {})
                of_parameter[entry] = (
                    of_parameter[entry] + scaled if entry in of_parameter else scaled
                )
