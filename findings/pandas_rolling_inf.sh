#!/usr/bin/env bash
# pandas 3.1.1: an infinite value vanishes from rolling, expanding and exponentially weighted statistics, without a warning.
#
# Expected: the mean and the maximum of a window that holds inf are inf, as Series.mean, Series.cummax, numpy and polars say.
# Seen: windows take inf for a missing value. With min_periods=1 (usual for smooth curves) the mean is that of the other values, and even the rolling maximum is a small number.
# Who meets it: whoever smooths a KL, a loss or a gradient norm for a plot, or watches rolling(...).max() for an alarm: the step at which the run blew up is the one that does not show.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pandas==3.1.1 numpy==2.4.6 polars==2.1.0
"$work/venv/bin/python" - <<'P'
import math
import pandas as pd
import polars as pl

kl = pd.Series([.02, .03, math.inf, .04, .03])
window = kl.rolling(3, min_periods=1)
print('KL'.ljust(42), kl.tolist())
seen = {'kl.mean()': [float(kl.mean())], 'kl.cummax()': kl.cummax().tolist(), 'polars rolling_max(3, min_samples=1)': pl.Series(kl.tolist()).rolling_max(3, min_samples=1).to_list(),
        'kl.rolling(3, min_periods=1).mean()': window.mean().round(3).tolist(), 'kl.rolling(3, min_periods=1).max()': window.max().tolist(),
        'kl.expanding().max()': kl.expanding().max().tolist(), 'kl.ewm(alpha=0.5).mean()': kl.ewm(alpha=.5).mean().round(3).tolist()}
for name, values in seen.items(): print(name.ljust(42), values)
has = [any(math.isinf(v) for v in values) for values in seen.values()]
assert has == [True] * 3 + [False] * 4, f'the behaviour has changed: {has}'
assert not any(math.isnan(v) for values in seen.values() for v in values), 'a gap is shown now'
P
# Output seen on 2026-11-27:
# KL                                         [0.02, 0.03, inf, 0.04, 0.03]
# kl.mean()                                  [inf]
# kl.cummax()                                [0.02, 0.03, inf, inf, inf]
# polars rolling_max(3, min_samples=1)       [0.02, 0.03, inf, inf, inf]
# kl.rolling(3, min_periods=1).mean()        [0.02, 0.025, 0.025, 0.035, 0.035]
# kl.rolling(3, min_periods=1).max()         [0.02, 0.03, 0.03, 0.04, 0.04]
# kl.expanding().max()                       [0.02, 0.03, 0.03, 0.04, 0.04]
# kl.ewm(alpha=0.5).mean()                   [0.02, 0.027, 0.027, 0.036, 0.033]
