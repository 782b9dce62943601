"""The report page and TensorBoard in a real browser, where one is installed."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs_made import DGC, make, make_server

from tools.report.__main__ import main
from utils.curves import Curves

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')
CHROMIUM = next((path for path in map(shutil.which, NAMES) if path), None)
FLAGS = (
    *('--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'),
    *('--disable-background-networking', '--disable-component-update', '--disable-sync'),
    *('--no-first-run', '--enable-logging=stderr', '--v=0', '--window-size=1280,900'),
)
BROWSERS_OWN = re.compile(r'google|gvt1')  # hosts that the browser itself asks, for any page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f'no browser: {", ".join(NAMES)}')


class Counting(http.server.BaseHTTPRequestHandler):
    """A proxy that answers nothing, and notes what it was asked for."""

    asked: list[str]

    def handle_one_request(self) -> None:
        line = self.rfile.readline(65537).decode(errors='replace').strip()
        if line:
            self.asked.append(line)
        self.close_connection = True


@contextlib.contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """The address of a counting proxy, and what it was asked for."""
    asked: list[str] = []
    handler = type('Handler', (Counting,), {'asked': asked})
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_address[1]}', asked
        server.shutdown()


def opened(url: str, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """The page as it stands when its script has run, and what it wrote to the console."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f'--user-data-dir={profile}', *flags, '--dump-dom', url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, re.findall(r'CONSOLE.*', done.stderr)


def text_of(page: str, element: str) -> str:
    """The text of the element with this id, up to the next element with one."""
    part = page.partition(f'id="{element}"')[2].partition('>')[2]
    return re.sub(r'<[^>]+>', '', re.split(r'<[^>]+ id="', part)[0])


def test_the_page_answers_without_an_error_or_a_request(tmp_path):
    make(tmp_path / 'runs/digits.cnn+dense.sgd.np2')
    make(tmp_path / 'runs/digits.cnn+dgc.wm5.np2', DGC, (40.0, 80.0, 60.0), 20)
    make_server(tmp_path / 'runs/digits.cnn+dgs.dgs.np2')
    (tmp_path / 'runs/broken').mkdir()
    (tmp_path / 'runs/broken/metrics.jsonl').write_text('{"epoch": 0\n{"epoch": 1, "a": NaN}\n')
    assert main([str(tmp_path / 'runs'), '--out', str(tmp_path / 'out')]) == 0
    with proxy() as (address, asked):
        url = (tmp_path / 'out/index.html').as_uri()
        page, console = opened(url, tmp_path / 'profile', f'--proxy-server={address}')
    assert console == []
    assert [line for line in asked if not BROWSERS_OWN.search(line)] == []
    assert not BROWSERS_OWN.search(Path(tmp_path / 'out/index.html').read_text())
    assert '80.00 %' in text_of(page, 'best-answer') and 'dgc.wm5' in text_of(page, 'best-answer')
    assert '25 %' in text_of(page, 'wait-answer')
    assert 'compression' in text_of(page, 'differ-answer')
    assert page.count('<canvas') >= 5
    assert text_of(page, 'count').startswith('3 runs')
    assert 'broken' in text_of(page, 'notes-list')


@pytest.mark.slow
def test_tensorboard_shows_the_settings_and_curves_of_runs(tmp_path):
    """Its pages load their numbers by themselves; the first ones are asked for here."""
    program = shutil.which('tensorboard')
    if program is None:
        pytest.skip('tensorboard is not installed: pip install tensorboard')
    for name in ('one', 'two'):
        curves = Curves(tmp_path / f'runs/{name}')
        curves.begin({'train.optimizer.lr': 0.1, 'name': name})
        curves.add('acc/test_top1', 50.0, 1)
        curves.end()
        curves.close()
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]
    words = [program, '--logdir', str(tmp_path / 'runs'), '--port', str(port), '--load_fast=false']
    quiet = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}
    with subprocess.Popen(words, env={**os.environ, 'PYTHONPATH': ''}, **quiet) as server:
        try:
            wait_for(f'http://127.0.0.1:{port}/data/environment')
            for tab in ('scalars', 'hparams'):
                url = f'http://127.0.0.1:{port}/#{tab}'
                page, _ = opened(url, tmp_path / tab, '--virtual-time-budget=8000')
                assert 'tb-' in page or 'tf-' in page, tab
            session = urllib.request.Request(
                f'http://127.0.0.1:{port}/data/plugin/hparams/experiment',
                data=b'{"experimentName": ""}',
                headers={'Content-Type': 'application/json'},
            )
            answer = urllib.request.urlopen(session, timeout=30).read().decode()
            assert 'train.optimizer.lr' in answer and 'acc/test_top1' in answer
        finally:
            server.terminate()


def wait_for(url: str) -> None:
    """Wait until a server answers."""
    for _ in range(120):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=5)
            return
        time.sleep(0.5)
    raise TimeoutError(f'{url} does not answer; Python is {sys.executable}')
