"""Encoders: one per kind of observation part, and `ObservationEncoder`, which reads all parts and adds the results."""

from __future__ import annotations

from millpond.policies.encoders.observation import EncoderKind, ObservationEncoder

__all__ = ["EncoderKind", "ObservationEncoder"]
