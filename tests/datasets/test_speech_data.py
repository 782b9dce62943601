"""Sound files, spectrograms, manifests, AN4's folder, and words that are synthesised."""

from __future__ import annotations

import inspect
import itertools
import re
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datasets import AN4, DatasetError, Speech, SynthesisedWords
from datasets.audio import bins, log_spectrogram, read_sound, write_wav
from datasets.letters import LETTERS, encode, greedy, spell
from datasets.synthesised import LETTERS as SYNTHESISED
from datasets.synthesised import RATE
from models.losses import CTC
from models.speech import DeepSpeech

HEADER = 1024


def tone(frequency: float, seconds: float = 0.2, rate: int = 16_000) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate)


def write_sphere(path: Path, samples: np.ndarray, order: str, more: str = '') -> None:
    lines = [
        'NIST_1A\n   1024',
        f'sample_count -i {len(samples)}',
        'sample_rate -i 16000',
        'channel_count -i 1',
        'sample_n_bytes -i 2',
        f'sample_byte_format -s2 {"10" if order == ">" else "01"}',
        *filter(None, [more]),
        'end_head',
    ]
    header = '\n'.join(lines).encode().ljust(HEADER)
    path.write_bytes(header + (samples * (2**15 - 1)).astype(f'{order}i2').tobytes())


def test_a_tone_is_loudest_at_its_frequency():
    found = log_spectrogram(torch.from_numpy(tone(3000)).float(), 16_000)
    assert found.shape == (bins(16_000), 1 + 20) == (161, 21)
    assert (found[:, 3:-3].argmax(0) == 60).all()  # bands are 50 Hz apart
    assert abs(float(found.mean())) < 1e-5 and abs(float(found.std()) - 1) < 1e-4


def test_a_sound_shorter_than_a_window_has_a_frame_and_silence_is_finite():
    assert log_spectrogram(torch.zeros(3), 16_000).shape[1] >= 1
    assert log_spectrogram(torch.zeros(16_000), 16_000).isfinite().all()


@pytest.mark.parametrize('order', ['<', '>'])
def test_sphere_files_of_either_byte_order_sound_as_wav_files(tmp_path, order):
    write_wav(tmp_path / 'a.wav', tone(700), 16_000)
    write_sphere(tmp_path / 'a.sph', tone(700), order)
    sounds = [read_sound(tmp_path / name, 16_000) for name in ('a.wav', 'a.sph')]
    assert torch.equal(*sounds) and sounds[0].abs().max() == pytest.approx(0.5, abs=0.01)


def bad_files(folder: Path) -> dict[str, str]:
    """Files that are no sound of ours, with what is said of them."""
    write_wav(folder / 'rate.wav', tone(700), 8_000)
    write_wav(folder / 'empty.wav', tone(700, 0), 16_000)
    write_wav(folder / 'whole.wav', tone(700), 16_000)
    (folder / 'cut.wav').write_bytes((folder / 'whole.wav').read_bytes()[:30])
    (folder / 'text.wav').write_text('no sound')
    write_sphere(
        folder / 'packed.sph', tone(700), '<', 'sample_coding -s26 pcm,embedded-shorten-v2.00'
    )
    write_sphere(folder / 'rateless.sph', tone(700), '<')
    content = (folder / 'rateless.sph').read_bytes()
    (folder / 'rateless.sph').write_bytes(content.replace(b'sample_rate', b'sample_hate'))
    with wave.open(str(folder / 'stereo.wav'), 'wb') as file:
        file.setparams((2, 2, 16_000, 0, 'NONE', ''))
        file.writeframes(bytes(40))
    return {
        'rate.wav': 'it has 8000 samples per second, and not 16000; set configs.dataset.rate',
        'empty.wav': 'it has no samples; mend it or leave it out',
        'rateless.sph': 'its header has no sample_rate',
        'cut.wav': 'cannot be read as sound',
        'text.wav': 'cannot be read as sound',
        'packed.sph': 'shorten',
        'stereo.wav': '2 channels of 16 bits',
        'missing.wav': 'No such file',
    }


def test_files_that_are_no_sound_are_named(tmp_path):
    for name, problem in bad_files(tmp_path).items():
        with pytest.raises(DatasetError, match=f'{name}.*{problem}'):
            read_sound(tmp_path / name, 16_000)


@pytest.mark.parametrize('name', ['whole.wav', 'whole.sph'])
@given(place=st.integers(0, 120), content=st.binary(max_size=8))
def test_a_damaged_header_is_read_or_refused_by_name(tmp_path_factory, name, place, content):
    path = tmp_path_factory.getbasetemp() / name
    if name.endswith('.wav'):
        write_wav(path, tone(700, 0.01), 16_000)
    else:
        write_sphere(path, tone(700, 0.01), '<')
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + content + whole[place + len(content) :])
    try:
        assert read_sound(path, 16_000).dtype == torch.float32
    except DatasetError as error:
        assert str(path) in str(error)


# ---------------------------------------------------------------- letters


@given(st.text(LETTERS, max_size=12), st.integers(0, 5))
def test_letters_are_spelled_as_they_were_encoded_without_padding(text, padding):
    numbers = [*encode(text).tolist(), *[0] * padding]
    assert spell(numbers) == text


def test_the_greedy_decoder_joins_repetitions_that_no_blank_divides():
    path = torch.tensor([[3, 3, 0, 3, 4, 4, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]])
    scores = torch.nn.functional.one_hot(path, len(LETTERS) + 1)
    assert greedy(scores) == ['aab', '']


# ---------------------------------------------------------------- manifests and AN4

SAID = {'one': 'YES', 'two': 'RUBOUT G M', 'three': 'twenty'}


@pytest.fixture
def sounds(tmp_path) -> Path:
    for number, name in enumerate(SAID, 1):
        write_wav(tmp_path / f'{name}.wav', tone(300 * number, 0.2 * number), 16_000)
    return tmp_path


def test_a_manifest_has_transcripts_or_files_with_them(sounds):
    (sounds / 'two.txt').write_text('RUBOUT G M\n')
    (sounds / 'train.csv').write_text('one.wav,YES\ntwo.wav,two.txt\n\n')
    (sounds / 'test.csv').write_text(f'{sounds}/three.wav,"twenty"\n')
    data = Speech(*(str(sounds / f'{split}.csv') for split in ('train', 'test')))
    said = [spell(target.tolist()) for split in ('train', 'test') for _, target in data[split]]
    assert said == ['yes', 'rubout g m', 'twenty']


def test_the_samples_of_a_batch_are_as_long_as_its_longest(sounds):
    (sounds / 'all.csv').write_text('one.wav,yes\ntwo.wav,rubout g m\n')
    data = Speech(*[str(sounds / 'all.csv')] * 2)['train']
    alone, longer = data[0], data[1]
    (sound, letters), second = data.__getitems__([0, 1])
    assert sound.shape == second[0].shape == longer[0].shape
    frames = alone[0].shape[1]
    assert torch.equal(sound[:, :frames], alone[0]) and (sound[:, frames:] == 0).all()
    assert (sound[-1, :frames] == 1).all()
    assert letters.tolist() == [*alone[1].tolist(), *[0] * 7]


@pytest.mark.parametrize(
    ('line', 'problem'),
    [
        ('one.wav', 'line 1 has 1 fields'),
        ('one.wav,missing.txt', 'No such file'),
        ('one.wav,yes!', "has '!'"),
        ('one.wav,', 'its transcript is empty'),
    ],
)
def test_lines_that_cannot_be_used_are_named(sounds, line, problem):
    (sounds / 'all.csv').write_text(f'{line}\n')
    with pytest.raises(DatasetError, match=f'configs.dataset.train = .*{problem}'):
        Speech(*[str(sounds / 'all.csv')] * 2)


@pytest.mark.parametrize('stride', [1, 2, 3])
@pytest.mark.parametrize('again', ['', 'e'])  # two equal letters need a frame between them
def test_a_transcript_that_is_too_long_for_the_network_is_named_when_it_is_read(
    sounds, stride, again
):
    frames = -(-41 // stride)  # of two.wav
    text = ('abcde' * 9)[: frames - 2 * len(again)]
    text = text[:5] + again + text[5:]
    (sounds / 'fits.csv').write_text(f'two.wav,{text}\n')
    (sounds / 'long.csv').write_text(f'two.wav,{text}z\n')
    data = Speech(str(sounds / 'fits.csv'), str(sounds / 'long.csv'), stride=stride)
    assert data['train'][0][0].shape[1] == 41
    problem = f'its 41 frames become {frames} of the network, and its {len(text) + 1} letters need'
    with pytest.raises(DatasetError, match=rf'two\.wav.*{problem} {frames + 1}; .*dataset\.stride'):
        data['test'][0]


def test_what_is_read_has_a_finite_loss_in_the_network_with_the_default_stride(sounds):
    for name, letters in (('all', 21), ('long', 22)):
        (sounds / f'{name}.csv').write_text(f'one.wav,yes\ntwo.wav,{("abcde" * 9)[:letters]}\n')
    data = Speech(str(sounds / 'all.csv'), str(sounds / 'long.csv'))
    with pytest.raises(DatasetError, match=r'two\.wav'):
        data['test'][1]
    samples = data['train'].__getitems__([0, 1])
    inputs, targets = (torch.stack(part) for part in zip(*samples, strict=True))
    torch.manual_seed(0)
    network = DeepSpeech(1 + len(LETTERS), bins(16_000), channels=1, hidden=4, layers=1)
    loss = CTC()(network(inputs), targets)
    loss.backward()
    assert loss < 100 and all(each.grad.isfinite().all() for each in network.parameters())


def test_errors_name_settings_that_the_data_set_has(sounds, tmp_path):
    """Of letters, rates and strides: what a remedy says to set can be set."""
    line = 'one.wav,yes!\n'
    for name in ('train', *(f'an4_{split}_manifest' for split in ('train', 'test'))):
        (sounds / f'{name}.csv').write_text(line)
    words = SynthesisedWords(str(tmp_path / 'w'), num_train=1, num_test=1)
    folder = words['train'].utterances[0].path.parents[1]
    sets = {
        Speech: lambda: Speech(*[str(sounds / 'train.csv')] * 2),
        AN4: lambda: AN4(str(sounds)),
        SynthesisedWords: lambda: SynthesisedWords(str(tmp_path / 'w'), num_train=1, num_test=1),
    }
    for text in ('yes!', 'a', 'abcd' * 100):  # other letters, another rate, too few frames
        for manifest in [*sounds.glob('*.csv'), folder / 'train.csv']:
            manifest.write_text(f'sound.wav,{text}\n')
            rate = RATE if manifest.parent == folder else 16_000
            write_wav(manifest.parent / 'sound.wav', tone(500), rate if len(text) > 1 else 11_025)
        for kind, make in sets.items():
            with pytest.raises(DatasetError) as caught:
                make()['train'][0]
            named = re.findall(r'set configs\.dataset\.(\w+)', str(caught.value))
            known = inspect.signature(kind).parameters
            assert set(named) <= set(known), (kind, str(caught.value))
            assert named or not {'a': {'rate'}, 'yes!': {'letters'}}.get(text, set()) & set(known)


def test_a_manifest_without_a_line_is_refused(sounds):
    (sounds / 'one.csv').write_text('one.wav,yes\n')
    (sounds / 'none.csv').write_text('\n')
    for split, other in (('train', 'test'), ('test', 'train')):
        paths = {split: str(sounds / 'none.csv'), other: str(sounds / 'one.csv')}
        with pytest.raises(DatasetError, match=rf'configs\.dataset\.{split} = .*it has no line'):
            Speech(**paths)


def test_no_stride_is_refused(sounds):
    (sounds / 'all.csv').write_text('one.wav,yes\n')
    with pytest.raises(DatasetError, match=r'configs\.dataset\.stride = 0: .*choose 1 or more'):
        Speech(*[str(sounds / 'all.csv')] * 2, stride=0)


@pytest.mark.parametrize('ending', ['.wav', '.sph'])
def test_an4_is_read_as_it_was_published(tmp_path, ending):
    lines = {'train': '<s> {} </s> ({})', 'test': '{} ({})'}
    (tmp_path / 'etc').mkdir()
    for split, line in lines.items():
        folder = tmp_path / f'wav/an4_{split}/spkr'
        folder.mkdir(parents=True)
        for name in SAID:
            path = folder / f'{split}-{name}{ending}'
            if ending == '.wav':
                write_wav(path, tone(500), 16_000)
            else:
                write_sphere(path, tone(500), '<')
        ids = [f'an4_{split}/spkr/{split}-{name}' for name in SAID]
        (tmp_path / f'etc/an4_{split}.fileids').write_text('\n'.join(ids) + '\n')
        said = [line.format(text, f'{split}-{name}') for name, text in SAID.items()]
        (tmp_path / f'etc/an4_{split}.transcription').write_text('\n'.join(said) + '\n')
    data = AN4(str(tmp_path))
    assert {split: len(data[split]) for split in data} == {'train': 3, 'test': 3}
    assert spell(data['test'][1][1].tolist()) == 'rubout g m'
    path.unlink()
    with pytest.raises(DatasetError, match=r'test-three has no sound, \.wav or \.sph'):
        AN4(str(tmp_path))


def test_an4_may_have_manifests_and_must_have_something(sounds):
    with pytest.raises(DatasetError, match='neither etc/ nor an4_train_manifest'):
        AN4(str(sounds))
    for split in ('train', 'val', 'test'):
        (sounds / f'an4_{split}_manifest.csv').write_text('one.wav,YES\n')
    assert list(AN4(str(sounds))) == ['train', 'valid', 'test']
    (sounds / 'an4_val_manifest.csv').unlink()
    assert list(AN4(str(sounds))) == ['train', 'test']


# ---------------------------------------------------------------- synthesised words


def test_words_are_synthesised_once_and_the_same_for_a_seed(tmp_path):
    data = SynthesisedWords(str(tmp_path / 'a'), num_train=4, num_test=2)
    again = SynthesisedWords(str(tmp_path / 'b'), num_train=4, num_test=2)
    other = SynthesisedWords(str(tmp_path / 'b'), num_train=4, num_test=2, seed=1)
    assert {split: len(data[split]) for split in data} == {'train': 4, 'test': 2}
    paths = [utterance.path for utterance in data['train'].utterances]
    before = [path.stat().st_mtime_ns for path in paths]
    SynthesisedWords(str(tmp_path / 'a'), num_train=4, num_test=2)
    assert [path.stat().st_mtime_ns for path in paths] == before
    for mine, same, different in zip(data['train'], again['train'], other['train'], strict=True):
        assert torch.equal(mine[0], same[0]) and torch.equal(mine[1], same[1])
        assert mine[0].shape != different[0].shape or not torch.equal(mine[0], different[0])


def test_each_letter_sounds_unlike_the_others():
    from datasets.synthesised import HIGH, LOW

    assert len(LOW) * len(HIGH) == len(SYNTHESISED) - 1 == 16
    for tones in (LOW, HIGH):
        ratios = [high / low for low, high in itertools.pairwise(tones)]
        assert min(ratios) > 1.06 / 0.94  # so that no speaker's tone is another one's
    assert max(HIGH) * 1.06 < RATE / 2


@pytest.mark.parametrize('setting', ['num_train', 'num_test'])
def test_no_sentence_is_refused(tmp_path, setting):
    with pytest.raises(DatasetError, match=f'{setting} = 0: no sentence'):
        SynthesisedWords(str(tmp_path), **{setting: 0})
