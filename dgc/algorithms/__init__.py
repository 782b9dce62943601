"""Every published system as a composition: one file each, and the only list of them."""

from __future__ import annotations

from dgc.algorithms.async_diloco import async_diloco
from dgc.algorithms.chunk import chunk
from dgc.algorithms.deep_gradient_compression import deep_gradient_compression
from dgc.algorithms.demo import demo
from dgc.algorithms.dense import dense
from dgc.algorithms.dgs import asgd, async_dgc, dgs, gradient_dropping
from dgc.algorithms.diloco import diloco, quantized_diloco
from dgc.algorithms.gaussian_k import gaussian_k
from dgc.algorithms.gravac import gravac
from dgc.algorithms.gtopk import gtopk, gtopk_doubling
from dgc.algorithms.hierarchical import hierarchical
from dgc.algorithms.l_greco import l_greco
from dgc.algorithms.lags import lags
from dgc.algorithms.merged import mgwfbp, omgs
from dgc.algorithms.muloco import muloco
from dgc.algorithms.natural import natural
from dgc.algorithms.oktopk import oktopk
from dgc.algorithms.one_bit_adam import one_bit_adam
from dgc.algorithms.one_bit_sgd import one_bit_sgd
from dgc.algorithms.power_sgd import power_sgd
from dgc.algorithms.qsgd import qsgd
from dgc.algorithms.random_k import random_k
from dgc.algorithms.sidco import sidco
from dgc.algorithms.sign_sgd import ef_sign_sgd, sign_sgd, signum
from dgc.algorithms.spardl import spardl, spardl_bruck, spardl_lres, spardl_pres, spardl_teams
from dgc.algorithms.sparse_loco import sparse_loco
from dgc.algorithms.streaming_diloco import streaming_diloco
from dgc.algorithms.table import CONSERVING, Algorithm, Kind, Law
from dgc.algorithms.tern_grad import tern_grad
from dgc.algorithms.threshold_v import threshold_v
from dgc.algorithms.zero_one_adam import zero_one_adam
from dgc.optim import OneBitAdam, ZeroOneAdam

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
            'sidco',
            'SIDCo: threshold of exponential tails, fitted in stages, all-gather',
            'Abdelmoniem et al., MLSys 2021, arXiv 2101.10761',
            sidco,
            ('configs/dgc/wm5.py', 'configs/dgc/sidco.py'),
        ),
        Algorithm(
            'threshold-v',
            'all elements above a fixed magnitude, in messages of their own length',
            'Strom, Interspeech 2015; Dutta et al., AAAI 2020, arXiv 1911.08250',
            threshold_v,
            ('configs/dgc/wm0.py', 'configs/dgc/threshold_v.py'),
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
            ('configs/spardl/teams2.py', 'configs/spardl/bruck.py'),
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
            'l-greco',
            'L-GreCo: densities by layer, for the fewest bytes at the error of a common density',
            'Markov et al., MLSys 2024, arXiv 2210.17357',
            l_greco,
            ('configs/dgc/wm5.py', 'configs/dgc/l_greco.py'),
        ),
        Algorithm(
            'gravac',
            'GraVAC: a density that falls while messages keep enough of what they compress',
            'Tyagi and Swany, arXiv 2305.12201',
            gravac,
            ('configs/dgc/wm0.py', 'configs/dgc/gravac.py'),
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
        Algorithm(
            'sign-sgd',
            'one bit per element, combined by majority vote',
            'Bernstein et al., ICML 2018, arXiv 1810.05291',
            sign_sgd,
            ('configs/signsgd/vote.py',),
            frozenset({Law.EQUALS_DENSE}),
            has_density=False,
            chooses_rule=True,
        ),
        Algorithm(
            'signum',
            'one bit per element of a momentum, combined by majority vote',
            'Bernstein et al., ICML 2018, arXiv 1810.05291',
            signum,
            ('configs/signsgd/signum.py',),
            frozenset({Law.EQUALS_DENSE}),
            has_density=False,
            chooses_rule=True,
        ),
        Algorithm(
            'ef-sign-sgd',
            'one bit per element, scaled, with a residual',
            'Karimireddy et al., ICML 2019, arXiv 1901.09847',
            ef_sign_sgd,
            ('configs/signsgd/feedback.py',),
            has_density=False,
        ),
        Algorithm(
            'one-bit-sgd',
            'one bit per element, two means per row, with a residual',
            'Seide et al., Interspeech 2014',
            one_bit_sgd,
            ('configs/signsgd/one_bit_sgd.py',),
            has_density=False,
        ),
        Algorithm(
            'qsgd',
            'values rounded at random to a few levels, unbiased',
            'Alistarh et al., NeurIPS 2017, arXiv 1610.02132',
            qsgd,
            ('configs/qsgd/bits4.py',),
            frozenset({Law.EQUALS_DENSE}),
            has_density=False,
        ),
        Algorithm(
            'terngrad',
            'values rounded at random to -1, 0 or 1 times a maximum, unbiased',
            'Wen et al., NeurIPS 2017, arXiv 1705.07878',
            tern_grad,
            ('configs/terngrad/clipped.py',),
            frozenset({Law.EQUALS_DENSE}),
            has_density=False,
        ),
        Algorithm(
            'natural',
            'values rounded at random to powers of two, unbiased',
            'Horváth et al., MSML 2022, arXiv 1905.10988',
            natural,
            ('configs/natural/bits8.py',),
            frozenset({Law.EQUALS_DENSE}),
            has_density=False,
        ),
        Algorithm(
            'random-k',
            'the same random positions on all ranks, all-reduced',
            'Stich et al., NeurIPS 2018, arXiv 1809.07599',
            random_k,
            ('configs/randomk/residual.py',),
        ),
        Algorithm(
            'power-sgd',
            'low-rank approximation of gradient matrices, all-reduced',
            'Vogels et al., NeurIPS 2019, arXiv 1905.13727',
            power_sgd,
            ('configs/powersgd/rank4.py',),
            has_density=False,
        ),
        Algorithm(
            'demo',
            'decoupled momentum: the largest cosine coefficients of each block, then signs',
            'Peng et al., arXiv 2411.19870',
            demo,
            ('configs/demo/demo.py',),
            frozenset(),
            has_density=False,
            chooses_rule=True,
        ),
        Algorithm(
            'one-bit-adam',
            'momentum in one bit per element after a warm-up of Adam',
            'Tang et al., ICML 2021, arXiv 2102.02888',
            one_bit_adam,
            ('configs/onebit/adam.py',),
            frozenset(),
            has_density=False,
            optimizer=OneBitAdam,
        ),
        Algorithm(
            'zero-one-adam',
            'one bit per element of a summed momentum from the first step on, then local steps',
            'Lu et al., ICLR 2023, arXiv 2202.06009',
            zero_one_adam,
            ('configs/zeroone/adam.py',),
            frozenset({Law.EQUALS_DENSE}),
            Kind.LOCAL_STEPS,
            has_density=False,
            optimizer=ZeroOneAdam,
        ),
        Algorithm(
            'diloco',
            'local steps of an inner optimizer, an outer step on their mean movement',
            'Douillard et al., arXiv 2311.08105',
            diloco,
            ('configs/diloco/diloco.py',),
            frozenset({Law.EQUALS_DENSE}),
            Kind.LOCAL_STEPS,
            has_density=False,
        ),
        Algorithm(
            'quantized-diloco',
            'DiLoCo with movements of 8 or 4 bits',
            'Douillard et al., arXiv 2311.08105',
            quantized_diloco,
            ('configs/diloco/int8.py',),
            frozenset({Law.EQUALS_DENSE}),
            Kind.LOCAL_STEPS,
            has_density=False,
        ),
        Algorithm(
            'streaming-diloco',
            'DiLoCo whose fragments travel at different times, during further local steps',
            'Douillard et al., arXiv 2501.18512',
            streaming_diloco,
            ('configs/streaming/diloco.py',),
            frozenset({Law.EQUALS_DENSE}),
            Kind.LOCAL_STEPS,
            has_density=False,
        ),
        Algorithm(
            'async-diloco',
            'DiLoCo with a server: outer steps on the movement of a quorum, and nobody waits',
            'arXiv 2604.21428; Liu et al., arXiv 2401.09135',
            async_diloco,
            ('configs/diloco/asynchronous.py',),
            frozenset({Law.CONSERVES, Law.EQUALS_DENSE, Law.FLUSHES}),
            Kind.ASYNCHRONOUS_LOCAL_STEPS,
            has_density=False,
        ),
        Algorithm(
            'sparse-loco',
            'local steps; two bits for the largest elements of each chunk of their movement',
            'Sarfi et al., arXiv 2508.15706',
            sparse_loco,
            ('configs/sparseloco/sparseloco.py',),
            frozenset({Law.EQUALS_DENSE, Law.FLUSHES}),
            Kind.LOCAL_STEPS,
            has_density=False,
        ),
        Algorithm(
            'muloco',
            'local steps of Muon; movements of two bits',
            'Thérien et al., arXiv 2505.23725',
            muloco,
            ('configs/muloco/muloco.py',),
            frozenset({Law.EQUALS_DENSE}),
            Kind.LOCAL_STEPS,
            has_density=False,
            chooses_rule=True,
        ),
        Algorithm(
            'dgs',
            'DGS: a parameter server, sparsified in both directions, SAMomentum',
            'Yan, arXiv 1910.10929',
            dgs,
            ('configs/dgs/dgs.py',),
            frozenset(),
            Kind.ASYNCHRONOUS,
        ),
        Algorithm(
            'asgd',
            'asynchronous SGD, uncompressed in both directions',
            'Yan, arXiv 1910.10929',
            asgd,
            ('configs/dgs/asgd.py',),
            frozenset(),
            Kind.ASYNCHRONOUS,
            has_density=False,
        ),
        Algorithm(
            'gradient-dropping',
            'asynchronous training with a residual',
            'Aji and Heafield, EMNLP 2017, arXiv 1704.05021',
            gradient_dropping,
            ('configs/dgs/gradient_dropping.py',),
            frozenset(),
            Kind.ASYNCHRONOUS,
        ),
        Algorithm(
            'async-dgc',
            'asynchronous Deep Gradient Compression',
            'Yan, arXiv 1910.10929',
            async_dgc,
            ('configs/dgs/async_dgc.py',),
            frozenset(),
            Kind.ASYNCHRONOUS,
        ),
    )
}
