"""Sound on its way in: any rate and channels to 32 kHz stereo, aligned to the file's first picture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import SoundInput


def read_sound_in(sound: SoundInput) -> NDArray[np.float32]:
    """float32 [2, n] at 32 kHz. `BadMedia` naming the field if there is no sound there."""
    raise NotImplementedError
