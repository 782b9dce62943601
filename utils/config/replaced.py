"""What to do about names that are no settings, though they are in the published DGC release or
in another composition. The error about such a name says it.
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
    'configs.train.compression.compress_ratio': 'add a file that compresses, such as '
    'configs/dgc/wm0.py',
    'configs.train.save_path': '--runs and --name set the run folder',
}
