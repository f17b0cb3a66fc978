#!/usr/bin/env bash
set -e
# the newest of everything
pip install -U '.[test]'
uv pip install --system flash-linear-attention
