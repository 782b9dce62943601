"""Groups of tests: each runs in one process, in order, when pytest-xdist shares the tests.

xdist's own `loadgroup` writes the group into a test's nodeid, which pytest 9.2 does not read. So
the workers leave a map from nodeid to group in a file, and the scheduler reads it.
"""

from __future__ import annotations

import json
import os
import tempfile
from functools import cached_property
from pathlib import Path

import pytest

# Folders and files of tests that start processes, or wait for what happens in other threads.
WAITING = {
    *('train', 'bench', 'tools', 'examples', 'docs'),
    *('test_elastic.py', 'test_elastic_meeting.py', 'test_elastic_resume.py'),
    *('test_engines_exit.py', 'test_engines_thread.py', 'test_engines_watch.py'),
    *('test_ops_triton.py', 'test_parameter_server_sockets.py'),
    *('test_grouping.py', 'test_warm.py', 'test_worlds.py'),
    *('test_cli.py', 'test_elastic_saving.py', 'test_loading.py', 'test_optional_libraries.py'),
}
COMPUTING = 'computing'  # the beginning of the names of groups that do neither
AT_A_TIME = 2  # groups of tests that wait
FOLDER = pytest.StashKey[tempfile.TemporaryDirectory]()


def group_of(item: pytest.Item) -> str:
    """The name of the tests that run one after another in one process, with this one among them.

    They share a world of processes, a training run or the machine's network namespaces; other tests
    share what their file makes for the whole module.
    """
    if mark := item.get_closest_marker('xdist_group'):
        return mark.args[0]
    if item.get_closest_marker('namespaces'):
        return 'namespaces'
    return 'trained' if 'trained' in getattr(item, 'fixturenames', ()) else item.path.name


def waits(item: pytest.Item) -> bool:
    """Whether a test starts processes, or leaves the processor idle for another reason."""
    if mark := item.get_closest_marker('xdist_group'):
        return not mark.args[0].startswith(COMPUTING)
    return bool(WAITING & {item.path.parent.name, item.path.name})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring the tests of a group together, and the groups with tests that wait to the front.

    An address in a name is refused also where one process collects: two would not agree on it.
    """
    if unstable := [item.nodeid for item in items if ' at 0x' in item.nodeid]:
        raise pytest.UsageError(f'the name of a test has an address, give it ids: {unstable[0]}')
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(group_of(item), []).append(item)
    order = sorted(groups.values(), key=lambda members: not any(map(waits, members)))
    items[:] = [item for members in order for item in members]
    if file := getattr(config, 'workerinput', {}).get('groups'):
        names = {item.nodeid: name for name, members in groups.items() for item in members}
        partial = Path(f'{file}.{os.getpid()}')
        partial.write_text(json.dumps(names))
        partial.replace(file)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """Tell each worker where the map goes; all write the same one."""
    stash = node.config.stash
    folder = stash.setdefault(FOLDER, tempfile.TemporaryDirectory(prefix='groups'))
    node.workerinput['groups'] = str(Path(folder.name) / 'groups.json')


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """A scheduler by our groups in the place of `--dist loadgroup`.

    Two workers take groups from the front, where tests wait for processes and time-outs. Any more
    take them from the back, where tests compute, and use the time in which the first two wait.
    More than two groups that start processes would disturb each other's times.
    """
    if config.getvalue('dist') != 'loadgroup':
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        @cached_property
        def names(self) -> dict[str, str]:
            return json.loads((Path(config.stash[FOLDER].name) / 'groups.json').read_text())

        def _split_scope(self, nodeid: str) -> str:
            return self.names[nodeid]

        def _assign_work_unit(self, node) -> None:
            if int(node.gateway.id.removeprefix('gw')) >= AT_A_TIME:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    return ByGroup(config, log)
