"""Inception v3 with an auxiliary classifier, 27.2 M parameters, on images of 299 pixels."""

from torchvision.models import inception_v3

from models.imagenet import AuxiliaryCrossEntropy
from utils.config import Config, configs, derived

configs.dataset.image_size = 299

configs.model = Config(
    inception_v3,
    num_classes=derived(lambda: configs.dataset.num_classes),
    aux_logits=True,
    init_weights=True,
)

configs.train.criterion = Config(AuxiliaryCrossEntropy, auxiliary_weight=0.4)
