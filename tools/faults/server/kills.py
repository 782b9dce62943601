"""A server that is killed while workers push: are all acknowledged updates in its model, once?"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dgc.parameter_server import Address
from dgc.parameter_server.protocol import Kind, Message, decode_sections
from dgc.parameter_server.sockets import SocketLink
from tools.faults.server.served import START, WORKERS, Setup, ended
from utils import sealed

# Of θ, against the largest element of the smallest update: float32 sums in another order.
TOLERANCE = 0.01
HEAD = (
    'kills of the server',
    'updates acknowledged',
    'applied',
    'in the model',
    'largest difference of θ',
    'largest element of the smallest update',
)
MOST_SECONDS = 5.0  # of pushing between two kills


class Recorder(SocketLink):
    """A worker's link, which keeps the updates that the server has acknowledged.

    Attributes:
        acknowledged: Their sections, by number.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(address, heartbeat=0.5, patience=600.0)
        self.acknowledged: dict[int, bytes] = {}

    def request(self, message: Message) -> Message:
        """See Link."""
        reply = super().request(message)
        if message.kind is Kind.PUSH and reply.kind is Kind.ANSWER:
            self.acknowledged[message.update] = bytes(message.body)
        return reply


class Pusher(threading.Thread):
    """A worker that pushes updates of random gradients as fast as it can, until it is stopped."""

    def __init__(self, setup: Setup, seed: int) -> None:
        super().__init__(daemon=True)
        self.link = Recorder(setup.address)
        self.optimizer = setup.optimizer(self.link)
        self.error: BaseException | None = None
        self._draw = torch.Generator().manual_seed(seed)
        self._over = threading.Event()

    def run(self) -> None:
        """Push."""
        try:
            while not self._over.is_set():
                for group in self.optimizer.param_groups:
                    for parameter in group['params']:
                        parameter.grad = torch.randn(parameter.shape, generator=self._draw)
                self.optimizer.step()
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Stop after the current update is acknowledged."""
        self._over.set()
        self.join()

    def total(self) -> list[Tensor]:
        """The sum of all acknowledged updates, float64 by bucket."""
        numels = [bucket.numel for bucket in self.optimizer.buckets]
        sums = [torch.zeros(numel, dtype=torch.float64) for numel in numels]
        for body in self.link.acknowledged.values():
            parts = decode_sections(body, numels, self.optimizer.composition.codec)
            for values, part in zip(sums, parts, strict=True):
                part._replace(values=part.values.double()).add_to(values)
        return sums


def kill(folder: Path, kills: int, seed: int) -> Iterator[dict[str, object]]:
    """Kill a server while workers push, and start it again.

    Yields:
        A result a kill: the updates when the server was up again, and the seconds until then. At
        last the sums: updates that the workers know of, those that the server counts, and the
        largest difference of an element of its θ from the first one less all acknowledged updates,
        beside the largest element of the smallest update.
    """
    draw = random.Random(f'{seed} kills')
    setup = Setup(folder, is_wide=False)
    server = setup.serve(WORKERS)
    processes = [server]
    with ended(processes):
        setup.wait_for_version(0, server)
        (path,) = setup.checkpoints.glob('server.u*.pth')
        first = sealed.read(path)['parameters']
        pushers = [Pusher(setup, seed + number) for number in range(WORKERS)]
        for pusher in pushers:
            pusher.start()
        version: int | None = 0
        for number in range(kills):
            version = setup.wait_for_version((version or 0) + 1, server)
            time.sleep(draw.uniform(0.0, MOST_SECONDS))
            server.kill()
            server.wait()
            start = time.monotonic()
            server = processes[0] = setup.serve(WORKERS)
            version = setup.wait_for_version(0, server)
            if version is None:
                yield {'number': number, 'wrong': 'the server did not start again'}
                return
            seconds = round(time.monotonic() - start, 1)
            yield {'number': number, 'update': version, 'seconds': seconds, 'wrong': ''}
        setup.wait_for_version((version or 0) + 1, server)
        for pusher in pushers:
            pusher.stop()
        server.send_signal(signal.SIGTERM)
        code = server.wait(START)
        line = {'kills of the server': kills, 'code': code, **balance(setup, first, pushers)}
        if code:
            line['wrong'] = f'the server ended with {code} after SIGTERM'
        yield line


def balance(setup: Setup, first: dict[str, Tensor], pushers: Sequence[Pusher]) -> dict[str, object]:
    """Compare the server's last checkpoint with what its workers have recorded."""
    state = sealed.read(max(setup.checkpoints.glob('server.u*.pth')))
    acknowledged = {each.link.session: len(each.link.acknowledged) for each in pushers}
    sums = [sum(parts) for parts in zip(*(each.total() for each in pushers), strict=True)]
    difference, least = 0.0, float('inf')
    for bucket, total in zip(pushers[0].optimizer.buckets, sums, strict=True):
        for name, view in bucket.views(total):
            expected = first[name].double() - view
            found = state['parameters'][name].double()
            difference = max(difference, float((found - expected).abs().max()))
    for pusher in pushers:
        for body in pusher.link.acknowledged.values():
            numels = [bucket.numel for bucket in pusher.optimizer.buckets]
            parts = decode_sections(body, numels, pusher.optimizer.composition.codec)
            least = min(least, max(float(part.values.abs().max()) for part in parts))
    errors = [str(each.error) for each in pushers if each.error is not None]
    return {
        'updates acknowledged': sum(acknowledged.values()),
        'applied': sum(state['applied'].values()),
        'in the model': state['version'],
        'largest difference of θ': difference,
        'largest element of the smallest update': least,
        'wrong': '; '.join(errors) or faults_of(acknowledged, state, difference / least),
    }


def faults_of(acknowledged: dict[int, int], state: dict[str, Any], difference: float) -> str:
    """What is lost or applied twice; '' for nothing.

    Args:
        acknowledged: Updates by session, as the workers know them.
        state: The server's last checkpoint.
        difference: Of its θ, in units of the smallest update.
    """
    if state['applied'] != acknowledged:
        return f'acknowledged {acknowledged}, applied {state["applied"]}'
    if state['version'] != sum(acknowledged.values()):
        return f'{state["version"]} updates in the model, {sum(acknowledged.values())} acknowledged'
    return '' if difference <= TOLERANCE else f'θ differs by {difference:.1e} of an update'
