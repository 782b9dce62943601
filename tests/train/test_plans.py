"""A run writes its plan, and another replays it: the same buckets and, simulated, the same bits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from launching import SIMULATED, Done, Run, here, only_run

from dgc.bucket_spec import BucketSpec, ParameterSpec
from dgc.planner import Plan

STACKS = {
    'omgs': ['dgc/wm5', 'omgs/merged'],
    'lags': ['dgc/wm5', 'lags/adaptive'],
    'mgwfbp': ['mgwfbp/merged'],
    'whole': ['dgc/wm5', 'plan/whole'],
}
REPLAY = [
    '--configs', 'configs/plan/replay.py', '--configs.train.compression.planner.file',
]  # fmt: skip


def train(folder: Path, stack: Sequence[str], more: Sequence[str | Path] = ()) -> Done:
    """One epoch of the digits, among two simulated workers."""
    files = [f'configs/{name}.py' for name in ('digits/cnn', *stack)]
    settings = ['--configs.train.num_epochs=1', '--configs.train.batch_size=64']
    options = [*SIMULATED, '2', '--devices', 'cpu', '--runs', folder]
    return here('--configs', *files, *more, *settings, *options)


def plan_of(run: Run) -> list[dict]:
    """Its buckets."""
    return json.loads((run.folder / 'plan.json').read_text())['buckets']


@pytest.mark.slow
@pytest.mark.parametrize('stack', STACKS.values(), ids=STACKS)
def test_a_plan_is_written_and_replays_to_the_last_bit(tmp_path, stack):
    first = only_run(tmp_path / 'first', train(tmp_path / 'first', stack))
    file = first.folder / 'plan.json'
    told = [line for line in first.done.lines if line.startswith('plan: ')]
    assert len(told) == (0 if stack[-1] == 'plan/whole' else 1)
    assert (first.folder / 'plan.txt').read_text().splitlines()[1].startswith('bucket')
    again = only_run(tmp_path / 'again', train(tmp_path / 'again', stack, [*REPLAY, file]))
    assert plan_of(again) == plan_of(first)
    assert again.curve('loss/train') == first.curve('loss/train')


def replayed(folder: Path, plan: dict) -> list[str]:
    """What a run that replays ``plan`` says before it ends with exit code 2."""
    file = folder / 'plan.json'
    file.write_text(json.dumps(plan))
    done = train(folder, ['dgc/wm5'], [*REPLAY, file])
    assert done.code == 2
    return [line.replace(str(file), 'FILE') for line in done.complaints]


def test_a_plan_of_another_model_is_refused_by_name(tmp_path):
    bucket = BucketSpec.of([ParameterSpec('features.0.weight', (3, 3))], None)
    plan = Plan([bucket]).to_json()
    complaint = 'train.py: FILE is of another model: this one has no features.0.weight'
    assert replayed(tmp_path, plan) == [complaint]


def test_a_plan_of_another_version_is_refused_with_the_remedy(tmp_path):
    (told,) = replayed(tmp_path, {'version': 1, 'buckets': []})
    assert told.startswith('train.py: FILE is a plan of version 1, and version 2 is needed: train')
