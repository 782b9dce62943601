"""AN4: spelled words and numbers from sound, with CTC; not the published recipe, but AdamW."""

from torch.optim import AdamW
from torch.optim.lr_scheduler import ExponentialLR

from datasets import AN4
from dgc.clipping import ClipByModelNorm
from models.losses import CTC
from models.speech import DeepSpeech
from utils.config import Config, configs
from utils.meters import CharacterErrorRate, WordErrorRate

configs.dataset = Config(AN4, root='./data/an4')
configs.model = Config(DeepSpeech, classes=29)

configs.train.num_epochs = 100
configs.train.batch_size = 8
configs.train.criterion = Config(CTC)
configs.train.optimizer = configs.train.optimizer.using(AdamW)
configs.train.optimizer.lr = 0.0001
configs.train.compression.gradient_clipping = Config(ClipByModelNorm, limit=1.0)
configs.train.scheduler = Config(ExponentialLR, gamma=1 / 1.01)

configs.train.meters = Config()
configs.train.meters['error/{}_words'] = Config(WordErrorRate)
configs.train.meters['error/{}_characters'] = Config(CharacterErrorRate)
configs.train.metric = 'error/test_words'
