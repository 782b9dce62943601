"""The interface of transforms."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from dgc.bucket_spec import BucketSpec
from dgc.state import Entries


class Transform(ABC):
    """A linear change of basis of a bucket's gradient.

    The memory, the compressor, the codec and the exchange work on ``forward(gradient)``; the
    parameters receive ``inverse(result)``. Linearity makes the mean of transformed gradients the
    transform of the mean, so residuals stay in the transformed basis.
    """

    is_identity = False

    @property
    def basis(self) -> str:
        """What coefficients are in, with the settings that decide it. Residuals are restored in the
        same basis only."""
        return type(self).__name__

    def state_for(self, spec: BucketSpec) -> Entries:
        """Declare what it keeps of a bucket between steps."""
        return {}

    @abstractmethod
    def forward(self, flat: Tensor, spec: BucketSpec) -> Tensor:
        """Transform ``flat[n]``, of any floating point type; return float32 ``[n]``."""

    @abstractmethod
    def inverse(self, flat: Tensor, spec: BucketSpec) -> Tensor:
        """Map the result ``flat[n]`` of the exchange to the parameters' basis, float32 ``[n]``.

        A transform may end in a step that is not linear (the sign of DeMo).
        """


class Identity(Transform):
    """No change of basis."""

    is_identity = True

    def forward(self, flat: Tensor, spec: BucketSpec) -> Tensor:
        """Return ``flat``."""
        return flat

    def inverse(self, flat: Tensor, spec: BucketSpec) -> Tensor:
        """Return ``flat``."""
        return flat
