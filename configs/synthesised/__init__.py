"""Synthesised words: speech made of tones, with CTC; needs no download."""

from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

from datasets import SynthesisedWords
from datasets.audio import bins
from datasets.synthesised import LETTERS, RATE
from dgc.clipping import ClipByModelNorm
from models.losses import CTC
from models.speech import DeepSpeech
from utils.config import Config, configs, derived
from utils.meters import CharacterErrorRate, WordErrorRate

configs.dataset = Config(SynthesisedWords, root='./data/synthesised')
configs.model = Config(DeepSpeech, classes=1 + len(LETTERS), bins=bins(RATE))

configs.train.num_epochs = 8
configs.train.batch_size = 4
configs.train.warmup_lr_epochs = 1
configs.train.criterion = Config(CTC)
configs.train.optimizer = configs.train.optimizer.using(AdamW)
configs.train.optimizer.lr = 0.0005
configs.train.compression.gradient_clipping = Config(ClipByModelNorm, limit=1.0)

configs.train.schedule_lr_per_epoch = False
configs.train.scheduler = Config(CosineAnnealingLR)
configs.train.scheduler.T_max = derived(
    lambda: max(1, configs.train.num_epochs - configs.train.warmup_lr_epochs)
)

configs.train.meters = Config()
configs.train.meters['error/{}_words'] = Config(WordErrorRate, letters=LETTERS)
configs.train.meters['error/{}_characters'] = Config(CharacterErrorRate, letters=LETTERS)
configs.train.metric = 'error/test_words'
