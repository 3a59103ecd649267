"""Trained policies as files that run without Millpond: ONNX and torch.export."""

from __future__ import annotations

from millpond.trainers.common.export.files import ExportError, ExportFormat, export_policy, read_description

__all__ = ["ExportError", "ExportFormat", "export_policy", "read_description"]
