#!/usr/bin/env bash
# execnb 0.1.18 (what nbdev runs notebooks with): a cell that ends in a semicolon loses everything that it printed.
#
# Expected: as in Jupyter, a semicolon at the end of a cell suppresses the display of its last expression; what print wrote stays.
# Seen: the list of outputs is empty, prints included, also where the last line is a statement that displays nothing anyway.
# Who meets it: whoever refreshes the outputs of notebooks with execnb or nbdev and ends plotting cells with `;`: lines that were in the notebook are gone.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet execnb==0.1.18 ipython==9.18.1
cd "$work"
"$work/venv/bin/python" - <<'P'
import contextlib, io
from execnb.shell import CaptureShell
from IPython.terminal.interactiveshell import TerminalInteractiveShell

def plainly(source):
    "What IPython itself prints."
    shell = TerminalInteractiveShell()
    with contextlib.redirect_stdout(io.StringIO()) as told: shell.run_cell(source)
    return told.getvalue()

found = {}
for source in ("print('kept')\n1", "print('kept')\n1;", "print('kept')\nx = 1;"):
    found[source] = ['kept' in plainly(source), 'kept' in str(CaptureShell().run(source))][::-1]
    print(repr(source).ljust(28), 'execnb:', 'kept' if found[source][0] else 'lost', '| IPython:', 'kept' if found[source][1] else 'lost')
assert found == {"print('kept')\n1": [True, True], "print('kept')\n1;": [False, True], "print('kept')\nx = 1;": [False, True]}, f'the behaviour has changed: {found}'
P
# Output seen on 2026-11-27:
# "print('kept')\n1"           execnb: kept | IPython: kept
# "print('kept')\n1;"          execnb: lost | IPython: kept
# "print('kept')\nx = 1;"      execnb: lost | IPython: kept
