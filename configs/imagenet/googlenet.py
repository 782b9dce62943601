"""GoogLeNet with BatchNorm and two auxiliary classifiers, 13.0 M parameters."""

from torchvision.models import googlenet

from models.imagenet import AuxiliaryCrossEntropy
from utils.config import Config, configs, derived

configs.model = Config(
    googlenet,
    num_classes=derived(lambda: configs.dataset.num_classes),
    aux_logits=True,
    init_weights=True,
)

configs.train.criterion = Config(AuxiliaryCrossEntropy, auxiliary_weight=0.3)
