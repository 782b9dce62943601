from pathlib import Path

import pytest
from config_parts import write_stack


@pytest.fixture
def stack(tmp_path) -> Path:
    """The root of a fresh stack: cifar/resnet20.py, dgc/wm5.py, dgc/fp16.py, value/__init__.py."""
    return write_stack(tmp_path)


@pytest.fixture
def resnet20(stack) -> list[str]:
    return [str(stack / 'cifar/resnet20.py')]


@pytest.fixture(scope='module')
def shared_stack(tmp_path_factory) -> Path:
    """The same, for tests with many examples, which leave it as it is."""
    return write_stack(tmp_path_factory.mktemp('shared'))
