"""What `python -m bench.compress` prints and writes."""

import json

import pytest
import torch

from bench import compress

KEYS = {
    'name', 'threads', 'ms', 'floor_ms', 'floor_ratio', 'bits_per_index', 'bits_per_value',
    'encode_ms', 'decode_ms',
}  # fmt: skip
SMALL = ['--numel', '50000', '--ratio', '0.01', '--rounds', '2']


@pytest.fixture(autouse=True)
def _keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_row_is_written_for_every_number_of_threads(tmp_path, capsys):
    file = tmp_path / 'compress.json'
    assert compress.main([*SMALL, '--threads', '1', '2', '--json', str(file)]) == 0
    rows = json.loads(file.read_text())
    names = [row.name for row in compress.rows()]
    assert [(row['name'], row['threads']) for row in rows] == [
        (name, threads) for threads in (1, 2) for name in names
    ]
    assert {'dgc', 'dgc-unfused', 'topk-exact'} <= set(names)
    for row in rows:
        assert row.keys() >= KEYS
        assert row['floor_ratio'] == pytest.approx(row['ms'] / row['floor_ms'])
        if row['name'] == 'sparse-loco':  # 64 of 4,096, by a code of its own
            assert (row['kept'], row['bits_per_value']) == (781, pytest.approx(2.53, abs=0.02))
            assert 7.3 < row['bits_per_index'] < 7.5
            continue
        assert 0 < row['kept'] <= 500
        assert 8 < row['bits_per_index'] < 9  # one in a hundred: entropy 8.08
        assert 8 < row['bits_per_value'] < 8.2
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)
    assert 'times faster than in plain PyTorch' in printed


def test_fused_and_unfused_rows_choose_the_same():
    """Else they would not be doing the same work."""
    kept = {}
    for row in compress.rows():
        if row.name in ('dgc', 'dgc-unfused'):
            compress.measure([row], 60_000, 0.01, compress.Codec('int8', 'packed'), rounds=3)
            kept[row.name] = row.message
    assert torch.equal(kept['dgc'].indices, kept['dgc-unfused'].indices)
    assert torch.equal(kept['dgc'].values, kept['dgc-unfused'].values)


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        (['--only', 'dgc,top'], '--only top: the rows are dgc, '),
        (['--ratio', '0'], '--ratio 0.0: it must lie between 0 and 1'),
        (['--numel', '0'], '--numel 0: it must be at least 1'),
        (['--rounds', '0'], '--rounds 0: it must be at least 1'),
        (['--threads', '0'], '--threads 0: it must be at least 1'),
    ],
)
def test_bad_input_ends_with_2_and_one_line(given, message, capsys):
    with pytest.raises(SystemExit) as ended:
        compress.main(given)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
