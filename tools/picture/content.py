"""What the picture shows: the stages of a gradient's path, and the modules by layer."""

from __future__ import annotations

from typing import NamedTuple


class Stage(NamedTuple):
    """A step of the path. what: one line; where: the modules that do it."""

    name: str
    what: str
    where: str


class Layer(NamedTuple):
    """Modules that may import each other and those below."""

    name: str
    modules: tuple[str, ...]


PATH = (
    Stage(
        'Source', 'gradients as autograd finishes them, or the movement of local steps', 'sources'
    ),
    Stage('Bucket', 'parameters that are sent together, as flat tensors', 'buckets, planner/'),
    Stage('Clip', 'bounds on the local gradient', 'clipping'),
    Stage('Transform', 'identity, or a blockwise DCT', 'transforms/'),
    Stage('Memory', 'error feedback: residual or velocity + gradient', 'memory/'),
    Stage('Compressor', 'what is sent: all, top-k, per block', 'compressors/'),
    Stage('Codec', 'messages as bytes: indices × values', 'codec/'),
    Stage('Exchange', 'combined over the ranks, alike on all', 'exchanges/, engines/'),
    Stage('Result', 'divided by P; transform inverted', 'reducer, buckets'),
    Stage('Memory.update', 'sent elements leave, errors return to the residual', 'memory/'),
    Stage(
        'Destination',
        '.grad for the optimizer, or for the outer optimizer',
        'optimizer, local_steps',
    ),
)

LAYERS = (
    Layer('benchmarks', ('bench/',)),
    Layer('tools', ('tools/', 'tools/harness/')),
    Layer('application', ('train.py', 'configs/', 'utils/', 'models/', 'datasets/')),
    Layer(
        'front doors',
        (
            'optimizer',
            'local_steps',
            'streaming',
            'zero_one',
            'hooks',
            'parameter_server/',
            'elastic/',
        ),
    ),
    Layer('published systems', ('algorithms/',)),
    Layer(
        'running and measuring',
        (
            'handover',
            'ownership',
            'sources',
            'outer_settings',
            'wrapper',
            'selection',
            'trace',
            'ddp',
        ),
    ),
    Layer(
        'running',
        ('horovod_settings', 'wiring', 'calibration', 'reducer', 'scaling', 'optim/'),
    ),
    Layer('composition', ('composition', 'planner/', 'control/', 'volume')),
    Layer('parts', ('memory/', 'exchanges/', 'clipping', 'nonfinite')),
    Layer(
        'parts',
        ('compressors/', 'buckets', 'bucket_state', 'handshake', 'saved_state', 'progress'),
    ),
    Layer(
        'parts', ('transforms/', 'codec/', 'engines/', 'costmodel', 'corrected', 'mean', 'state')
    ),
    Layer('values', ('bucket_spec', 'rules', 'schedule', 'sparse', 'ops/')),
    Layer('values', ('timeline', 'profile', 'spans', 'checks')),
)
