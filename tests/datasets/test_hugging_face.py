"""The other package called datasets: docs/failures.md, row 22."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from datasets.errors import DatasetError


@pytest.fixture
def restored(monkeypatch):
    """The modules that are imported, put back after the test."""
    before = {name: m for name, m in sys.modules.items() if name.partition('.')[0] == 'datasets'}
    monkeypatch.setattr(sys, 'path', [*sys.path])
    yield
    for name in [name for name in sys.modules if name.partition('.')[0] == 'datasets']:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def installed(tmp_path, restored) -> Path:
    """A package of that name, last on the path, with a module that this project has too."""
    folder = tmp_path / 'site/datasets'
    (folder / 'download').mkdir(parents=True)
    (folder / '__init__.py').write_text(
        'from datasets.download import fetch\nfrom datasets.load import load_dataset\n'
    )
    (folder / 'download/__init__.py').write_text('def fetch(): return "theirs"\n')
    (folder / 'load.py').write_text(
        'import datasets\ndef load_dataset(name): return name, datasets.fetch()\n'
    )
    sys.path.append(str(folder.parent))
    return folder


def test_its_names_can_be_imported_and_ours_stay(installed):
    """failures row 22"""
    from datasets import load_dataset

    assert load_dataset('mnist') == ('mnist', 'theirs')
    import datasets
    from datasets import CIFAR, Digits  # as config files that are executed later do
    from datasets.images import Images

    assert datasets.load_dataset is load_dataset and datasets.DatasetError is DatasetError
    assert {Digits.__module__, CIFAR.__module__} == {'datasets.digits', 'datasets.cifar'}
    assert Images.__module__ == 'datasets.images'
    with pytest.raises(ImportError, match="cannot import name 'load_datasets'"):
        from datasets import load_datasets  # noqa: F401


def test_where_it_is_not_installed_the_error_says_which_package_this_is(restored, tmp_path):
    """failures row 22"""
    sys.path[:] = [entry for entry in sys.path if not Path(entry, 'datasets/load.py').is_file()]
    with pytest.raises(ImportError, match=r'package of this project, with .*CIFAR.*pip install'):
        from datasets import load_dataset  # noqa: F401


def test_a_package_that_fails_leaves_ours_in_place(installed):
    """failures row 22"""
    (installed / '__init__.py').write_text('raise RuntimeError("pyarrow is too old")\n')
    with pytest.raises(RuntimeError, match='pyarrow'):
        from datasets import load_dataset  # noqa: F401
    from datasets import Digits
    from datasets.download import fetch_once

    assert Digits and fetch_once
