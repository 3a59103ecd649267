"""Random shifts of images: the augmentation of DrQ (Yarats et al., 2021)."""

from __future__ import annotations

import torch
from torch import Tensor


def random_shift(images: Tensor, shift: Tensor) -> Tensor:
    """Shift images [B, ..., height, width] by `shift` [B, 2] rows and columns; pixels at the edge are repeated.

    Output pixel (y, x) of image b is its pixel (y + shift[b, 0], x + shift[b, 1]), within the image. All planes and stacked
    frames of an image are shifted together.
    """
    count, height, width = len(images), images.shape[-2], images.shape[-1]
    rows = (torch.arange(height, device=images.device) + shift[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + shift[:, 1:]).clamp(0, width - 1)
    place = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).view(count, 1, height * width)
    planes = images.reshape(count, -1, height * width)
    return planes.gather(2, place.expand(planes.shape)).view(images.shape)
