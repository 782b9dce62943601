"""The momentum of the mean while a bucket is uncompressed, as in the release: for wm5o."""

from dgc.memory import MeanMomentum
from utils.config import Config, configs

configs.train.compression.memory = Config(MeanMomentum)
