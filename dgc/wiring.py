"""Creates a reducer from an optimizer, named parameters and a composition.

Shared by DistributedOptimizer, DDP hooks and LocalSteps: checks, the handshake of the ranks, the
measurements that a planner needs, the plan, and the storage of its buckets.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.buckets import Bucket
from dgc.calibration import calibrate_path
from dgc.checks import check_number, check_part, shortened
from dgc.composition import Composition, describe
from dgc.engines.base import Engine
from dgc.engines.torch_distributed import check_size
from dgc.handshake import describe_parameters, shake_hands
from dgc.memory import AveragedMomentum
from dgc.optim import DGCSGD, OneBitAdam
from dgc.planner import Plan, PlanRequest
from dgc.planner.broadcast import broadcast_json
from dgc.planner.forecast import Forecast, Timing
from dgc.planner.plan import read_on_rank_0
from dgc.profile import Profile
from dgc.reducer import Reducer, is_pipelined
from dgc.schedule import lasting_beta2
from dgc.state import Entries

AVERAGED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

Named = tuple[str, Parameter, dict[str, Any]]  # a name, its parameter, the optimizer's group


class HasGroups(Protocol):
    """An optimizer, or several, by their parameter groups."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Settings, and under 'params' the parameters."""


class Wired(NamedTuple):
    """A reducer that is ready to run, and the plan of its buckets."""

    reducer: Reducer
    plan: Plan


def check(
    optimizer: Optimizer,
    named: Sequence[tuple[str, Parameter]],
    composition: Composition,
    steps_per_epoch: int | None,
) -> None:
    """Raise TypeError or ValueError where a setting is of a wrong type, or settings contradict each
    other."""
    check_part('optimizer', optimizer, Optimizer, 'torch.optim.SGD(model.parameters(), lr=0.1)')
    check_part('composition', composition, Composition, 'dgc.deep_gradient_compression(0.001)')
    check_names(optimizer, named)
    check_dtypes(trained(optimizer, named))
    composition.rules.check_patterns([name for name, _ in named])
    check_momentum(optimizer, composition)
    check_second_moment(optimizer, composition)
    check_schedule(composition, steps_per_epoch)


def check_schedule(composition: Composition, steps_per_epoch: int | None) -> None:
    """Raise ValueError for a warm-up in epochs of unknown length."""
    schedule = composition.schedule
    if schedule.warmup_epochs and not (steps_per_epoch or schedule.stage_steps):
        raise ValueError(
            'a warm-up in epochs needs steps_per_epoch: give it, or set warmup_steps in place of '
            'warmup_epochs'
        )


def wire(
    optimizer: HasGroups,
    named: Sequence[tuple[str, Parameter]],
    composition: Composition,
    engine: Engine,
    steps_per_epoch: int | None = None,
    configuration: str = '',
    profile: Callable[[], Profile] | None = None,
    agreed: Mapping[str, str] | None = None,
) -> Wired:
    """Compare the ranks, plan the buckets and allocate their storage. A collective.

    Where another reducer uses ``engine``, the new one has a duplicate of it.

    Args:
        optimizer: Its groups contain the trained parameters.
        named: The model's parameters, in the same order on all ranks.
        composition: The parts that process gradients.
        engine: Carries messages.
        steps_per_epoch: The number of optimizer steps in an epoch of the composition's schedule.
        configuration: Any text that must be the same on all ranks.
        profile: Measures a step of the model, for planners that need times; see ``dgc.profile``.
        agreed: Further aspects that must be the same on all ranks: name → text.

    Raises:
        TypeError: Where ``engine`` is none.
        ValueError: Where nothing is trained, or the composition cannot serve these ranks.
        RuntimeError: Where another optimizer on the engine has begun a step.
        EngineError: Where the engine has fewer ranks than the default process group, or can serve
            one optimizer only and does.
        HandshakeError: Where ranks differ.
    """
    check_part('engine', engine, Engine, 'dgc.create()')
    if engine.name in ('local', 'horovod'):
        check_size(engine)
    other = engine.user()
    if isinstance(other, Reducer) and other.has_begun:
        raise RuntimeError(
            'another optimizer on this engine is between backward() and step(), while its messages '
            'may be under way: create all optimizers before the first backward(), or after step()'
        )
    device = named[0][1].device
    aspects = describe_parameters(named, configuration) | dict(agreed or {})
    aspects |= composition.fingerprint(steps_per_epoch)
    parameters = trained(optimizer, named)
    aspects['which parameters are trained'] = '\n'.join(name for name, _, _ in parameters)
    aspects['the optimizer'] = f'{type(optimizer).__name__} {describe(settings(optimizer))}'
    # Planning is a collective where the planner needs something: all ranks must need the same.
    planner = composition.planner
    needs = planner.needs_timing, planner.saved_plan is None, profile is None
    aspects['the planner'] = f'{describe(planner)} {needs}'
    shake_hands(engine, aspects, device)
    engine = engine.for_reducer(device)
    if not parameters:
        raise ValueError('no parameter needs a gradient: there is nothing to train')
    # Before planning, since bytes may depend on how many ranks a machine has.
    composition.exchange.check(engine, device)
    plan = make_plan(parameters, composition, engine, profile)
    shake_hands(engine, {'the division into buckets': comparable(plan.buckets)}, device)
    composition.memory.check_buckets(plan.buckets)
    compressed = [bucket for bucket in plan.buckets if bucket.schedule is not None]
    composition.compressor.check_buckets(compressed)
    buckets = allocate(plan.buckets, parameters, composition, engine)
    reducer = Reducer(buckets, composition, engine)
    engine.user = weakref.ref(reducer)
    return Wired(reducer, plan)


def comparable(buckets: Sequence[BucketSpec]) -> str:
    """Return what ranks must have alike of a plan, as text.

    Devices are numbered per machine: rank 1 may have cuda:1 where rank 0 has cuda:0.
    """
    return repr([replace(each, device=torch.device(each.device.type)) for each in buckets])


def make_plan(
    parameters: Sequence[Named],
    composition: Composition,
    engine: Engine,
    profile: Callable[[], Profile] | None,
) -> Plan:
    """Return the planner's plan, after the measurements it needs. A collective if it needs any.

    Raises:
        ValueError: Where the planner needs a profile and there is none.
        PlanError: Where a saved plan cannot be used.
    """
    planner, device = composition.planner, parameters[0][1].device
    specs = [spec_of(named) for named in parameters]
    request = PlanRequest(specs, composition.rules, composition.schedule, engine.size)
    if planner.saved_plan is not None:
        request = replace(request, saved=read_on_rank_0(planner.saved_plan, engine, device))
    timing = None
    if planner.needs_timing:
        timing = planner.saved_timing(request)
        if timing is None and profile is not None:
            timing = measure(composition, engine, specs, profile)
        if timing is not None:
            volume = composition.volume
            parts = volume.exchange, volume.codec, volume.compressor, volume.always_sparse
            request = replace(request, forecast=Forecast(timing, *parts))
    buckets = planner.plan(request)
    return Plan(buckets, planner.predicted(request, buckets), timing)


def measure(
    composition: Composition,
    engine: Engine,
    parameters: Sequence[ParameterSpec],
    profile: Callable[[], Profile],
) -> Timing:
    """Measure a step of the model and the composition's costs; rank 0's numbers. A collective."""
    device = parameters[0].device
    found = profile()
    numel = sum(parameter.numel for parameter in parameters)
    costs = calibrate_path(composition, engine, numel, device)
    pipelined = is_pipelined(composition, engine, device)
    timing = Timing(found.arrivals, found.backward, costs, pipelined).to_json()
    return Timing.from_json(broadcast_json(engine, timing, device))


class HasState(Protocol):
    """The part of a composition's interface that declares state."""

    def state_for(self, spec: BucketSpec) -> Mapping[str, Entries]:
        """Return the declared state of each part, by the part's role."""


def allocate(
    specs: Sequence[BucketSpec],
    parameters: Iterable[Named],
    composition: HasState,
    engine: Engine,
) -> list[Bucket]:
    """Allocate the storage of planned buckets, and of the state of a composition's parts."""
    live = {name: (parameter, group) for name, parameter, group in parameters}
    return [
        Bucket(
            spec,
            [live[name] for name in spec.names],
            composition.state_for(spec),
            engine.rank,
            engine.size,
        )
        for spec in specs
    ]


def spec_of(named: Named) -> ParameterSpec:
    """Return the ``ParameterSpec`` of a parameter and its group."""
    name, parameter, group = named
    return ParameterSpec(
        name,
        tuple(parameter.shape),
        parameter.dtype,
        parameter.device,
        group.get('momentum', 0.0),
        group.get('nesterov', False),
    )


def settings(optimizer: HasGroups) -> list[dict[str, Any]]:
    """Return the settings of an optimizer's groups, without parameters and tensors."""
    return [
        {key: value for key, value in group.items() if not isinstance(value, torch.Tensor | list)}
        for group in optimizer.param_groups
    ]


def groups_of(optimizer: HasGroups) -> dict[Parameter, dict[str, Any]]:
    """Return the parameters that ``optimizer`` updates, each with its group."""
    return {p: group for group in optimizer.param_groups for p in group['params']}


def regroup(buckets: Sequence[Bucket], optimizer: Optimizer) -> None:
    """Set every member's group to the one that ``optimizer`` has its parameter in now."""
    groups = groups_of(optimizer)
    for bucket in buckets:
        bucket.members = [m._replace(group=groups[m.parameter]) for m in bucket.members]


def trained(optimizer: HasGroups, named: Iterable[tuple[str, Parameter]]) -> list[Named]:
    """Return those of ``named`` that ``optimizer`` trains, each with its group."""
    groups = groups_of(optimizer)
    return [(name, p, groups[p]) for name, p in named if p.requires_grad and p in groups]


def pairs(named_parameters: Iterable[tuple[str, Parameter]]) -> list[tuple[str, Parameter]]:
    """Return ``named_parameters`` as a list.

    Raises:
        TypeError: Where that is not pairs of a name and a parameter.
        ValueError: Where there are none.
    """
    if isinstance(named_parameters, Mapping):
        named_parameters = named_parameters.items()
    wanted = 'named_parameters must be pairs of a name and a parameter'
    remedy = 'write named_parameters=model.named_parameters()'
    if not isinstance(named_parameters, Iterable) or isinstance(named_parameters, Tensor):
        raise TypeError(f'{wanted}, got {shortened(named_parameters)}: {remedy}')
    named = list(named_parameters)
    for each in named:
        is_pair = isinstance(each, tuple | list) and len(each) == 2
        if not (is_pair and isinstance(each[0], str) and isinstance(each[1], Tensor)):
            what = 'as of model.parameters(), ' if isinstance(each, Tensor) else ''
            raise TypeError(f'{wanted}, got {shortened(each)}, {what}among them: {remedy}')
    if not named:
        raise ValueError(f'named_parameters is empty; a generator can be read only once: {remedy}')
    return named


def with_names(
    optimizer: Optimizer, named_parameters: Iterable[tuple[str, Parameter]] | None
) -> list[tuple[str, Parameter]]:
    """Return ``named_parameters``, or those of ``optimizer`` by their place in its groups."""
    if named_parameters is not None:
        return pairs(named_parameters)
    check_part('optimizer', optimizer, Optimizer, 'torch.optim.SGD(model.parameters(), lr=0.1)')
    return [
        (f'parameter {index} of group {number}', parameter)
        for number, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group['params'])
    ]


def check_batches(batches_per_step: int) -> None:
    """Raise ValueError for fewer than one backward pass per step."""
    check_number('batches_per_step', batches_per_step)
    if batches_per_step < 1:
        raise ValueError(f'batches_per_step must be at least 1, got {batches_per_step}')


def check_dtypes(parameters: Sequence[Named]) -> None:
    """Raise ValueError for parameters of a type whose gradients cannot be averaged as float32; warn
    of those that lose precision.

    Residuals, messages and sums are float32.
    """
    for dtype in dict.fromkeys(parameter.dtype for _, parameter, _ in parameters):
        names = some([name for name, parameter, _ in parameters if parameter.dtype == dtype])
        kind = str(dtype).removeprefix('torch.')
        if dtype.is_complex:
            raise ValueError(
                f'the type {kind} of {names} is not supported, since the imaginary part of its '
                'gradient would be lost: make it a real parameter of pairs '
                '(torch.view_as_real; torch.view_as_complex in forward), or freeze it'
            )
        if dtype not in AVERAGED:
            raise ValueError(
                f'the type {kind} of {names} is not supported: train it in '
                'float32, bfloat16 or float16'
            )
        if dtype == torch.float64:
            warnings.warn(
                f'the float64 gradients of {names} are averaged in float32, with a relative error '
                'of 6e-8: train in float32, or without this wrapper where that is too much',
                stacklevel=4,
            )


def some(names: Sequence[str], most: int = 5) -> str:
    """Return the first ``most`` names, and how many there are beside them."""
    more = len(names) - most
    return ', '.join(names[:most]) + (f' and {more} more' if more > 0 else '')


def check_names(optimizer: Optimizer, named: Sequence[tuple[str, Parameter]]) -> None:
    """Raise ValueError where a name is missing or used twice: state is saved by name."""
    counts = Counter(name for name, _ in named)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise ValueError(f'named_parameters has two of {", ".join(twice)}')
    known = {parameter: name for name, parameter in reversed(named)}
    aliases = [f'{known[p]} and {name}' for name, p in named if known[p] != name]
    if aliases:
        raise ValueError(f'named_parameters has one parameter as {", ".join(aliases)}')
    missing = [
        f'parameter {index} {tuple(parameter.shape)} of group {number}'
        for number, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group['params'])
        if parameter not in known
    ]
    if missing:
        raise ValueError(f'named_parameters lacks what the optimizer updates: {", ".join(missing)}')


def check_momentum(optimizer: Optimizer, composition: Composition) -> None:
    """Raise ValueError where momentum would be applied twice, or not at all."""
    memory, exchange = type(composition.memory).__name__, type(composition.exchange).__name__
    check_present_momentum(optimizer, composition)
    composition.memory.check_optimizer(optimizer)
    if isinstance(optimizer, OneBitAdam) and not isinstance(composition.memory, AveragedMomentum):
        raise ValueError(
            f'OneBitAdam expects momenta from the memory and {memory} sends none: use '
            'AveragedMomentum (the composition one_bit_adam), or torch.optim.Adam'
        )
    if composition.ignores_values:
        warnings.warn(
            f'values={composition.codec.values!r} has no effect with {exchange}, which sends '
            'float32 without a codec: leave it out',
            stacklevel=3,
        )
    if composition.loses_gradient:
        message = f'{memory} loses whatever is not sent: use Residual or MomentumCorrection'
        if composition.exchange.loses:
            message = f'{exchange} loses part of what it cuts: use GlobalResiduals'
        warnings.warn(message, stacklevel=3)


def check_present_momentum(optimizer: Optimizer, composition: Composition) -> None:
    """Raise ValueError where the momentum that the groups have now is applied twice, or not at all.

    Schedulers may change it: ``OneCycleLR`` sets that of an SGD without momentum to 0.95.
    """
    for group in optimizer.param_groups:
        composition.memory.check(group.get('momentum', 0.0), group.get('nesterov', False))
    check_momentum_once(optimizer, optimizer.param_groups, composition)


def check_momentum_once(
    optimizer: Optimizer, groups: Iterable[Mapping[str, Any]], composition: Composition
) -> None:
    """Raise ValueError where ``optimizer``, with the settings of ``groups``, and the memory would
    apply momentum twice, or not at all."""
    memory = type(composition.memory).__name__
    has_momentum = any(group.get('momentum', 0) for group in groups)
    if composition.memory.holds_momentum and not isinstance(optimizer, DGCSGD) and has_momentum:
        remedy = 'dgc.DGCSGD' if isinstance(optimizer, torch.optim.SGD) else 'the memory Residual'
        raise ValueError(
            f'{memory} holds the momentum and {type(optimizer).__name__} would apply it again: '
            f'use {remedy}, or momentum=0'
        )
    if isinstance(optimizer, DGCSGD):
        optimizer.has_memory = composition.memory.holds_momentum
    if isinstance(optimizer, DGCSGD) and has_momentum and not composition.memory.holds_momentum:
        raise ValueError(
            f'DGCSGD leaves momentum to the memory and {memory} has none: use torch.optim.SGD, '
            'or MomentumCorrection'
        )


def forget_memory(optimizer: Optimizer) -> None:
    """Let a DGCSGD that is no longer wrapped warn of a momentum that no memory applies."""
    if isinstance(optimizer, DGCSGD):
        optimizer.has_memory = False


def check_second_moment(optimizer: Optimizer, composition: Composition) -> None:
    """Warn where Adam and its relatives forget an element's square before the next one arrives.

    At a density ρ an element arrives about every 1/ρ steps, as a sum of as many gradients. The
    second moment is an average over about 1/(1 - beta2) steps. Where that is shorter, the square is
    almost gone when the next one comes: each arrival is divided by itself, and steps are as short
    for a large element as for a small one (measured: docs/optimizers.md).
    """
    density = composition.schedule.density
    found = [g['betas'] for g in optimizer.param_groups if 'betas' in g and 'eps' in g]
    if density is None or not found:
        return
    beta1, least = min(found, key=lambda betas: betas[1])[:2]
    if 1 - least <= density * (1 + 1e-6):
        return
    warnings.warn(
        f'{type(optimizer).__name__} with beta2={least:g} averages squared gradients over about '
        f'{1 / (1 - least):.0f} steps, and at a density of {100 * density:g} % an element arrives '
        f'only about every {1 / density:.0f} steps: '
        f'set betas={(float(beta1), lasting_beta2(density))}',
        stacklevel=4,
    )
