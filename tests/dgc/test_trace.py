"""A trace: its phases of each bucket, its table, its file, and that it changes nothing."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import partial

import pytest
import torch
from dgc_helpers import exact, loss, parameters, wrap
from test_pipeline import ThreadedEngine

import dgc
from dgc.codec import Codec
from dgc.memory import Residual
from dgc.spans import COLUMNS, LOOP, Phase, Recorder, Span, events, table, totals

STEPS = 3


def run(engine, traced: bool = True, path=None, wrapped=None):
    """Train five steps, of which the middle ones are traced; returns trace and parameters."""
    named = parameters()
    optimizer = (wrapped or (lambda n, e: wrap(n, exact(0.1), e)))(named, engine)
    trace = dgc.Trace(optimizer)
    for step in range(STEPS + 2):
        if traced and step == 1:
            trace.start()
        optimizer.zero_grad()
        loss(named, engine.rank, step).backward()
        optimizer.step()
        if step == STEPS:
            trace.stop()
    if path is not None:
        trace.save(path)
    return trace, optimizer, [p.detach().clone() for _, p in named]


def test_every_phase_of_every_bucket_is_recorded_in_the_steps_that_are_traced():
    trace, optimizer, _ = dgc.simulate(2, run)[1]
    assert trace.steps == STEPS
    names = [bucket.name for bucket in optimizer.buckets]
    found = Counter((span.phase, span.bucket) for span in trace.spans)
    for phase in ('merge', 'compress', 'exchange', 'wait', 'copy'):
        assert [found[phase, name] for name in names] == [STEPS] * len(names), phase
    assert all(found['communicate', name] >= STEPS for name in names)
    assert found['apply', ''] == STEPS
    assert {span.lane for span in trace.spans} == {LOOP}  # a simulated rank has one thread
    assert all(span.seconds >= 0 for span in trace.spans)


def test_bytes_of_calls_are_those_of_the_counters():
    def worker(engine):
        before = engine.traffic.sent
        trace, optimizer, _ = run(engine)
        return totals(trace.spans), optimizer.progress.sent, engine.traffic.sent - before

    found, sent, _ = dgc.simulate(2, worker)[0]
    counted = sum(row['sent'] for row in found.values())
    extra = counted - sent * STEPS / (STEPS + 2)  # the flag of unused parameters, 4 bytes
    assert 0 <= extra <= 8 * STEPS


def test_threads_of_an_engine_have_lanes_of_their_own():
    engine = ThreadedEngine()
    engine.pipeline = True
    trace, _, _ = run(engine)
    engine.close()
    lanes = defaultdict(set)
    for span in trace.spans:
        lanes[span.phase].add(span.lane)
    assert lanes['compress'] == {'dgc-compute'} and lanes['exchange'] == {'dgc-engine'}
    assert lanes['wait'] == lanes['apply'] == {LOOP}
    exchanges = [s for s in trace.spans if s.phase == 'exchange']
    for call in (s for s in trace.spans if s.phase == 'communicate'):  # drawn inside an exchange
        assert any(
            e.begin <= call.begin + 1e-6 and call.begin + call.seconds <= e.begin + e.seconds + 1e-6
            for e in exchanges
        )


def test_a_trace_changes_no_bit_and_leaves_nothing_behind():
    traced = dgc.simulate(2, run)
    plain = dgc.simulate(2, partial(run, traced=False))
    for (_, optimizer, ours), (_, _, theirs) in zip(traced, plain, strict=True):
        assert all(map(torch.equal, ours, theirs))
        assert optimizer.reducer.recorder is None and optimizer.reducer.engine.recorder is None


def test_the_file_has_ranks_as_processes_and_microseconds(tmp_path):
    path = tmp_path / 'trace.json'
    dgc.simulate(3, lambda engine: run(engine, path=path))
    content = json.loads(path.read_text())
    spans = [e for e in content['traceEvents'] if e['ph'] == 'X']
    assert {e['pid'] for e in spans} == {0, 1, 2}
    assert min(e['ts'] for e in spans) == 0 and all(e['dur'] >= 0 for e in spans)
    names = {e['args']['name'] for e in content['traceEvents'] if e['ph'] == 'M'}
    assert names == {'rank 0', 'rank 1', 'rank 2', LOOP}
    assert {e['cat'] for e in spans} == {phase.value for phase in Phase}


def test_microseconds_are_counted_from_the_first_span_of_all_ranks():
    one = Span('compress', 'compress', 'w', 'dgc-compute', 100.5, 0.25)
    two = Span('communicate', 'all_gather', 'w', 'dgc-engine', 100.0, 0.125, sent=7)
    first, second = (e for e in events([[one], [two]])['traceEvents'] if e['ph'] == 'X')
    assert (first['ts'], first['dur'], first['pid'], first['tid']) == (500000.0, 250000.0, 0, 2)
    assert (second['ts'], second['name'], second['pid']) == (0.0, 'all_gather w', 1)
    assert second['args'] == {'bucket': 'w', 'sent': 7}


def test_the_table_divides_by_steps_and_separates_calls_from_decoding():
    spans = [
        Span('compress', 'compress', 'a', LOOP, 0.0, 0.004),
        Span('exchange', 'exchange', 'a', LOOP, 0.0, 0.010),
        Span('communicate', 'all_gather', 'a', LOOP, 0.0, 0.006, sent=100),
        Span('communicate', 'all_reduce', '', LOOP, 0.0, 9.0),  # of a metric
        Span('apply', 'apply', '', LOOP, 0.0, 0.002),
    ]
    head, a, whole, last = table(spans, {'a': 1000, 'never sent': 5}, 2).splitlines()
    assert head.split()[3:] == ['elements', 'bytes', 'sent', *COLUMNS]
    assert a.split() == ['a', '1,000', '50', '0.000', '2.000', '3.000', '2.000', *['0.000'] * 3]
    assert whole.split()[:2] == ['all', 'buckets'] and whole.split()[-2] == '1.000'
    sums = ['0.000', '2.000', '3.000', '2.000', '0.000', '1.000', '0.000']
    assert last.split() == ['sum', '1,005', '50', *sums]


def local(named, engine):
    """Local steps: a round of two."""
    inner, outer = (torch.optim.SGD([p for _, p in named], lr=lr) for lr in (0.1, 0.7))
    composition = dgc.deep_gradient_compression(0.1, memory=Residual())
    return dgc.LocalSteps(inner, outer, named, composition, engine, every=2)


def streaming(named, engine):
    """A fragment sent in each step but one, and applied in the next."""
    inner, outer = (torch.optim.SGD([p for _, p in named], lr=lr) for lr in (0.1, 0.7))
    composition = dgc.Composition(Residual(), codec=Codec('fp32', 'none'))
    return dgc.StreamingSteps(
        inner, outer, named, composition, engine, every=2, fragments=2, delay=1
    )


@pytest.mark.parametrize('wrapped', [local, streaming])
def test_outer_steps_are_traced(wrapped):
    trace, _, _ = dgc.simulate(2, lambda engine: run(engine, wrapped=wrapped))[0]
    phases = Counter(span.phase for span in trace.spans)
    assert trace.steps == STEPS
    assert phases['exchange'] and phases['apply'] and phases['compress'] == phases['exchange']


def test_a_second_trace_at_the_same_time_is_refused():
    optimizer = wrap(parameters(), exact())
    with dgc.Trace(optimizer), pytest.raises(RuntimeError, match='stop'):
        dgc.Trace(optimizer).start()
    with dgc.Trace(optimizer) as trace:
        pass
    assert trace.spans == [] and 'sum' in trace.table()


def test_what_ends_after_the_trace_is_left_out():
    recorder = Recorder()
    recorder.add(Phase.MERGE, 'a', 0.0)
    recorder.is_open = False
    recorder.add(Phase.MERGE, 'b', 0.0)
    assert [span.bucket for span in recorder.spans] == ['a']
