"""Settings of the published DGC release that have another form here, and what replaces each.

The error about such a setting says it; docs/dgc.md has the same table.
"""

REPLACED = {
    'configs.train.dgc': 'leave it out; files of configs/dgc/ choose DGC, without them training is '
    'dense',
    'configs.train.compression.memory.momentum': 'set configs.train.optimizer.momentum, which the '
    'memory reads',
    'configs.train.compression.memory.nesterov': 'set configs.train.optimizer.nesterov, which the '
    'memory reads',
    'configs.train.compression.memory.gradient_clipping': 'set '
    'configs.train.compression.gradient_clipping = Config(ClipByNorm, limit=…), from dgc.clipping',
    'configs.train.save_path': 'the run folder is --runs FOLDER with a name of its own, or --name',
}
