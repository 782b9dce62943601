"""Network namespaces on a bridge: made, limited, counted. Removing them is the keeper's business.

The bridge is in a namespace of its own, the switch, so that no interface of the machine itself is
touched or added, and any number of clusters use the same addresses side by side.
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
QUEUE = '50ms'  # how long a packet may wait at the end of a link before it is dropped


class ClusterError(RuntimeError):
    """A cluster cannot be emulated here, with the reason and what helps."""


class Counters(NamedTuple):
    """Bytes that a node's eth0 has sent and received, by the kernel, since the cluster was made.

    Ethernet, IP and TCP headers included, though the kernel counts those of packets that it sends
    off in one piece only once.
    """

    sent: int
    received: int


def check_possible() -> None:
    """Raise ClusterError where namespaces cannot be made or limited here."""
    if os.geteuid() != 0:
        raise ClusterError('network namespaces need root: run it as root, or with sudo -E')
    for program, package in (('ip', 'iproute2'), ('tc', 'iproute2'), ('unshare', 'util-linux')):
        if shutil.which(program) is None:
            raise ClusterError(f'{program} is not installed: apt-get install {package}')


def tell(*words: str) -> str:
    """Run a command of iproute2; returns what it prints. Raises ClusterError where it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = ' '.join(done.stderr.split()) or f'exit code {done.returncode}'
        hint = ' (does the kernel have sch_tbf?)' if 'qdisc' in reason else ''
        raise ClusterError(f'`{" ".join(words)}` failed: {reason}{hint}')
    return done.stdout


def address(node: int) -> str:
    """Of node 0, 1, …"""
    return f'{SUBNET}.{node + 1}'


def make(switch: str, names: Sequence[str]) -> None:
    """Make the switch, and a namespace for each of ``names`` with its eth0 plugged into it."""
    write_hosts(switch, SWITCH_ADDRESS, names)
    add_namespace(switch)
    tell('ip', '-n', switch, 'link', 'add', 'eth0', 'type', 'bridge')
    bring_up(switch, SWITCH_ADDRESS)
    for node, name in enumerate(names):
        write_hosts(name, address(node), names)
        add_namespace(name)
        port = f'port{node}'
        tell(*('ip', 'link', 'add', 'eth0', 'netns', name, 'type', 'veth'),
             *('peer', 'name', port, 'netns', switch))  # fmt: skip
        tell('ip', '-n', switch, 'link', 'set', port, 'addrgenmode', 'none', 'master', 'eth0', 'up')
        bring_up(name, address(node))


def add_namespace(name: str) -> None:
    """Make a namespace in which only the loopback is up."""
    tell('ip', 'netns', 'add', name)
    tell('ip', '-n', name, 'link', 'set', 'lo', 'up')


def bring_up(name: str, its_address: str) -> None:
    """Give eth0 its address. Without an IPv6 one, which would send packets of its own."""
    tell('ip', '-n', name, 'link', 'set', 'eth0', 'addrgenmode', 'none', 'up')
    tell('ip', '-n', name, 'address', 'add', f'{its_address}/24', 'dev', 'eth0')


def write_hosts(name: str, its_address: str, names: Sequence[str]) -> None:
    """The file that `ip netns exec` mounts as /etc/hosts.

    The machine's own host name must lead to the node's address as well: some libraries bind what it
    resolves to. torch listens on IPv6 sockets, so it sees its peers' addresses as mapped ones, and
    complains where those have no name.
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
    """Hold each link to its rate, bit/s, in both directions: at the node and at the switch."""
    for node, (name, rate) in enumerate(zip(names, rates, strict=True)):
        limit_interface(name, 'eth0', rate)
        limit_interface(switch, f'port{node}', rate)


def limit_interface(name: str, interface: str, rate: float) -> None:
    """Hold what leaves one interface to ``rate``; what waits in its queue stays there."""
    if math.isfinite(rate):
        bucket = ('rate', f'{round(rate)}bit', 'burst', f'{burst(rate)}b', 'latency', QUEUE)
        tell('tc', '-n', name, 'qdisc', 'replace', 'dev', interface, 'root', 'tbf', *bucket)
    elif 'qdisc tbf' in tell('tc', '-n', name, 'qdisc', 'show', 'dev', interface):
        tell('tc', '-n', name, 'qdisc', 'del', 'dev', interface, 'root')


def count(name: str) -> Counters:
    """What the kernel has counted at a node's eth0."""
    (link,) = json.loads(tell('ip', '-n', name, '-s', '-j', 'link', 'show', 'eth0'))
    statistics = link['stats64']
    return Counters(statistics['tx']['bytes'], statistics['rx']['bytes'])
