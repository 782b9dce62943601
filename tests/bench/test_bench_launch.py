"""Rows whose workers fail, and the gate at which workers wait."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest

import dgc
from bench.launch import measure
from bench.rows import by_name
from bench.spec import Spec
from tools.harness import launch
from tools.harness.gate import gate, wait_at
from tools.harness.launch import describe_status
from tools.harness.spec import run_with_spec, write_json

SPEC = Spec('digits', 4, [], rounds=2, steps=1, seconds=1.0)
ROWS = by_name(['compute (torch)', 'ddp', 'dgc (torch)'])
NAMES = [row.name for row in ROWS]


def workers(breaking: dict[str, int], launched: list[list[str]]):
    """A launcher whose workers fail at some rows, with these exit statuses."""

    def start(folder: Path) -> int:
        spec = Spec.read(folder / 'spec.json')
        launched.append(spec.rows)
        for name in spec.rows:
            if name in breaking:
                rows = {each: {'error': '', 'steps': 0, 'samples': []} for each in spec.rows}
                write_json(Path(spec.answer), {'now': name, 'torch': 'x', 'rows': rows})
                return breaking[name]
        rows = {each: {'error': '', 'steps': 2, 'samples': ['some']} for each in spec.rows}
        write_json(Path(spec.answer), {'now': '', 'parameters': 7, 'rows': rows})
        return 0

    return start


def test_all_are_measured_by_one_set_of_workers():
    launched = []
    about, outcomes = measure(SPEC, ROWS, workers({}, launched))
    assert launched == [NAMES]
    assert about == {'parameters': 7}
    assert all(outcomes[name]['samples'] for name in NAMES)


def test_the_row_at_which_workers_fail_has_failed_and_the_others_begin_again():
    launched = []
    _, outcomes = measure(SPEC, ROWS, workers({'ddp': 134}, launched))
    assert launched == [NAMES, ['compute (torch)', 'dgc (torch)']]
    assert outcomes['ddp'] == {'error': 'a worker was ended by SIGABRT'}
    assert outcomes['dgc (torch)']['samples'] == ['some']


def test_if_no_row_begins_all_have_failed():
    _, outcomes = measure(SPEC, ROWS, lambda folder: 1)
    assert outcomes == {name: {'error': 'the workers ended with status 1'} for name in NAMES}


def test_an_error_after_the_end_does_not_matter():
    def start(folder: Path) -> int:
        return workers({}, [])(folder) or 1

    assert all(outcome['samples'] for outcome in measure(SPEC, ROWS, start).outcomes.values())


def test_without_horovod_nothing_is_started(monkeypatch):
    monkeypatch.setattr(launch.importlib.util, 'find_spec', lambda name: None)
    outcomes = measure(SPEC, by_name(['horovod']), lambda folder: pytest.fail()).outcomes
    assert outcomes == {'horovod': {'error': 'Horovod is not installed: make horovod'}}


def test_exit_statuses_are_described():
    assert describe_status(124) == 'the workers did not end in time'
    assert describe_status(137) == 'a worker was ended by SIGKILL'
    assert describe_status(200) == 'the workers ended with status 200'


def test_a_spec_is_read_as_it_was_written():
    found = []

    def start(folder: Path) -> int:
        found.append(Spec.read(folder / 'spec.json'))
        return 3

    assert run_with_spec(asdict(SPEC), start) == (3, {})
    assert replace(found[0], answer='') == SPEC
    assert Path(found[0].answer).name == 'answer.json'


def test_json_is_written_atomically(tmp_path):
    file = tmp_path / 'rows.json'
    write_json(file, [1])
    with pytest.raises(TypeError):
        write_json(file, [object()])
    assert json.loads(file.read_text()) == [1]


def test_the_gate_opens_after_the_preparation_when_all_workers_wait(tmp_path):
    prepared: list[float] = []
    with gate(tmp_path, lambda: prepared.append(time.monotonic())):
        time.sleep(0.1)
        assert not prepared
        came = time.monotonic()
        dgc.simulate(2, lambda engine: wait_at(tmp_path, engine))
    assert len(prepared) == 1 and prepared[0] > came


def test_a_preparation_that_fails_opens_the_gate_and_raises(tmp_path):
    with pytest.raises(ZeroDivisionError), gate(tmp_path, lambda: 1 / 0):
        wait_at(tmp_path, dgc.engines.LocalEngine())


def test_gates_of_one_folder_open_one_by_one(tmp_path):
    order: list[str] = []
    first, second = partial(order.append, 'first'), partial(order.append, 'second')
    with gate(tmp_path, first), gate(tmp_path, second, 'later'):
        dgc.simulate(2, lambda engine: wait_at(tmp_path, engine))
        assert order == ['first']
        dgc.simulate(2, lambda engine: wait_at(tmp_path, engine, 'later'))
    assert order == ['first', 'second']


def test_without_workers_at_the_gate_nothing_is_prepared(tmp_path):
    prepared = []
    with gate(tmp_path, lambda: prepared.append(True)):
        pass
    assert not prepared
