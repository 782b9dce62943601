"""The search for the checkpoint from which a run goes on: the same one on all ranks."""

from __future__ import annotations

import json
import logging
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dgc import Engine
from dgc.handshake import gather_text
from utils.agree import agreed
from utils.checkpoint import (
    CheckpointError,
    Checkpoints,
    Position,
    evaluated_weights,
    file_name,
    not_finite,
    shapes,
    start_of,
)
from utils.naming import AT
from utils.sealed import Unusable

LONGEST = 600  # bytes of a reason that ranks exchange
NAMED = 3  # rejected checkpoints in one line

log = logging.getLogger(__name__)


class Misfit(Unusable):
    """A file with the state of another model."""


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

    @property
    def best_epoch(self) -> int | None:
        """The epoch that had it; None also where an earlier version saved the state."""
        return self.state.get('best_epoch')

    @property
    def checkpoints(self) -> Checkpoints:
        """Those of its run."""
        return Checkpoints(folder_of_checkpoints(self.run))

    @property
    def about(self) -> str:
        """The run, the epoch and the file, in words."""
        position = self.position
        done = f'{position.step} steps of epoch' if position.step else 'epoch'
        best = ', the best so far' if self.best_epoch == position.epoch else ''
        file = self.checkpoints.folder / file_name(position, 0, self.size)
        return f'{self.run}, {done} {position.epoch}{best} ({file})'

    @property
    def rate_factor(self) -> float:
        """By which rollbacks have multiplied the learning rate."""
        return float(self.state.get('rate_factor', 1.0))

    @property
    def norm(self) -> float | None:
        """The norm of the weights; None where an earlier version saved the state."""
        norm: float | None = self.state.get('manifest', {}).get('norm')
        return norm

    def within_epoch(self) -> Saved:
        """As one within its last epoch, where ``configs.train.num_steps`` has cut that short: this
        is where training goes on. Else as it is."""
        if 'cut' not in self.state:
            return self
        state = {name: value for name, value in self.state.items() if name != 'cut'}
        cut = self.state['cut']
        position = Position(self.position.epochs - 1, int(cut['meters']['step']))
        return replace(self, position=position, state={**state, **cut})

    def model(self) -> dict[str, Tensor]:
        """The model's state, as it was evaluated."""
        return evaluated_weights(self.state)


class Search:
    """Finds the last checkpoint that every rank can use: the same one on all of them.

    Args:
        engine: Carries what the ranks found.
        device: Of the tensors that it carries.
        run: A run folder, or its folder of checkpoints.
        evaluate: Whether only a model is wanted, that of the best epoch first.
        most_growth: See ``utils.norms.exploded``.
        before: The last position that is looked at; None for all.
    """

    def __init__(
        self,
        engine: Engine,
        device: torch.device,
        run: Path,
        evaluate: bool = False,
        most_growth: float | None = None,
        before: Position | None = None,
    ) -> None:
        self.engine, self.device, self.run, self.evaluate = engine, device, run, evaluate
        self.before = before
        folder = folder_of_checkpoints(run)
        self.checkpoints = Checkpoints(folder, engine.rank, engine.size, most_growth=most_growth)

    def last(self, model: nn.Module, anew: bool = False) -> Saved | None:
        """Return the last usable checkpoint; says which later ones are not, and why. A collective.

        Args:
            model: Whose state it must be.
            anew: Whether to return None where there is none.

        Raises:
            CheckpointError: On all ranks, where there is none, or all are of another model.
            Refused: On all ranks, where one of them cannot read its folder.
        """
        reasons: list[str] = []
        has_misfit = False
        with agreed(self.engine, self.device):  # a rank that raised alone would be waited for
            # What a model is built with, such as the -inf of a mask, is no sign of divergence.
            infinite = not_finite(model.state_dict())
            listing = self._listing()
        for position, size in self._candidates(listing):
            state, reason, is_misfit = self._try(position, size, model, infinite)
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

    def epochs(self, model: nn.Module, newest_first: bool = False) -> Iterator[Saved]:
        """Yield the checkpoint of each epoch; says which cannot be used, and why. A collective, and
        another one at each of them.

        Args:
            model: Whose state they must be.
            newest_first: Whether the last epoch comes first.

        Raises:
            Refused: On all ranks, where one of them cannot read its folder.
        """
        with agreed(self.engine, self.device):
            infinite = not_finite(model.state_dict())
            listing = self._listing()
        by_epoch: dict[Position, list[int]] = {}
        for position, size in self._candidates(listing):
            if not position.step:
                by_epoch.setdefault(position, []).append(size)
        for position in sorted(by_epoch, reverse=newest_first):
            reasons = []
            for size in by_epoch[position]:
                state, reason, _ = self._try(position, size, model, infinite)
                if state is not None:
                    yield Saved(self.run, position, size, state)
                    break
                reasons.append(reason)
            else:
                log.warning('epoch %d is left out: %s', position.epoch, listed(reasons))

    def _listing(self) -> str:
        """What this rank has files of, as text. Raises CheckpointError."""
        try:
            own = sorted((*position, size) for position, size in self.checkpoints.saved())
            return json.dumps({'saved': own[-1000:], 'best': self.checkpoints.best()})
        except OSError as error:
            why = error.strerror or error
            raise CheckpointError(
                f'{self.checkpoints.folder} cannot be read ({why}): make it readable'
            ) from error

    def _candidates(self, listing: str) -> list[tuple[Position, int]]:
        """What any rank has a file of, the last one first. A collective."""
        texts = gather_text(self.engine, listing, self.device, limit=65536)
        of_ranks = [json.loads(text) for text in texts]
        found = {
            (Position(epochs, step), size)
            for each in of_ranks
            for epochs, step, size in each['saved']
            if self.before is None or (epochs, step) <= self.before
        }
        # Of one position, what as many ranks saved as there are now.
        order = sorted(found, key=lambda each: (each[0], each[1] == self.engine.size, each[1]))
        order.reverse()
        best = of_ranks[0]['best']
        if self.evaluate and best is not None:
            order.sort(key=lambda each: each[0] != Position(best + 1))
        return order

    def _try(
        self, position: Position, size: int, model: nn.Module, infinite: Collection[str]
    ) -> tuple[dict[str, Any] | None, str, bool]:
        """Read a checkpoint on all ranks; returns None where one of them cannot, and the reason,
        and whether it is of another model."""
        state, report = None, {'start': '', 'reason': '', 'misfit': False}
        load = self.checkpoints.load_model if self.evaluate else self.checkpoints.load
        try:
            state = load(position, size, infinite)
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


def folder_of_checkpoints(run: Path) -> Path:
    """That of a run folder, which may be named itself."""
    return run if run.name == 'checkpoints' else run / 'checkpoints'


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
