#!/usr/bin/env bash
# cyclopts 5.5.2: an option annotated `int` takes a number with a fraction and rounds it, half to even, without a word.
#
# Expected: `--steps 2.5` is refused, as argparse refuses it with type=int (int('2.5') raises), or at least the user is told.
# Seen: 2.5 becomes 2 and 3.5 becomes 4, so two runs that were meant to be one step apart are two apart. A value from a JSON file is rounded as well.
#   A whole number written as a float goes through a float, too: 9007199254740993.0, a seed, becomes 9007199254740992. But 1e3 is refused.
# Who meets it: whoever drives trainings from a sweep that writes its numbers as floats: a seed or a size changes, and the log shows the changed one as if it had been asked for.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet cyclopts==5.5.2
cat > "$work/run.py" <<'P'
import json
import sys
from pathlib import Path
from cyclopts import App
from cyclopts.config import Json

place = Path(sys.argv[1])


def asked(*words, config=()):
    app = App(config=config, result_action='return_value')

    @app.default
    def run(*, steps: int = 1): return steps
    try: return app(list(words), exit_on_error=False, print_error=False)
    except Exception as e: return type(e).__name__


typed = {text: asked('--steps', text) for text in ('2.5', '3.5', '5.7', '9007199254740993.0', '1e3')}
(place/'c.json').write_text(json.dumps(dict(steps=5.7)))
typed['5.7 in a file'] = asked(config=Json(place/'c.json'))
for text, value in typed.items(): print(text.ljust(20), value)
wanted = {'2.5': 2, '3.5': 4, '5.7': 6, '9007199254740993.0': 9007199254740992, '1e3': 'CoercionError', '5.7 in a file': 6}
assert typed == wanted, f'the behaviour has changed: {typed}'
P
"$work/venv/bin/python" "$work/run.py" "$work"
# Output seen on 2026-11-28:
# 2.5                  2
# 3.5                  4
# 5.7                  6
# 9007199254740993.0   9007199254740992
# 1e3                  CoercionError
# 5.7 in a file        6
