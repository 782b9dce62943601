"""Sound files, and the spectrograms that networks read."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datasets.errors import DatasetError

__all__ = ['bins', 'log_spectrogram', 'read_sound', 'write_wav']

WINDOW, STEP = 0.02, 0.01  # seconds, as in Deep Speech 2 (Amodei et al., 2016)
NIST = b'NIST_1A\n'
SET_RATE = 'set configs.dataset.rate'


def bins(rate: int) -> int:
    """Number of frequencies of a spectrogram of sound with ``rate`` samples per second."""
    return int(rate * WINDOW) // 2 + 1


def log_spectrogram(samples: Tensor, rate: int) -> Tensor:
    """log(1 + magnitude) in windows of 20 ms, every 10 ms, with mean 0 and deviation 1.

    Args:
        samples: float32 [N], from -1 to 1.
        rate: Samples per second.

    Returns:
        float32 [bins, 1 + N // (rate / 100)].
    """
    size, step = int(rate * WINDOW), int(rate * STEP)
    found = torch.stft(
        torch.nn.functional.pad(samples, (0, max(size - len(samples), 0))),
        size,
        step,
        window=torch.hamming_window(size),
        return_complex=True,
        pad_mode='constant',
    )
    logs = found.abs().log1p()
    return (logs - logs.mean()) / logs.std().clamp(min=1e-5)


def read_sound(path: Path, rate: int, setting: str = 'root', remedy: str = SET_RATE) -> Tensor:
    """The samples of a .wav or .sph file of one channel, float32 [N] from -1 to 1.

    Args:
        path: Of the file.
        rate: Its samples per second.
        setting: Named in errors.
        remedy: For a file with another rate.

    Raises:
        DatasetError: If the file cannot be read, is not 16-bit PCM of one channel, is empty, or has
            another rate.
    """
    try:
        content = path.read_bytes()
        if content.startswith(NIST):
            found, samples = read_sphere(content)
        else:
            found, samples = read_wav(path)
    except (OSError, wave.Error, EOFError, ValueError, RuntimeError) as error:
        reason = f'cannot be read as sound ({error or type(error).__name__})'
        form = 'give it as 16-bit PCM of one channel, in a .wav or .sph file'
        raise DatasetError.about(setting, str(path), reason, form) from error
    if not len(samples):
        raise DatasetError.about(setting, str(path), 'it has no samples', 'mend it or leave it out')
    if found != rate:
        problem = f'it has {found} samples per second, and not {rate}'
        raise DatasetError.about(setting, str(path), problem, remedy)
    return torch.from_numpy(samples.astype(np.float32) / 2**15)


def read_wav(path: Path) -> tuple[int, np.ndarray]:
    """Rate and samples of a .wav file. Raises ValueError, wave.Error, EOFError or RuntimeError."""
    with wave.open(str(path), 'rb') as file:
        if (file.getnchannels(), file.getsampwidth()) != (1, 2):
            raise ValueError(f'{file.getnchannels()} channels of {8 * file.getsampwidth()} bits')
        frames = file.readframes(file.getnframes())
    return file.getframerate(), np.frombuffer(frames[: len(frames) // 2 * 2], dtype='<i2')


def read_sphere(content: bytes) -> tuple[int, np.ndarray]:
    """Rate and samples of a NIST SPHERE file.

    Raises:
        ValueError: If it is compressed, or has no rate.
    """
    size = int(content[len(NIST) : 16])
    lines = content[:size].decode('ascii', errors='replace').splitlines()
    fields = {line.split()[0]: line.split()[-1] for line in lines if len(line.split()) == 3}
    coding = fields.get('sample_coding', 'pcm')
    form = fields.get('channel_count', '1'), fields.get('sample_n_bytes', '2'), coding
    if form != ('1', '2', 'pcm'):
        raise ValueError(f'{form[0]} channels of {form[1]} bytes, {form[2]}')
    if 'sample_rate' not in fields:
        raise ValueError('its header has no sample_rate')
    order = '>i2' if fields.get('sample_byte_format') == '10' else '<i2'
    data = content[size:]
    return int(fields['sample_rate']), np.frombuffer(data[: len(data) // 2 * 2], dtype=order)


def write_wav(path: Path, samples: np.ndarray, rate: int) -> None:
    """Write samples from -1 to 1 as a 16-bit .wav file of one channel."""
    with wave.open(str(path), 'wb') as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clip(-1, 1) * (2**15 - 1)).astype('<i2').tobytes())
