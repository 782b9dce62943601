"""Penn Treebank: LSTMs that carry their state, as Zaremba, Sutskever and Vinyals trained them."""

from torch.optim.lr_scheduler import MultiStepLR

from datasets import PennTreebank
from dgc.clipping import ClipByModelNorm
from models.language import LSTMLanguageModel
from models.losses import TokenLoss
from utils.config import Config, configs, derived
from utils.meters import CrossEntropy, Perplexity

configs.dataset = Config(PennTreebank, root='./data/ptb', vocabulary=10_000, length=35)
configs.model = Config(
    LSTMLanguageModel, vocabulary=derived(lambda: configs.dataset.vocabulary), carries=True
)

# The paper sums the loss over the words of a window: its learning rate of 1 and its limit of the
# gradient's norm are `length` times and a `length`-th of these, where the loss is their mean.
configs.train.criterion = Config(TokenLoss)
configs.train.batch_size = 20
configs.train.warmup_lr_epochs = 0
configs.train.optimizer.momentum = 0.0
configs.train.optimizer.lr = derived(lambda: float(configs.dataset.length))
configs.train.compression.gradient_clipping = Config(ClipByModelNorm)
configs.train.compression.gradient_clipping.limit = derived(lambda: 5 / configs.dataset.length)
configs.train.scheduler = Config(MultiStepLR)

configs.train.meters = Config()
configs.train.meters['loss/{}'] = Config(CrossEntropy)
configs.train.meters['perplexity/{}'] = Config(Perplexity)
configs.train.metric = 'perplexity/valid'
