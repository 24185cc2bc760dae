#!/usr/bin/env bash
# pandas 3.1.1 with Bottleneck 1.6.0 (which `pip install pandas[performance]` brings): the std of a float32 column is wrong, and without Bottleneck it is right.
#
# Expected: an optional package for speed leaves the numbers as they are to the last digits.
# Seen: where Bottleneck is installed, std and var of float32 are summed one by one in float32: a million values of 1000 ± 1 have a std of 8.96 instead of 1.00,
#   three million rewards of 0.95 ± 0.02 one of 0.0276. mean is right, numpy's std is right, groupby().std() is right; describe() is wrong, too.
# Who meets it: whoever sums up rewards, log-probs or times kept in float32 in an environment where something else brought Bottleneck: error bars of another size, on one machine only.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pandas==3.1.1 numpy==2.4.6
cat > "$work/spread.py" <<'P'
import sys
import numpy as np
import pandas as pd

for mean, std, n in ((1000, 1, 10**6), (.95, .02, 3 * 10**6)):
    x = np.random.default_rng(0).normal(mean, std, n).astype('float32')
    column = pd.Series(x)
    ways = {'std()': column.std(), 'describe()': column.describe()['std'], 'groupby': column.groupby(np.zeros(n)).std().iloc[0], 'numpy': x.std(ddof=1), 'as float64': column.astype('float64').std()}
    print(f'{mean} ± {std}:', ', '.join(f'{name} {value:.4f}' for name, value in ways.items()))
    off = [name for name, value in ways.items() if abs(value / std - 1) > .01]
    assert off == (['std()', 'describe()'] if sys.argv[1] == 'with' else []), f'the behaviour has changed: {off}'
P
echo "without Bottleneck"; "$work/venv/bin/python" "$work/spread.py" without
"$work/venv/bin/pip" install --quiet bottleneck==1.6.0
echo "with Bottleneck"; "$work/venv/bin/python" "$work/spread.py" with
# Output seen on 2026-11-27, x86-64:
# without Bottleneck
# 1000 ± 1: std() 1.0007, describe() 1.0007, groupby 1.0007, numpy 1.0007, as float64 1.0007
# 0.95 ± 0.02: std() 0.0200, describe() 0.0200, groupby 0.0200, numpy 0.0200, as float64 0.0200
# with Bottleneck
# 1000 ± 1: std() 8.9564, describe() 8.9564, groupby 1.0007, numpy 1.0007, as float64 1.0007
# 0.95 ± 0.02: std() 0.0276, describe() 0.0276, groupby 0.0200, numpy 0.0200, as float64 0.0200
