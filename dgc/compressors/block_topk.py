"""The largest elements of each block (DeMo, arXiv 2411.19870; SparseLoCo, arXiv 2508.15706)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from dgc.bucket_spec import BucketSpec
from dgc.compressors.base import Compressor
from dgc.corrected import Corrected
from dgc.sparse import Sparse, gather
from dgc.transforms.blocks import ChunkLayout, Layout, Run


class BlockTopK(Compressor):
    """The ``k`` elements of largest magnitude of each block, in whatever layout blocks have.

    Args:
        k: Elements of a block. The density of the schedule has no effect.
        layout: Divides a bucket's flat tensor into blocks: ``BlockLayout`` for the blocks of each
            parameter (DeMo), of which a shorter one sends all of its elements; ``ChunkLayout`` for
            chunks of the whole bucket (SparseLoCo).

    Raises:
        ValueError: For a ``k`` below 1, or above the size of a chunk.
    """

    def __init__(self, k: int, layout: Layout) -> None:
        if k < 1:
            raise ValueError(f'k must be at least 1 element of a block, got {k}')
        if isinstance(layout, ChunkLayout):
            layout.check(k)
            self.chunk = layout.size
        self.k = k
        self.layout = layout

    def budget(self, spec: BucketSpec, density: float) -> int:
        """Return the sum of what is selected of each block."""
        return sum(run.number * self.layout.share(self.k, run) for run in self.layout.runs(spec))

    def check_buckets(self, buckets: Sequence[BucketSpec]) -> None:
        """Warn of blocks that are too short for an element to be selected of them."""
        for spec in buckets:
            for run in self.layout.runs(spec):
                if self.layout.share(self.k, run):
                    continue
                end = run.offset + run.numel
                names = [
                    member.name
                    for member in spec.members
                    if member.offset < end and run.offset < member.offset + member.numel
                ]
                warnings.warn(
                    f'BlockTopK(k={self.k}) sends none of the last {run.numel} elements of a '
                    f'bucket, which are too short a chunk, so that a part of {", ".join(names)} is '
                    'not trained: choose a larger k, or a planner whose buckets end elsewhere, '
                    'such as PerTensor()',
                    stacklevel=4,
                )

    def select(self, corrected: Corrected, density: float) -> Sparse:
        """Return exactly ``budget`` elements."""
        values = corrected.materialize()
        runs = [Run(0, 1, len(values))]
        if corrected.spec is not None:
            runs = self.layout.runs(corrected.spec)
        chosen = []
        for run in runs:
            blocks = values[run.offset : run.offset + run.numel].view(run.number, run.size)
            share = self.layout.share(self.k, run)
            places = torch.topk(blocks.abs(), share, dim=1, sorted=False).indices
            starts = torch.arange(run.number, device=values.device) * run.size + run.offset
            chosen.append((places + starts[:, None]).view(-1))
        return gather(values, torch.cat(chosen).sort().values)
