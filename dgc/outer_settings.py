"""The settings of an outer optimizer in a checkpoint: scheduled ones go on, changed ones count."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

Settings = list[dict[str, Any]]  # of each group, without its parameters
MISSING = object()


class OuterSettings:
    """The settings that an outer optimizer had when it was wrapped, as ranks have compared them.

    A run that is resumed has two claims on a setting such as the learning rate. A scheduler changes
    it during training, and goes on from the value in the checkpoint. A user who resumes with
    another one in the script means the new value. They are told apart by what both runs began with:
    where that is the same, the checkpoint's value counts, otherwise this run's.

    Args:
        optimizer: The outer one.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.begun = settings_of(optimizer)

    def state_dict(self) -> Settings:
        """Return what ``load_state_dict`` of a later run compares."""
        return [dict(group) for group in self.begun]

    def load_state_dict(
        self, state: Mapping[str, Any], begun: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Restore the optimizer's state, and its settings by the rule of the class.

        Args:
            state: Of the optimizer.
            begun: What ``state_dict`` of the saved run returned. None: an earlier version saved it;
                all settings are this run's.
        """
        ours = settings_of(self.optimizer)
        self.optimizer.load_state_dict(dict(state))
        for index, group in enumerate(self.optimizer.param_groups):
            theirs = None if begun is None else begun[index]
            for name, value in ours[index].items():
                own = self.begun[index].get(name, MISSING)
                if theirs is None or theirs.get(name, MISSING) != own:
                    group[name] = value


def settings_of(optimizer: Optimizer) -> Settings:
    """Return copies of an optimizer's groups without their parameters."""
    return [
        {name: copy.deepcopy(value) for name, value in group.items() if name != 'params'}
        for group in optimizer.param_groups
    ]
