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


def read_sound(path: Path, rate: int, setting: str = 'root') -> Tensor:
    """The samples of a .wav or .sph file of one channel, float32 [N] from -1 to 1.

    Raises:
        DatasetError: If the file cannot be read, is not 16-bit PCM of one channel, or has another
            rate.
    """
    try:
        content = path.read_bytes()
        if content.startswith(NIST):
            found, samples = read_sphere(content)
        else:
            found, samples = read_wav(path)
    except (OSError, wave.Error, EOFError, ValueError) as error:
        reason = f'cannot be read as sound ({error or type(error).__name__})'
        remedy = 'give it as 16-bit PCM of one channel, in a .wav or .sph file'
        raise DatasetError.about(setting, str(path), reason, remedy) from error
    if found != rate or not len(samples):
        problem = f'it has {len(samples)} samples, {found} per second, and not {rate}'
        raise DatasetError.about(setting, str(path), problem, 'set configs.dataset.rate')
    return torch.from_numpy(samples.astype(np.float32) / 2**15)


def read_wav(path: Path) -> tuple[int, np.ndarray]:
    """Rate and samples of a .wav file. Raises ValueError, wave.Error or EOFError."""
    with wave.open(str(path), 'rb') as file:
        if (file.getnchannels(), file.getsampwidth()) != (1, 2):
            raise ValueError(f'{file.getnchannels()} channels of {8 * file.getsampwidth()} bits')
        frames = file.readframes(file.getnframes())
    return file.getframerate(), np.frombuffer(frames[: len(frames) // 2 * 2], dtype='<i2')


def read_sphere(content: bytes) -> tuple[int, np.ndarray]:
    """Rate and samples of a NIST SPHERE file. Raises ValueError for one that is compressed."""
    size = int(content[len(NIST) : 16])
    lines = content[:size].decode('ascii', errors='replace').splitlines()
    fields = {line.split()[0]: line.split()[-1] for line in lines if len(line.split()) == 3}
    coding = fields.get('sample_coding', 'pcm')
    form = fields.get('channel_count', '1'), fields.get('sample_n_bytes', '2'), coding
    if form != ('1', '2', 'pcm'):
        raise ValueError(f'{form[0]} channels of {form[1]} bytes, {form[2]}')
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
