"""An emulated cluster: machines that are network namespaces, on links held to a stated rate.

    with Cluster(nodes=4, rate='100mbit', slow={3: '10mbit'}) as cluster:
        status = cluster.run(['train.py', '--configs', 'configs/digits/cnn.py'])

Sockets and launchers are real. The command line is `python -m tools.cluster --help`.
"""

from tools.cluster.core import Cluster
from tools.cluster.network import ClusterError, Counters
from tools.cluster.rates import parse_rate

__all__ = ['Cluster', 'ClusterError', 'Counters', 'parse_rate']
