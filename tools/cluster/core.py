"""The emulated cluster: making its machines, running workers on them, and removing them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from tools.cluster import keeper, launchers, network
from tools.cluster.network import ClusterError, Counters
from tools.cluster.rates import link_rates
from tools.cluster.workers import Workers, enter

FIRST_PORT = 29500


class Cluster:
    """Machines on one switch, each of them a network namespace with a link of its own.

        with Cluster(4, '1gbit', slow={3: '100mbit'}) as cluster:
            status = cluster.run(['train.py', '--configs', 'configs/digits/cnn.py'])

    There is no route out of the cluster's network.

    Args:
        nodes: number of machines.
        rate: of each link in each direction, such as '100mbit'; 'none' for no limit.
        slow: rates of the links that differ, by number of the node.

    Attributes:
        names: of the namespaces, which are also the host names of the nodes.
        addresses: IPv4 addresses of the nodes.

    Raises:
        ValueError: an invalid number of nodes or rate.
        ClusterError: on entry, if namespaces cannot be made here.
    """

    _serial = itertools.count()

    def __init__(self, nodes: int, rate: str = 'none', slow: Mapping[int, str] = {}) -> None:
        if not 1 <= nodes <= network.MOST_NODES:
            raise ValueError(f'a cluster has 1 to {network.MOST_NODES} nodes, not {nodes}')
        self._rates = link_rates(nodes, rate, slow)
        number = next(self._serial)
        self._prefix = f'dgc{os.getpid()}' + (f'-{number}' if number else '')
        self.switch = f'{self._prefix}sw'
        self.names = [f'{self._prefix}n{node}' for node in range(nodes)]
        self.addresses = [network.address(node) for node in range(nodes)]
        self._keeper: subprocess.Popen[bytes] | None = None
        self._ports = itertools.count(FIRST_PORT)

    def __enter__(self) -> Cluster:
        network.check_possible()
        keeper.remove(keeper.leftovers())
        self._keeper = subprocess.Popen(
            [sys.executable, '-I', '-S', keeper.__file__, self._prefix],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            network.make(self.switch, self.names)
            network.limit(self.switch, self.names, self._rates)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove all namespaces, and end all processes in them."""
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait()
            self._keeper = None

    @property
    def rates(self) -> list[float]:
        """Rate of each node's link in bit/s; infinite without a limit."""
        return list(self._rates)

    def set_rate(self, rate: str, slow: Mapping[int, str] = {}) -> None:
        """Give all links new rates, also while workers run. Raises ValueError for invalid ones."""
        self._rates = link_rates(len(self.names), rate, slow)
        network.limit(self.switch, self.names, self._rates)

    def counters(self) -> list[Counters]:
        """Bytes that each node has sent and received since the cluster was made."""
        return [network.count(name) for name in self.names]

    def run(
        self,
        command: Sequence[str],
        launcher: str = 'torchrun',
        env: Mapping[str, str] = {},
        timeout: float | None = None,
        stdout: int | IO[Any] | None = None,
    ) -> int:
        """Run ``python <command>`` as one worker on each node, and end all workers.

        Args:
            command: arguments of the Python interpreter.
            launcher: 'torchrun', 'horovodrun' or 'mpirun'.
            env: environment variables in addition to those of this process.
            timeout: seconds; None for no limit.
            stdout: file or descriptor for rank 0's standard output; None for that of this process.
                All other output goes to the stderr of this process.

        Returns:
            The exit status: that of the first worker that failed (128 + n if signal n ended it),
            or 124 after the timeout.

        Raises:
            ValueError: an unknown launcher.
            ClusterError: the launcher is not installed.
        """
        if launcher not in launchers.LAUNCHERS:
            raise ValueError(
                f'there is no launcher {launcher!r}: choose one of {", ".join(launchers.LAUNCHERS)}'
            )
        port = next(self._ports)
        environment = launchers.environment(len(self.names), self.addresses[0], port, env)
        sys.stdout.flush()
        with ExitStack() as stack:
            failures = Path(stack.enter_context(TemporaryDirectory(prefix='dgc'))) / 'failures'
            worker = launchers.recorded([sys.executable, *command], failures)
            if launcher == 'torchrun':
                jobs = launchers.torchrun(self.names, worker, environment)
            elif launcher == 'mpirun':
                jobs = launchers.mpirun(self.switch, self.names, worker, environment)
            else:
                server = rendezvous_server(self.switch, self.names, environment)
                rendezvous_port = stack.enter_context(server)
                jobs = launchers.horovodrun(self.names, worker, environment, rendezvous_port)
            workers = Workers(jobs, stdout, failures)
            stack.callback(workers.finish)  # last: pass on the rest of the output
            stack.callback(keeper.kill, [*self.names, self.switch])  # before: end their children
            stack.enter_context(workers)
            return workers.wait(timeout)


@contextmanager
def rendezvous_server(
    switch: str, names: Sequence[str], environment: dict[str, str]
) -> Iterator[int]:
    """Run Horovod's rendezvous server at the switch; yields its port."""
    script = str(launchers.ENTER.with_name('rendezvous.py'))
    words = [sys.executable, '-I', script, *names]
    with enter(
        switch, words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            if not port.isdigit():
                raise ClusterError('Horovod is not installed: tools/install_horovod.sh')
            yield int(port)
        finally:
            server.kill()
