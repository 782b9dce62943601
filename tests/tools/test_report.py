"""python -m tools.report: what is read of runs, and what is written about them."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import threading
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import pytest
from runs_made import DENSE, DGC, line, make, make_server, write_lines

from tools.report.__main__ import main, read
from tools.report.find import find
from tools.report.page import in_html, page
from tools.report.read import MAX_EPOCHS, read_run
from tools.report.serve import Server
from tools.report.state import State, locked_inodes
from tools.report.summary import label, summary


def runs_of(folder: Path) -> dict[str, dict]:
    """The runs of the page, by label."""
    return {run['label']: run for run in read([folder])['runs']}


@pytest.fixture
def runs(tmp_path):
    make(tmp_path / 'runs/digits.cnn+dense.sgd.np2')
    make(tmp_path / 'runs/digits.cnn+dgc.wm5.np2', DGC, (40.0, 80.0, 88.0), 20)
    make_server(tmp_path / 'runs/digits.cnn+dgs.dgs.np2')
    return tmp_path / 'runs'


# ---------------------------------------------------------------- the numbers


def test_sums_of_a_run_are_those_of_its_epochs(runs):
    found = runs_of(runs)
    numbers, columns = found['dgc.wm5']['summary'], found['dgc.wm5']['columns']
    assert (numbers['best'], numbers['last'], numbers['epochs']) == (88.0, 88.0, 3)
    assert (numbers['bytes'], numbers['dense_bytes'], numbers['fewer']) == (60, 3000, 50.0)
    assert numbers['wait'] == 0.25
    assert numbers['ms_per_step'] == pytest.approx(200.0)
    assert columns['total/bytes'] == [20, 40, 60]
    assert columns['total/seconds'] == [2.25, 4.5, 6.75]
    assert columns['step/bytes'] == [2, 2, 2]
    assert found['dgc.wm5']['ranks'] == {'bytes/sent': [60, 63], 'seconds/wait': [1.5, 0.75]}
    assert found['dense.sgd']['is_dense'] and not found['dgc.wm5']['is_dense']


def test_a_server_has_staleness_and_the_updates_of_each_worker(runs):
    run = runs_of(runs)['dgs.dgs']
    assert run['is_server'] and run['summary']['wait'] is None
    assert run['updates']['staleness'] == [15, 15]
    assert [each['updates'] for each in run['updates']['workers']] == [20, 10]
    assert run['columns']['total/bytes'] == [500, 1000, 1500]  # of one of two workers
    assert run['summary']['fewer'] == pytest.approx(30000 / 1500)
    assert run['columns']['total/seconds'] == [1, 2, 3]


def test_seconds_of_simulated_workers_are_not_compared(runs):
    folder = make(runs / 'digits.cnn+dgc.sim.np2', DGC)
    (folder / 'environment.txt').write_text('engine: simulated\nworkers: 2\n')
    numbers = runs_of(runs)['dgc.sim']['summary']
    assert (numbers['wait'], numbers['ms_per_step']) == (None, None)


def test_a_run_of_an_earlier_version_is_shown_without_what_it_lacks(tmp_path):
    folder = make(tmp_path / 'old')
    (folder / 'run.json').unlink()
    write_lines(folder, [{'epoch': 0, 'acc/test_top1': 5.0, 'bytes/sent': 7}])
    (run,) = read([tmp_path])['runs']
    assert run['summary']['best'] == 5.0
    assert run['summary']['ms_per_step'] is None
    assert run['columns']['total/bytes'] == [7]


def test_a_long_run_is_thinned_and_keeps_its_sums(tmp_path):
    folder, count = make(tmp_path / 'long'), 3 * MAX_EPOCHS + 1
    write_lines(folder, [line(epoch, 50.0, 10) for epoch in range(count)])
    (run,) = read([tmp_path])['runs']
    assert len(run['columns']['epoch']) <= MAX_EPOCHS + 1
    assert run['columns']['epoch'][-1] == count - 1
    assert run['columns']['total/bytes'][-1] == 10 * count == run['summary']['bytes']
    assert 'is drawn' in run['notes'][0]


@pytest.mark.parametrize(
    ('name', 'short'),
    [
        ('digits.cnn+dgc.wm5,fp16@lr=0.1.np2', 'dgc.wm5,fp16@lr=0.1'),
        ('digits.cnn+dense.sgd.np2~3', 'dense.sgd~3'),
        ('my-own-name', 'my-own-name'),
    ],
)
def test_labels(name, short):
    assert label(name) == short


def test_labels_that_would_be_equal_are_whole_names(tmp_path):
    make(tmp_path / 'a.cnn+dense.sgd.np2')
    make(tmp_path / 'b.cnn+dense.sgd.np2')
    assert set(runs_of(tmp_path)) == {'a.cnn+dense.sgd.np2', 'b.cnn+dense.sgd.np2'}


# ---------------------------------------------------------------- states


def test_a_run_is_running_while_it_holds_its_lock(tmp_path):
    folder = make(tmp_path / 'run', accuracies=(50.0,))
    assert read_run(folder, locked_inodes()).state is State.STOPPED
    with (folder / '.lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_run(folder, locked_inodes()).state is State.RUNNING
    assert read_run(folder, locked_inodes()).state is State.STOPPED
    assert read_run(make(tmp_path / 'whole'), frozenset()).state is State.FINISHED


def test_a_run_of_another_machine_is_running_while_its_files_are_fresh(tmp_path):
    folder = make(tmp_path / 'run', accuracies=(50.0,))
    (folder / 'environment.txt').write_text('hosts: elsewhere\n')
    assert read_run(folder).state is State.RUNNING
    for file in folder.iterdir():
        os.utime(file, (1e9, 1e9))
    assert read_run(folder).state is State.STOPPED


def test_a_run_that_has_no_epoch_yet_is_shown(tmp_path):
    folder = make(tmp_path / 'young')
    (folder / 'metrics.jsonl').unlink()
    (run,) = read([tmp_path])['runs']
    assert run['summary']['best'] is None
    assert run['notes'] == ['no epoch has been measured yet']
    assert page(read([tmp_path]))


# ---------------------------------------------------------------- damage

GARBAGE = [b'', b'\0\xff\xfe', b'[[[[', b'{"epoch": 1e999}', b'null', b'7', b'{"epoch": 0, "x": ']
FILES = ['metrics.jsonl', 'config.txt', 'environment.txt', 'run.json', 'plan.json', 'updates.csv']


@pytest.mark.parametrize('file', FILES)
@pytest.mark.parametrize('content', GARBAGE)
def test_a_damaged_file_does_not_hide_the_other_runs(runs, file, content):
    broken = make(runs / 'broken')
    (broken / file).write_bytes(content)
    data = read([runs])
    assert {run['name'] for run in data['runs']} >= {'broken', 'digits.cnn+dense.sgd.np2'}
    json.loads(json.dumps(data, allow_nan=False))


WRONG = [7, None, [], [1], 'x', {'a': [1]}, {'epochs': 'many'}, {'workers': [1], 'epochs': {}}]


@pytest.mark.parametrize('value', WRONG)
def test_values_of_wrong_types_are_left_out(tmp_path, value):
    folder = make(tmp_path / 'run')
    for name in ('run.json', 'plan.json'):
        nested = {'predicted': value, 'samples': value, 'settings': value, 'workers': value}
        for content in (value, nested, {'predicted_seconds': value, **nested}):
            (folder / name).write_text(json.dumps(content))
            assert page(read([tmp_path]))
    write_lines(folder, [{**line(0, 1.0, 1), 'ranks': value, 'acc/test_top1': value}])
    assert page(read([tmp_path]))


def test_damage_is_named(runs, capsys):
    with (runs / 'digits.cnn+dense.sgd.np2/metrics.jsonl').open('a') as file:
        file.write('{"epoch": 3, "acc')
    assert main([str(runs), str(runs / 'nowhere'), '--json', str(runs / 'out.json')]) == 0
    said = capsys.readouterr().err
    assert 'digits.cnn+dense.sgd.np2: metrics.jsonl: line 4 is damaged' in said
    assert 'nowhere does not exist: left out' in said


def test_runs_are_in_the_order_of_their_numbers(tmp_path):
    names = ['run1', 'run2', 'run2.b', 'run10', 'run10.5', 'runs']
    for name in reversed(names):
        (tmp_path / name).mkdir()
        (tmp_path / name / 'run.json').touch()
    assert [path.name for path in find([tmp_path]).runs] == names


def test_a_folder_without_runs_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / 'photos').mkdir()
    assert main([str(tmp_path), '--out', str(tmp_path / 'out')]) == 2
    said = capsys.readouterr().err.splitlines()
    assert 'holds no run' in said[0] and said[1] == 'tools.report: there is no run to show'


# ---------------------------------------------------------------- the page


class Structure(HTMLParser):
    """The tags and the attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.append(dict(attributes))


def test_the_page_is_one_file_that_loads_nothing(runs):
    text = page(read([runs]))
    structure = Structure(text)
    targets = [
        each[name] for each in structure.attributes for name in ('src', 'href') if name in each
    ]
    assert all(target.startswith(('#', 'data:')) for target in targets), targets
    style = text[text.index('<style>') : text.index('</style>')]
    assert not re.search(r'@import|url\(', style)
    policy = next(e['content'] for e in structure.attributes if 'http-equiv' in e)
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy
    assert len(text) < 400_000


def test_the_page_has_labels_for_its_controls_and_landmarks(runs):
    structure = Structure(page(read([runs])))
    pairs = list(zip(structure.tags, structure.attributes, strict=True))
    ids = {each['id'] for _, each in pairs if 'id' in each}
    assert {'main', 'header', 'footer', 'noscript'} <= set(structure.tags)
    for tag, each in pairs:
        if tag in ('section', 'article'):
            assert each['aria-labelledby'] in ids
    assert structure.tags.count('h1') == 1
    assert dict(pairs)['html']['lang'] == 'en'


def test_names_of_runs_are_never_markup(tmp_path):
    name = '<script>alert(1)</script>{{script}}&amp;'.replace('/', '')
    make(tmp_path / name)
    text = page(read([tmp_path]))
    assert text.count('<script') == 2
    data = re.search(r'<script id="data"[^>]*>(.*?)</script>', text, re.DOTALL)[1]
    assert json.loads(data)['runs'][0]['name'] == name
    assert '<' not in in_html('</script>')


# ---------------------------------------------------------------- other outputs


def test_csv_has_a_row_for_each_epoch_of_each_run(runs, tmp_path):
    assert main([str(runs), '--csv', str(tmp_path / 'runs.csv')]) == 0
    rows = list(csv.DictReader((tmp_path / 'runs.csv').open()))
    assert len(rows) == 9
    own = [row for row in rows if row['run'] == 'digits.cnn+dgc.wm5.np2']
    assert [row['acc/test_top1'] for row in own] == ['40.0', '80.0', '88.0']
    assert [row['staleness/mean'] for row in own] == ['', '', '']


def test_png_writes_the_figures(runs, tmp_path):
    pytest.importorskip('matplotlib')
    assert main([str(runs), '--png', str(tmp_path / 'figures')]) == 0
    drawn = {path.stem for path in (tmp_path / 'figures').iterdir()}
    assert drawn == {'quality', 'phases', 'compression'}  # no run has what others need
    for name in drawn:
        assert (tmp_path / f'figures/{name}.png').read_bytes().startswith(b'\x89PNG')


def test_runs_with_several_numbers_of_workers_have_their_speed_up(tmp_path):
    pytest.importorskip('matplotlib')
    from tools.report.figures import scaling

    for stack, algorithm, speeds in (('dense.sgd', DENSE, (100, 150)), ('dgc.wm5', DGC, (90, 320))):
        for workers, speed in zip((1, 4), speeds, strict=True):
            folder = make(tmp_path / f'digits.cnn+{stack}.np{workers}', algorithm)
            facts = json.loads((folder / 'run.json').read_text())
            (folder / 'run.json').write_text(json.dumps({**facts, 'workers': workers}))
            write_lines(folder, [line(0, 50.0, 10 * workers, **{'speed/samples': speed})])
    simulated = make(tmp_path / 'digits.cnn+gtopk.wm4.np2', DGC)
    (simulated / 'environment.txt').write_text('engine: simulated\nworkers: 2\n')
    speeds, traffic = scaling(read([tmp_path])['runs'], 'task').axes
    curves = {each.get_label(): each.get_xydata().tolist() for each in speeds.lines}
    assert curves == {
        'dense.sgd': [[1, 1.0], [4, 1.5]],
        'dgc.wm5': [[1, 0.9], [4, 3.2]],
        'linear': [[1, 1], [4, 4]],
    }
    assert [each.get_ydata().tolist() for each in traffic.lines] == [[1, 4], [1, 4]]


def test_errors_of_selections_are_drawn_by_layer(runs, tmp_path):
    pytest.importorskip('matplotlib')
    from tools.report.figures import selection

    folder = runs / 'digits.cnn+dgc.wm5.np2'
    lines = [
        {'step': 9, 'layers': {'a': {'elements': 5, 'topk': 0.5}, 'b': {'elements': 7, 'topk': 1}}},
        {'step': 19, 'layers': {'a': {'elements': 5, 'topk': 0.25}, 'c': {'topk': 'damaged'}}},
    ]
    text = '\n'.join(map(json.dumps, lines))
    (folder / 'layers.jsonl').write_text(f'{text}\n{{"step": 29, "lay')
    data = read([runs])
    run = next(run for run in data['runs'] if run['label'] == 'dgc.wm5')
    assert run['selection'] == {'steps': [9, 19], 'layers': {'b': [1, None], 'a': [0.5, 0.25]}}
    assert 'line 3 is damaged' in run['notes'][0]
    (axes,) = selection(data['runs'], 'task').axes
    drawn = {each.get_label(): each.get_xydata().tolist() for each in axes.lines}
    assert drawn['a'] == [[9, 0.5], [19, 0.25]] and drawn['b'] == [[9, 1]]
    assert main([str(runs), '--png', str(tmp_path / 'figures')]) == 0
    assert (tmp_path / 'figures/selection.png').is_file()


def test_seconds_of_simulated_workers_are_not_drawn(runs):
    pytest.importorskip('matplotlib')
    from tools.report.figures import phases, quality

    folder = make(runs / 'digits.cnn+dgc.sim.np2', DGC)
    (folder / 'environment.txt').write_text('engine: simulated\nworkers: 2\n')
    made = read([runs])['runs']
    epochs, seconds, _ = quality(made, 'task').axes
    assert len(epochs.lines) == len(seconds.lines) + 1 == 4
    assert len(phases(made, 'task').axes[0].get_yticks()) == 2  # nor those of a server


def test_the_server_answers_with_new_data_only_where_there_are_some(runs):
    with Server('127.0.0.1', 0, lambda: read([runs])) as server:
        server.source._at = float('inf')  # so that it reads at the first request, and then no more
        server.source._data = read([runs])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = urllib.request.urlopen(server.url).read().decode()
        assert "connect-src 'self'" in text
        answer = urllib.request.urlopen(f'{server.url}data.json')
        assert len(json.load(answer)['runs']) == 3
        again = urllib.request.Request(
            f'{server.url}data.json', headers={'If-None-Match': answer.headers['ETag']}
        )
        with pytest.raises(urllib.error.HTTPError, match='304'):
            urllib.request.urlopen(again)
        server.source._data = {**server.source._data, 'skipped': ['x']}
        assert urllib.request.urlopen(again).status == 200
        for path, headers, code in (('etc', {}, '404'), ('', {'Host': 'evil.example:80'}, '403')):
            with pytest.raises(urllib.error.HTTPError, match=code):
                urllib.request.urlopen(urllib.request.Request(server.url + path, headers=headers))
        server.shutdown()


def test_a_server_for_other_machines_answers_to_any_name():
    with Server('0.0.0.0', 0, dict) as server:
        assert server.answers('node-7:8765')
    with Server('127.0.0.1', 0, dict) as server:
        assert server.answers('localhost:8765') and not server.answers('evil.example:8765')


def test_a_port_that_is_taken_is_said_in_one_line(runs, capsys):
    with Server('127.0.0.1', 0, dict) as server:
        port = server.server_address[1]
        assert main([str(runs), '--serve', str(port)]) == 2
    assert f'--serve {port}: ' in capsys.readouterr().err
    assert main([str(runs), '--serve', 'here']) == 2


def test_dense_is_told_from_compressed_by_the_settings(tmp_path):
    make(tmp_path / 'local', DENSE, **{'configs.train.averaging': 'utils.training.OuterSteps'})
    (run,) = read([tmp_path])['runs']
    assert not run['is_dense']
    assert summary(read_run(tmp_path / 'local'))['metric'] == 'acc/test_top1'
