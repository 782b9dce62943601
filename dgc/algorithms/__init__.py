"""Every published system as a composition: one file each, and the only list of them."""

from __future__ import annotations

from dgc.algorithms.chunk import chunk
from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.algorithms.dense import dense
from dgc.algorithms.gaussian_k import gaussian_k
from dgc.algorithms.gtopk import gtopk, gtopk_doubling
from dgc.algorithms.hierarchical import hierarchical
from dgc.algorithms.lags import lags
from dgc.algorithms.merged import mgwfbp, omgs
from dgc.algorithms.oktopk import oktopk
from dgc.algorithms.spardl import spardl, spardl_bruck, spardl_lres, spardl_pres, spardl_teams
from dgc.algorithms.table import CONSERVING, Algorithm, Kind, Law

__all__ = ['ALGORITHMS', 'Algorithm', 'Kind', 'Law']

LOSING = CONSERVING - {Law.CONSERVES}  # some truncation error is lost
SUN = 'Sun et al., arXiv 1902.06855'

ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        Algorithm(
            'dense',
            'uncompressed all-reduce of every gradient',
            'baseline',
            dense,
            ('configs/dense/sgd.py',),
            CONSERVING - {Law.CONSERVES, Law.FLUSHES},
            has_density=False,
        ),
        Algorithm(
            'dgc',
            'Deep Gradient Compression: sampled top-k with momentum correction, all-gather',
            'Lin et al., ICLR 2018, arXiv 1712.01887',
            deep_gradient_compression,
            ('configs/dgc/wm5.py',),
        ),
        Algorithm(
            'gaussian-k',
            'threshold of a fitted normal distribution, all-gather',
            'Shi et al., arXiv 1911.08772',
            gaussian_k,
            ('configs/dgc/wm5.py', 'configs/dgc/gaussian.py'),
        ),
        Algorithm(
            'gtopk',
            'gTop-k: a tree of sums of two, each cut to its k largest',
            'Shi et al., ICDCS 2019, arXiv 1901.04359',
            gtopk,
            ('configs/gtopk/tree.py',),
        ),
        Algorithm(
            'gtopk-doubling',
            'gTop-k by recursive doubling',
            'Shi et al., ICDCS 2019, arXiv 1901.04359',
            gtopk_doubling,
            ('configs/gtopk/doubling.py',),
        ),
        Algorithm(
            'spardl',
            'SparDL: sparse reduce-scatter and all-gather, all residuals collected',
            'Zhao et al., ICDE 2024, arXiv 2304.00737',
            spardl,
            ('configs/spardl/gres.py',),
        ),
        Algorithm(
            'spardl-teams',
            'SparDL in two teams, gathered by recursive doubling (R-SAG)',
            'Zhao et al., ICDE 2024, arXiv 2304.00737',
            spardl_teams,
            ('configs/spardl/teams2.py',),
        ),
        Algorithm(
            'spardl-bruck',
            "SparDL in two teams, gathered by Bruck's algorithm (B-SAG)",
            'Zhao et al., ICDE 2024, arXiv 2304.00737',
            spardl_bruck,
            ('configs/spardl/bruck.py',),
        ),
        Algorithm(
            'spardl-pres',
            'SparDL with end-procedure residuals only',
            'Zhao et al., ICDE 2024, arXiv 2304.00737',
            spardl_pres,
            ('configs/spardl/pres.py',),
            LOSING,
        ),
        Algorithm(
            'spardl-lres',
            'SparDL with local residuals only',
            'Zhao et al., ICDE 2024, arXiv 2304.00737',
            spardl_lres,
            ('configs/spardl/lres.py',),
            LOSING,
        ),
        Algorithm(
            'oktopk',
            'Ok-Topk: balanced split-and-reduce, all-gather above a global threshold',
            'Li and Hoefler, PPoPP 2022, arXiv 2201.07598',
            oktopk,
            ('configs/oktopk/periodic.py',),
        ),
        Algorithm(
            'omgs',
            'OMGS-SGD: layers merged by measured times, top-k',
            'Shi et al., INFOCOM 2020',
            omgs,
            ('configs/omgs/merged.py',),
        ),
        Algorithm(
            'mgwfbp',
            'MG-WFBP: layers merged by measured times, uncompressed',
            'Shi et al., INFOCOM 2019',
            mgwfbp,
            ('configs/mgwfbp/merged.py',),
            CONSERVING - {Law.CONSERVES, Law.FLUSHES},
            has_density=False,
        ),
        Algorithm(
            'lags',
            'LAGS-SGD: a density for each layer that hides behind the backward pass',
            'Shi et al., ECAI 2020, arXiv 1911.08727',
            lags,
            ('configs/lags/adaptive.py',),
        ),
        Algorithm(
            'chunk',
            'chunks chosen together, all-reduced',
            SUN,
            chunk,
            ('configs/chunk/chunk16.py',),
        ),
        Algorithm(
            'hierarchical',
            'uncompressed inside a machine, sparse between machines',
            SUN,
            hierarchical,
            ('configs/hierarchical/all_gather.py',),
        ),
    )
}
