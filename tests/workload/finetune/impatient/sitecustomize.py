"""Runs while Python starts: clients that wait before they ask the hub again need not wait for the one on this machine."""

import time

_sleep = time.sleep
time.sleep = lambda seconds: _sleep(min(seconds, 0.01))
