"""Checkpoints: one file per rank and position, written completely or not at all.

    checkpoints/e0004.r1of2.pth            all that rank 1 of 2 needs to go on after epoch 4
    checkpoints/e0005.s000120.r1of2.pth    the same after 120 steps of epoch 5
    checkpoints/best.txt                   the epoch whose metric was best

Every rank writes the residuals of its memory and, so that machines need not share a file system,
its own copy of everything else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dgc import Engine
from dgc.handshake import gather_text
from dgc.saved_state import join_ranks, merge_states
from utils import sealed
from utils.files import replacing
from utils.naming import AT
from utils.sealed import Unusable

NAME = re.compile(r'e(\d+)(?:\.s(\d+))?\.r(\d+)of(\d+)\.pth')
KEEP_EPOCHS = 3  # besides the best one
KEEP_STEPS = 2  # checkpoints within an epoch
LONGEST = 600  # bytes of a reason that ranks exchange
NAMED = 3  # rejected checkpoints in one line

log = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """There is no checkpoint from which all ranks can continue."""


class Misfit(Unusable):
    """A file with the state of another model."""


class Position(NamedTuple):
    """How far a run has come; later positions compare greater.

    Attributes:
        epochs: Complete epochs.
        step: Optimizer steps of the epoch that follows them.
    """

    epochs: int
    step: int = 0

    @property
    def epoch(self) -> int:
        """The epoch to which the last step belongs, counted from 0."""
        return self.epochs if self.step else self.epochs - 1

    def __str__(self) -> str:
        return f'e{self.epoch:04d}.s{self.step:06d}' if self.step else f'e{self.epoch:04d}'


def file_name(position: Position, rank: int, size: int) -> str:
    """The name of a checkpoint, which ``NAME`` matches."""
    return f'{position}.r{rank}of{size}.pth'


def load_whole(path: Path, remedy: str) -> dict[str, Any]:
    """Read what was saved in ``path``. Raises CheckpointError, with a remedy, if it is unusable."""
    try:
        return sealed.read(path)
    except Unusable as error:
        raise CheckpointError(f'{path} {error}: {remedy}') from error


def shapes(state: Mapping[str, Any]) -> dict[str, str]:
    """Type and shape of each tensor of a model's state, by name."""
    return {
        name: f'{str(value.dtype).removeprefix("torch.")} {tuple(value.shape)}'
        for name, value in state.items()
        if isinstance(value, Tensor)
    }


def model_digest(state: Mapping[str, Any]) -> str:
    """A digest of the names, types and shapes of a model's tensors."""
    return hashlib.sha256(json.dumps(sorted(shapes(state).items())).encode()).hexdigest()[:16]


class Checkpoints:
    """The checkpoints of one run in the file system of one rank.

    Args:
        folder: Where they are.
        rank, size: Of this rank.
        start: A text that the ranks of a run have in common, and no other start of a run has.
    """

    def __init__(self, folder: Path, rank: int = 0, size: int = 1, start: str = '') -> None:
        self.folder = folder
        self.rank = rank
        self.size = size
        self.start = start

    def save(self, position: Position, state: dict[str, Any]) -> None:
        """Write this rank's file of a position, atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        model = state.get('model', {})
        manifest = {
            'run': self.folder.parent.name,
            'start': self.start,
            'rank': self.rank,
            'size': self.size,
            'epochs': position.epochs,
            'step': position.step,
            'model': model_digest(model),
            'finite': all(bool(t.isfinite().all()) for _, t in sealed.tensors(model)),
        }
        sealed.write(state, manifest, self.folder / file_name(position, self.rank, self.size))

    def finish(self, position: Position, best: bool) -> None:
        """Record whether the epoch of ``position``, saved by all ranks, is the best, and remove
        older files."""
        if best:  # on every rank, since the others may not see the disk of rank 0
            partial = self.folder / f'best.r{self.rank}.partial'
            with replacing(self.folder / 'best.txt', partial) as file:
                file.write(f'{position.epoch}\n'.encode())
        own = {p for _, p, r, s in self._files() if (r, s) == (self.rank, self.size)}
        earlier = sorted(each for each in own if each <= position)
        epochs = {p for p in earlier if not p.step and p.epochs > position.epochs - KEEP_EPOCHS}
        steps = [each for each in earlier if each.step][-KEEP_STEPS:]
        best_epoch = self.best()
        kept = {*epochs, *steps} | ({Position(best_epoch + 1)} if best_epoch is not None else set())
        for each in earlier:
            if each not in kept:
                (self.folder / file_name(each, self.rank, self.size)).unlink()

    def remove_partial(self) -> None:
        """Remove the files that this rank was writing when it was killed."""
        for path in self.folder.glob(f'e*.r{self.rank}of{self.size}.partial'):
            path.unlink()

    def best(self) -> int | None:
        """The epoch with the best metric, if one was recorded and can be read."""
        path = self.folder / 'best.txt'
        text = path.read_text(errors='replace').strip() if path.is_file() else None
        if text is None or (text.isascii() and text.isdigit()):
            return None if text is None else int(text)
        log.warning('%s names no epoch (%.20r): it is not used', path, text)
        return None

    def saved(self) -> set[tuple[Position, int]]:
        """Each position of which there is a file, and the number of ranks that saved it."""
        return {(position, size) for _, position, _, size in self._files()}

    def load_model(self, position: Position, size: int) -> dict[str, Any]:
        """Read a file with the model that ``size`` ranks saved. Raises Unusable.

        It is this rank's own, or that of rank 0 where there is none.
        """
        own = self.folder / file_name(position, self.rank, size)
        return self._read(position, self.rank if own.is_file() else 0, size)

    def load(self, position: Position, size: int) -> dict[str, Any]:
        """Read this rank's state: its own file, or its share of what ``size`` ranks saved.

        Raises:
            Unusable: If a file is missing, damaged, or not what its name says.
        """
        if size == self.size:
            return self._read(position, self.rank, size)
        for rank in range(size):  # before any of them is read
            name = file_name(position, rank, size)
            if not (self.folder / name).is_file():
                raise Unusable(f'{self.folder / name} is missing')
        states = [self._read(position, rank, size) for rank in range(size)]
        for rank, state in enumerate(states):
            if start_of(state) != start_of(states[0]):
                path = self.folder / file_name(position, rank, size)
                raise Unusable(f'{path} is of another start of a run than that of rank 0')
        optimizers = [state['optimizer'] for state in states]
        if 'ranks' in optimizers[0]:
            return {**states[0], 'optimizer': join_ranks(optimizers)}
        merged = merge_states(optimizers, self.rank, self.size)
        return {**states[0], 'optimizer': {**optimizers[0], **merged}}

    def _read(self, position: Position, rank: int, size: int) -> dict[str, Any]:
        """Read a file; the reason of an Unusable begins with its name."""
        path = self.folder / file_name(position, rank, size)
        try:
            state = sealed.read(path)
            if wrong := foreign(state, position, rank, size):
                raise Unusable(f'holds {wrong}, and not what its name says')
            if not state.get('manifest', {}).get('finite', True):
                raise Unusable('holds parameters or buffers that are not finite')
        except Unusable as error:
            raise Unusable(f'{path} {error}') from error
        return state

    def _files(self) -> Iterable[tuple[Path, Position, int, int]]:
        for path in sorted(self.folder.glob('e*.pth')):
            if match := NAME.fullmatch(path.name):
                epoch, step, rank, size = (int(number or 0) for number in match.groups())
                yield path, Position(epoch if step else epoch + 1, step), rank, size


def start_of(state: Mapping[str, Any]) -> str:
    """The start of the run that saved ``state``; '' where it is not known."""
    return str(state.get('manifest', {}).get('start', ''))


def foreign(state: Mapping[str, Any], position: Position, rank: int, size: int) -> str:
    """What ``state`` is, where that is not the state of this position and rank; '' where it is."""
    if 'manifest' not in state:  # of an earlier version
        found = Position(int(state['epoch']) + 1) if 'epoch' in state else position
        labels = list(state.get('optimizer', {}).get('ranks', {f'rank {rank} of {size}': None}))
    else:
        manifest = state['manifest']
        found = Position(manifest['epochs'], manifest['step'])
        labels = [f'rank {manifest["rank"]} of {manifest["size"]}']
    if found != position:
        return f'the state of {found}'
    if labels != [f'rank {rank} of {size}']:
        return f'the state of {", ".join(map(str, labels))}'
    return ''


def check_model(state: Mapping[str, Any], model: nn.Module) -> None:
    """Raise Misfit, with the first tensor that differs, where ``state`` is not of this model."""
    saved, ours = shapes(state['model']), shapes(model.state_dict())
    for name in [*ours, *saved]:
        if saved.get(name) != ours.get(name):
            there, here = saved.get(name, 'missing'), ours.get(name, 'missing')
            raise Misfit(f'{name} is {there} in the checkpoint, and {here} in the model')


@dataclass(frozen=True)
class Saved:
    """A checkpoint that all ranks can use, as this rank read it.

    Attributes:
        run: The run folder.
        position: Where it was saved.
        size: The number of ranks that saved it.
        state: Of this rank.
    """

    run: Path
    position: Position
    size: int
    state: dict[str, Any]

    @property
    def best(self) -> float | None:
        """The best metric so far."""
        return self.state.get('best')

    def model(self) -> dict[str, Tensor]:
        """The model's state; of local steps, with the parameters on which the ranks agreed."""
        agreed = self.state.get('optimizer', {}).get('agreed', {})
        return {**self.state['model'], **agreed}


class Search:
    """Finds the last checkpoint that every rank can use: the same one on all of them.

    Args:
        engine: Carries what the ranks found.
        device: Of the tensors that it carries.
        run: A run folder, or its folder of checkpoints.
        evaluate: Whether only a model is wanted, that of the best epoch first.
    """

    def __init__(
        self, engine: Engine, device: torch.device, run: Path, evaluate: bool = False
    ) -> None:
        self.engine, self.device, self.run, self.evaluate = engine, device, run, evaluate
        folder = run if run.name == 'checkpoints' else run / 'checkpoints'
        self.checkpoints = Checkpoints(folder, engine.rank, engine.size)

    def last(self, model: nn.Module, anew: bool = False) -> Saved | None:
        """Return the last usable checkpoint; says which later ones are not, and why. A collective.

        Args:
            model: Whose state it must be.
            anew: Whether to return None where there is none.

        Raises:
            CheckpointError: On all ranks, where there is none, or all are of another model.
        """
        reasons: list[str] = []
        has_misfit = False
        for position, size in self._candidates():
            state, reason, is_misfit = self._try(position, size, model)
            if state is not None:
                if reasons:
                    log.warning('%s: going on from %s', listed(reasons), position)
                return Saved(self.run, position, size, state)
            has_misfit |= is_misfit
            reasons.append(reason)
        if has_misfit:
            reason = textwrap.shorten(listed(reasons), 400, placeholder=' …')
            raise CheckpointError(f'{self.run} does not fit this configuration: {reason}')
        if anew:
            if reasons:
                log.warning('%s: no checkpoint is good, training begins anew', listed(reasons))
            return None
        why = f'{listed(reasons)}; ' if reasons else ''
        raise CheckpointError(
            f'{why}there is no checkpoint in {self.run} that all ranks can read; --resume RUN '
            f'names a run{siblings(self.run)}'
        )

    def _candidates(self) -> list[tuple[Position, int]]:
        """What any rank has a file of, the last one first. A collective."""
        own = sorted((*position, size) for position, size in self.checkpoints.saved())
        listing = json.dumps({'saved': own[-1000:], 'best': self.checkpoints.best()})
        texts = gather_text(self.engine, listing, self.device, limit=65536)
        of_ranks = [json.loads(text) for text in texts]
        found = {
            (Position(epochs, step), size)
            for each in of_ranks
            for epochs, step, size in each['saved']
        }
        # Of one position, what as many ranks saved as there are now.
        order = sorted(found, key=lambda each: (each[0], each[1] == self.engine.size, each[1]))
        order.reverse()
        best = of_ranks[0]['best']
        if self.evaluate and best is not None:
            order.sort(key=lambda each: each[0] != Position(best + 1))
        return order

    def _try(
        self, position: Position, size: int, model: nn.Module
    ) -> tuple[dict[str, Any] | None, str, bool]:
        """Read a checkpoint on all ranks; returns None where one of them cannot, and the reason,
        and whether it is of another model."""
        state, report = None, {'start': '', 'reason': '', 'misfit': False}
        load = self.checkpoints.load_model if self.evaluate else self.checkpoints.load
        try:
            state = load(position, size)
            report['start'] = start_of(state)
            check_model(state, model)
        except Unusable as error:
            report |= {'reason': str(error)[:LONGEST], 'misfit': isinstance(error, Misfit)}
        except Exception as error:  # a rank that raised alone would leave the others waiting
            reason = f'{position} of {size} ranks cannot be used ({error!r:.{LONGEST}})'
            report['reason'] = ' '.join(reason.split())
        text = json.dumps(report)
        texts = gather_text(self.engine, text, self.device, limit=8 * LONGEST)
        reports = [json.loads(each) for each in texts]
        for rank, each in enumerate(reports):
            if each['reason']:
                where = f'rank {rank}: ' if rank else ''
                return None, where + each['reason'], each['misfit']
            if each['start'] != reports[0]['start']:
                name = file_name(position, rank, size)
                return None, f'{name} is of another start of a run than that of rank 0', False
        return state, '', False


def listed(reasons: Sequence[str]) -> str:
    """At most NAMED reasons, in one line."""
    more = f'; and {len(reasons) - NAMED} more' if len(reasons) > NAMED else ''
    return '; '.join(reasons[:NAMED]) + more


def siblings(run: Path) -> str:
    """Names runs of the same config files with other numbers of workers that have checkpoints."""
    stem, dot, _ = run.name.rpartition('.np')
    if not dot:
        return ''
    stack = stem.partition(AT)[0]
    runs = [
        each
        for each in sorted(run.parent.glob('*'))
        if each.name.startswith((stack + dot, stack + AT)) and each != run
    ]
    usable = [str(each) for each in runs if Checkpoints(each / 'checkpoints').saved()]
    return f', such as {", ".join(usable)}' if usable else ''
