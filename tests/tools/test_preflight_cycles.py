"""The recommended cycle time of Horovod."""

from __future__ import annotations

import os

import pytest
import torch

from dgc.engines import LocalEngine
from tools.preflight import __main__, cycles
from tools.preflight.cycles import Cycle

CPU = torch.device('cpu')


def measured(*rows: tuple[float, float, float]) -> list[Cycle]:
    """Cycle times in ms, each with its latency in ms and its share of a core."""
    return [Cycle(ms, latency / 1e3, share, 5e3) for ms, latency, share in rows]


def test_the_overhead_by_hand():
    (cycle,) = measured((5.0, 3.0, 0.02))
    # 4 collectives of 3 ms; of 200 ms, polling takes 2 %, of each of 2 ranks on a core.
    assert cycle.overhead(200.0, 4, 2.0) == pytest.approx(12 + 8)


@pytest.mark.parametrize(
    ('rows', 'expected'),
    [
        ([(1.0, 1.0, 0.01), (10.0, 8.0, 0.002)], 1.0),  # idle cores: collectives would wait
        ([(1.0, 4.0, 0.3), (10.0, 8.0, 0.05)], 10.0),  # polling takes more than they would
        ([(1.0, 2.0, 0.01), (2.0, 1.9, 0.009)], 1.0),  # not worth another setting
    ],
)
def test_another_one_is_recommended_where_it_is_worth_it(rows, expected):
    found = measured(*rows)
    assert cycles.recommended(found, 200.0, 4, 1.0).milliseconds == expected
    last = cycles.report(found, 200.0, 4, 1.0).splitlines()[-1]
    assert last.startswith(f'recommended: HOROVOD_CYCLE_TIME={expected:g} (')


@pytest.mark.parametrize('before', [None, '7'])
def test_each_is_measured_and_the_setting_restored(before, monkeypatch):
    monkeypatch.setattr(cycles, 'IDLE', 0.01)
    monkeypatch.delenv(cycles.SETTING, raising=False)
    if before is not None:
        monkeypatch.setenv(cycles.SETTING, before)
    settings = []

    def make():
        settings.append(os.environ[cycles.SETTING])
        return LocalEngine()

    found = cycles.measure(make, CPU)
    assert settings == ['1', '2', '5', '10', '20']
    assert [each.milliseconds for each in found] == [float(each) for each in settings]
    assert all(each.latency > 0 and each.processor >= 0 for each in found)
    assert os.environ.get(cycles.SETTING) == before
    assert len(cycles.report(found, 200.0, 4, 1.0).splitlines()) == 2 + len(settings)


@pytest.mark.parametrize('given', [['--step', '0'], ['--collectives', '0'], ['--step', 'x']])
def test_impossible_steps_are_refused(given):
    with pytest.raises(SystemExit) as ended:
        __main__.parse(given)
    assert ended.value.code == 2
