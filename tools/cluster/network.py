"""Making network namespaces on a bridge, limiting and counting them. The keeper removes them.

The bridge is in a namespace of its own, the switch. So no interface of the machine itself is added
or changed, and any number of clusters can use the same addresses at the same time.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from tools.cluster.keeper import HOSTS
from tools.cluster.rates import burst

SUBNET = '10.77.0'
SWITCH_ADDRESS = f'{SUBNET}.254'
MOST_NODES = 250
QUEUE = '50ms'  # longest time that a packet waits before a link; it is dropped instead


class ClusterError(RuntimeError):
    """A cluster cannot be emulated here; the message has the reason and the remedy."""


class Counters(NamedTuple):
    """Bytes that a node's eth0 has sent and received, by the kernel, since the cluster was made.

    They include Ethernet, IP and TCP headers. The kernel counts the headers of packets that it
    sends as one piece only once.
    """

    sent: int
    received: int


def check_possible() -> None:
    """Raise ClusterError if namespaces cannot be made or limited here."""
    if os.geteuid() != 0:
        raise ClusterError('network namespaces need root: run it as root, or with sudo -E')
    for program, package in (('ip', 'iproute2'), ('tc', 'iproute2'), ('unshare', 'util-linux')):
        if shutil.which(program) is None:
            raise ClusterError(f'{program} is not installed: apt-get install {package}')


def run_command(*words: str) -> str:
    """Run a command of iproute2; return its output. Raises ClusterError if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = ' '.join(done.stderr.split()) or f'exit code {done.returncode}'
        hint = ' (does the kernel have sch_tbf?)' if 'qdisc' in reason else ''
        raise ClusterError(f'`{" ".join(words)}` failed: {reason}{hint}')
    return done.stdout


def address(node: int) -> str:
    """IPv4 address of a node; nodes are numbered from 0."""
    return f'{SUBNET}.{node + 1}'


def make(switch: str, names: Sequence[str]) -> None:
    """Make the switch, and for each name a namespace whose eth0 is connected to the switch."""
    write_hosts(switch, SWITCH_ADDRESS, names)
    add_namespace(switch)
    run_command('ip', '-n', switch, 'link', 'add', 'eth0', 'type', 'bridge')
    bring_up(switch, SWITCH_ADDRESS)
    for node, name in enumerate(names):
        write_hosts(name, address(node), names)
        add_namespace(name)
        port = f'port{node}'
        run_command(*('ip', 'link', 'add', 'eth0', 'netns', name, 'type', 'veth'),
             *('peer', 'name', port, 'netns', switch))  # fmt: skip
        run_command(
            'ip', '-n', switch, 'link', 'set', port, 'addrgenmode', 'none', 'master', 'eth0', 'up'
        )
        bring_up(name, address(node))


def add_namespace(name: str) -> None:
    """Make a namespace with only the loopback interface."""
    run_command('ip', 'netns', 'add', name)
    run_command('ip', '-n', name, 'link', 'set', 'lo', 'up')


def bring_up(name: str, its_address: str) -> None:
    """Give eth0 its address, and none of IPv6, for which the kernel would send packets."""
    run_command('ip', '-n', name, 'link', 'set', 'eth0', 'addrgenmode', 'none', 'up')
    run_command('ip', '-n', name, 'address', 'add', f'{its_address}/24', 'dev', 'eth0')


def write_hosts(name: str, its_address: str, names: Sequence[str]) -> None:
    """The file that `ip netns exec` mounts as /etc/hosts.

    The machine's own host name must resolve to the node's address, too, since some libraries bind
    to it. torch listens on IPv6 sockets, on which its peers have mapped addresses, and logs
    a warning for addresses without a name.
    """
    folder = HOSTS / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = ['127.0.0.1 localhost', f'{its_address} {name} {socket.gethostname()}']
    for node, other in enumerate(names):
        lines.append(f'::ffff:{address(node)} {other}-mapped')
        if other != name:
            lines.append(f'{address(node)} {other}')
    (folder / 'hosts').write_text('\n'.join(lines) + '\n')


def limit(switch: str, names: Sequence[str], rates: Sequence[float]) -> None:
    """Limit each link to its rate in bit/s, in both directions: at the node and at the switch."""
    for node, (name, rate) in enumerate(zip(names, rates, strict=True)):
        limit_interface(name, 'eth0', rate)
        limit_interface(switch, f'port{node}', rate)


def limit_interface(name: str, interface: str, rate: float) -> None:
    """Limit what leaves an interface to ``rate`` bit/s; packets in its queue stay there."""
    if math.isfinite(rate):
        bucket = ('rate', f'{round(rate)}bit', 'burst', f'{burst(rate)}b', 'latency', QUEUE)
        run_command('tc', '-n', name, 'qdisc', 'replace', 'dev', interface, 'root', 'tbf', *bucket)
    elif 'qdisc tbf' in run_command('tc', '-n', name, 'qdisc', 'show', 'dev', interface):
        run_command('tc', '-n', name, 'qdisc', 'del', 'dev', interface, 'root')


def count(name: str) -> Counters:
    """The kernel's counters of a node's eth0."""
    (link,) = json.loads(run_command('ip', '-n', name, '-s', '-j', 'link', 'show', 'eth0'))
    statistics = link['stats64']
    return Counters(statistics['tx']['bytes'], statistics['rx']['bytes'])
