"""A rank of train.py that stops for good: failures row 14."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest
from launching import LAUNCHERS, PREFIX, start
from test_failures import stack

STOP = (
    "print('stopped', __import__('os').getpid(), flush=True)\n"
    "            __import__('os').kill(__import__('os').getpid(), 19)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('launcher', 'step', 'limit'),
    [
        ('torchrun', 40, None),  # once there are enough calls to compute a limit from
        pytest.param('horovodrun --gloo', 3, 5, marks=pytest.mark.horovod),
    ],
)
def test_a_rank_that_stops_for_good_ends_the_run_with_its_name(launcher, step, limit, tmp_path):
    """failures row 14: SIGSTOP in a step; 30 minutes of silence until torch gave up."""
    words = [*LAUNCHERS[launcher], 'train.py', *stack(tmp_path, STOP)]
    model = tmp_path / 'unlucky.py'
    model.write_text(model.read_text().replace('self.step == 3', f'self.step == {step}'))
    words += ['--configs.engine.warning_seconds', '2', '--configs.engine.abort_seconds', str(limit)]
    pipe = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True}
    process = start(words, **pipe, start_new_session=True)
    lines, stopped = [], 0
    try:
        for line in process.stdout:
            lines.append(PREFIX.sub('', line.rstrip()))
            if match := re.match(r'stopped (\d+)', lines[-1]):
                stopped = int(match[1])
            if lines[-1].startswith('train.py:'):
                os.kill(stopped, signal.SIGCONT)  # it may be asked to end, in place of killed
        code = process.wait(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    output = '\n'.join(lines)
    assert code != 0, output
    place = r'rank 0 has waited (\d+) s in \w+ of bucket \S.* for rank 1, which does not answer'
    warnings = [line for line in lines if re.match(place, line)]
    assert re.match(place, warnings[0])[1] == '2', output
    assert f'ends after {limit or 8} s (configs.engine.abort_seconds)' in warnings[0]
    (line,) = [line for line in lines if line.startswith('train.py:')]
    assert re.match(f'train.py: {place}.*: given up', line), output
    assert '--resume continues' in line
    assert 'Traceback' not in output.split(line)[0]
