"""The exceptions a user can meet. One line each: who, must be what, got what, what it means, what to do."""

from __future__ import annotations

__all__ = ["ArhtError", "ArhtWarning", "InputError", "ResolutionWarning"]


class ArhtError(Exception):
    """Base of every error that arht raises on purpose."""


class InputError(ArhtError, ValueError):
    """A call or an input that cannot be used as it is; the message says what to change."""


class ArhtWarning(UserWarning):
    """Base of every warning of arht."""


class ResolutionWarning(ArhtWarning):
    """The null law cannot produce p-values small enough for the requested decision."""
