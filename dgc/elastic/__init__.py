"""Training that goes on when workers die, stall or join: docs/elastic.md."""

from dgc.elastic.optimizer import ElasticOptimizer
from dgc.engines.lighthouse import ElasticSettings
from dgc.engines.torchft_engine import TorchftEngine

__all__ = ['ElasticOptimizer', 'ElasticSettings', 'TorchftEngine']
