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
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from dgc.saved_state import join_ranks, merge_states
from utils import sealed
from utils.files import replacing
from utils.norms import exploded
from utils.sealed import Unusable

NAME = re.compile(r'e(\d+)(?:\.s(\d+))?\.r(\d+)of(\d+)\.pth')
KEEP_EPOCHS = 3  # besides the best one
KEEP_STEPS = 2  # checkpoints within an epoch
NAMED = 3  # tensors in one line

log = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """There is no checkpoint from which all ranks can continue."""


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


def evaluated_weights(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The model of a checkpoint as it was evaluated.

    Of local steps it has the parameters on which the ranks agreed, since a rank's own may have
    moved on; and the average of the weights, where there is one. Whatever is no dictionary in a
    file of another program counts as missing.
    """
    optimizer = state.get('optimizer')
    agreed = optimizer.get('agreed') if isinstance(optimizer, Mapping) else None
    weights: dict[str, Tensor] = {}
    for part in (state.get('model'), agreed, state.get('ema')):
        weights.update(part if isinstance(part, Mapping) else {})
    return weights


def not_finite(state: Mapping[str, Any]) -> set[str]:
    """The names of the tensors of a model's state that hold NaN or an infinite number."""
    return {name for name, tensor in sealed.tensors(dict(state)) if not is_finite(tensor)}


def is_finite(tensor: Tensor) -> bool:
    """Whether all elements are finite."""
    if tensor.is_floating_point() and tensor.itemsize == 1:  # torch has no isfinite for float8
        tensor = tensor.float()
    has_infinite = tensor.is_floating_point() or tensor.is_complex()
    return not has_infinite or bool(tensor.isfinite().all())


class Checkpoints:
    """The checkpoints of one run in the file system of one rank.

    Args:
        folder: Where they are.
        rank, size: Of this rank.
        start: A text that the ranks of a run have in common, and no other start of a run has.
        most_growth: See ``utils.norms.exploded``.
        keep_epochs: How many epochs' checkpoints are kept, besides the best one; None for all.
    """

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        size: int = 1,
        start: str = '',
        most_growth: float | None = None,
        keep_epochs: int | None = KEEP_EPOCHS,
    ) -> None:
        self.folder = folder
        self.keep_epochs = keep_epochs
        self.rank = rank
        self.size = size
        self.start = start
        self.most_growth = most_growth

    def save(
        self, position: Position, state: dict[str, Any], norms: Sequence[float | None] = ()
    ) -> None:
        """Write this rank's file of a position, atomically.

        Args:
            position: Of the state.
            state: What is saved.
            norms: Of the weights, and of those in the last good checkpoint; none where they are not
                known.
        """
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
            **dict(zip(('norm', 'norm_before'), norms, strict=False)),
        }
        sealed.write(state, manifest, self.folder / file_name(position, self.rank, self.size))

    def finish(self, position: Position, best_epoch: int | None = None) -> None:
        """Record the best epoch, and remove older files, when all ranks have saved ``position``.

        Later files are removed too. They are of an earlier course of the run, which went on from a
        checkpoint before them with another batch size or number of ranks, or as one of them was
        damaged. The next start would take them for the last ones.

        Args:
            position: What is complete on all ranks.
            best_epoch: Up to there; None where it is not known.
        """
        self.record_best(best_epoch)
        own = set()
        for path, each, rank, size in self._files():
            if size != self.size and each > position:  # whichever rank comes first
                path.unlink(missing_ok=True)
            elif (rank, size) == (self.rank, self.size):
                own.add(each)
        earlier = sorted(each for each in own if each <= position)
        oldest = 0 if self.keep_epochs is None else position.epochs - self.keep_epochs
        epochs = {p for p in earlier if not p.step and p.epochs > oldest}
        steps = [each for each in earlier if each.step][-KEEP_STEPS:]
        best = self.best()
        kept = {*epochs, *steps} | ({Position(best + 1)} if best is not None else set())
        for each in own - (kept & {*earlier}):
            (self.folder / file_name(each, self.rank, self.size)).unlink()

    def record_best(self, epoch: int | None) -> None:
        """Write best.txt, where the folder has a checkpoint of ``epoch`` and names another one.

        Every rank does so, since the others may not see the disk of rank 0.
        """
        if epoch is None or epoch == self.best():
            return
        if any(position == Position(epoch + 1) for position, _ in self.saved()):
            partial = self.folder / f'best.r{self.rank}.partial'
            with replacing(self.folder / 'best.txt', partial) as file:
                file.write(f'{epoch}\n'.encode())

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

    def load_model(
        self, position: Position, size: int, infinite: Collection[str] = ()
    ) -> dict[str, Any]:
        """Read a file with the model that ``size`` ranks saved. Raises Unusable. See ``load``.

        It is this rank's own, or that of rank 0 where there is none.
        """
        own = self.folder / file_name(position, self.rank, size)
        return self._read(position, self.rank if own.is_file() else 0, size, infinite)

    def load(self, position: Position, size: int, infinite: Collection[str] = ()) -> dict[str, Any]:
        """Read this rank's state: its own file, or its share of what ``size`` ranks saved.

        Args:
            position: Of the state.
            size: The number of ranks that saved it.
            infinite: The parameters and buffers that need not be finite.

        Raises:
            Unusable: If a file is missing, damaged, or not what its name says.
        """
        if size == self.size:
            return self._read(position, self.rank, size, infinite)
        for rank in range(size):  # before any of them is read
            name = file_name(position, rank, size)
            if not (self.folder / name).is_file():
                raise Unusable(f'{self.folder / name} is missing')
        states = [self._read(position, rank, size, infinite) for rank in range(size)]
        for rank, state in enumerate(states):
            if start_of(state) != start_of(states[0]):
                path = self.folder / file_name(position, rank, size)
                raise Unusable(f'{path} is of another start of a run than that of rank 0')
        optimizers = [state['optimizer'] for state in states]
        if 'ranks' in optimizers[0]:
            return {**states[0], 'optimizer': join_ranks(optimizers)}
        merged = merge_states(optimizers, self.rank, self.size)
        return {**states[0], 'optimizer': {**optimizers[0], **merged}}

    def _read(
        self, position: Position, rank: int, size: int, infinite: Collection[str]
    ) -> dict[str, Any]:
        """Read a file; the reason of an Unusable begins with its name."""
        path = self.folder / file_name(position, rank, size)
        try:
            state = sealed.read(path)
            if wrong := foreign(state, position, rank, size):
                raise Unusable(f'holds {wrong}, and not what its name says')
            if wrong := ', '.join(sorted(not_finite(state.get('model', {})) - {*infinite})[:NAMED]):
                raise Unusable(f'holds parameters or buffers that are not finite ({wrong})')
            if wrong := self._exploded(state.get('manifest', {})):
                raise Unusable(wrong)
        except Unusable as error:
            raise Unusable(f'{path} {error}') from error
        return state

    def _exploded(self, manifest: Mapping[str, Any]) -> str:
        """What is wrong with the norm of a checkpoint's weights; '' for nothing."""
        norm, before = manifest.get('norm'), manifest.get('norm_before')
        if norm is None or not exploded(norm, before, self.most_growth):
            return ''
        return (
            f'holds weights whose norm is {norm:.3g}, and was {before or 0:.3g} in the last good '
            f'checkpoint (configs.checkpoint.most_growth = {self.most_growth})'
        )

    def discard(self, position: Position) -> None:
        """Remove this rank's file of a position."""
        (self.folder / file_name(position, self.rank, self.size)).unlink(missing_ok=True)

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
