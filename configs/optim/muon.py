"""Muon for the matrices, AdamW for all else, with one rate of 1e-3 (torch 2.9 or newer)."""

from dgc.optim import MuonAndAdamW
from utils.adaptive import betas
from utils.config import Config, configs, derived

configs.train.optimizer = Config(MuonAndAdamW, lr=1e-3, weight_decay=0.1)
configs.train.optimizer.betas = derived(lambda: betas(configs.train, 0.9, 0.95))
