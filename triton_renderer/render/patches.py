"""The form in which Qwen-VL's vision encoder takes pixels: squares of patches that are merged into one token each."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Planes = npt.NDArray[np.uint8]


def patches_of(frames: Sequence[Planes], temporal: int, patch: int, merge: int) -> npt.NDArray[np.uint8]:
    """Patches [rows · columns, C·T·P·P] in the order of merged squares, each with its part of all the frames.

    frames: [3, height, width] each, 1 to `temporal` of them; the last is repeated to make up the temporal patch. Height and
    width are multiples of `patch` · `merge`.
    """
    rows, columns = (side // patch for side in frames[0].shape[1:])
    patches = np.empty((rows // merge, columns // merge, merge, merge, 3, temporal, patch, patch), np.uint8)
    # A patch's row of one colour is copied as one unit: byte by byte it would take four times as long.
    row = f"V{patch}"
    targets = patches.view(row)[..., 0]
    for index, planes in enumerate(frames):
        places = slice(index, temporal if index == len(frames) - 1 else index + 1)
        for colour, plane in enumerate(planes):
            # Axes: row of squares, row in the square, y; column of squares, column in the square.
            units = plane.view(row).reshape(rows // merge, merge, patch, columns // merge, merge)
            targets[:, :, :, :, colour, places] = units.transpose(0, 3, 1, 4, 2)[:, :, :, :, None]
    return patches.reshape(rows * columns, -1)
