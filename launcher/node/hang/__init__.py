"""Runs that no longer move: seen by their own pace, looked into while everything is still alive, told in one line."""
