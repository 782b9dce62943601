"""The layers of the project, from the bottom up. A module may import its own layer and those below.

docs/architecture.md draws them. Names are module prefixes; the longest match counts.
"""

LAYERS: tuple[tuple[str, ...], ...] = (
    # Values, arithmetic and messages: no gradient, no communication.
    ('dgc.checks',),
    ('dgc.schedule', 'dgc.sparse', 'dgc.timeline', 'dgc.profile', 'dgc.spans'),
    ('dgc.bucket_spec', 'dgc.rules', 'dgc.ops'),
    (
        'dgc.state',
        'dgc.codec',
        'dgc.engines',
        'dgc.costmodel',
        'dgc.corrected',
        'dgc.transforms',
        'dgc.mean',
    ),
    # The parts of a composition.
    (
        'dgc.bucket_state',
        'dgc.buckets',
        'dgc.saved_state',
        'dgc.compressors',
        'dgc.handshake',
        'dgc.progress',
    ),
    ('dgc.nonfinite', 'dgc.clipping', 'dgc.exchanges'),
    ('dgc.memory', 'dgc.volume'),
    ('dgc.planner', 'dgc.control'),
    ('dgc.composition',),
    # What runs them.
    ('dgc.reducer', 'dgc.scaling', 'dgc.optim'),
    ('dgc.calibration',),
    ('dgc.wiring',),
    (
        'dgc.outer_settings',
        'dgc.sources',
        'dgc.selection',
        'dgc.trace',
        'dgc.wrapper',
        'dgc.ownership',
        'dgc.horovod_settings',
        'dgc.algorithms.table',
        'dgc.handover',
        'dgc.ddp',
    ),
    ('dgc.parameter_server', 'dgc.algorithms'),
    ('dgc.optimizer', 'dgc.local_steps', 'dgc.streaming', 'dgc.zero_one', 'dgc.hooks'),
    ('dgc.elastic',),
    ('dgc',),
    # The application.
    ('models', 'datasets'),
    ('utils',),
    ('configs',),
    ('train',),
    # Tools and benchmarks.
    ('tools.harness',),
    ('tools',),
    ('bench',),
)

# Library → the only modules of the package and the application that may import it.
LIBRARIES: dict[str, tuple[str, ...]] = {
    'horovod': ('dgc.engines',),
    'torch.distributed': ('dgc.engines', 'dgc.hooks'),
    'torchft': ('dgc.engines',),
    'zmq': ('dgc.parameter_server.sockets',),
}
