"""What can go wrong, as seen by whoever uses a sandbox."""

from __future__ import annotations


class SandboxError(Exception):
    """The sandbox did not start, or did not do what was asked of it."""


class SandboxUnavailable(Exception):
    """This machine cannot run a sandbox; the text says what is missing and how to get it."""
