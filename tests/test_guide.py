"""The guide's pairs of commands: the first shows a symptom, the second removes it. The lines are
read from the guide, so it says what was tried (-s prints what was seen)."""
import json
import re
import subprocess
import sys
from pathlib import Path
import pandas as pd
import pytest
import torch
from runs import SECONDS, clean

GUIDE = Path(__file__).parent.parent/'nbs/guide.ipynb'
TEXT = '\n\n'.join(''.join(c['source']) for c in json.loads(GUIDE.read_text('utf-8'))['cells'])
SETTINGS = re.search(r'^export ROOKWORLD_.*$', TEXT, re.M)[0]
PAIRS = {
    title: lines.splitlines()
    for title, lines in re.findall(r'^### (.+?)\n\n```sh\n(.+?)\n```', TEXT, re.M | re.S)
}


def seen(line, out):
    "What a line of the guide leaves: exit code, rows of its steps, what it printed."
    command = f'{sys.executable} -m rookworld_nb.apps.cli train --output_dir {out}'
    done = subprocess.run(['bash', '-c', f'{SETTINGS}; {line.replace("rookworld_train", command)}'],
                          env=clean(), cwd=out.parent, capture_output=True, text=True,
                          timeout=SECONDS, stdin=subprocess.DEVNULL)
    file = out/'metrics.jsonl'
    rows = pd.read_json(file, lines=True) if file.exists() and file.stat().st_size else pd.DataFrame()
    return done.returncode, rows, done.stdout + done.stderr


SHOWS = {
    'The reward stays flat': lambda code, rows, said: rows.kl_nats_per_token.max(),
    'Every group has zero variance': lambda code, rows, said: 1 - rows.zero_signal_share.min(),
    'The KL rises': lambda code, rows, said: rows.kl_nats_per_token.mean(),
    'Out of memory': lambda code, rows, said: code,
    'A step is slow': lambda code, rows, said: rows.completion_tokens.sum(),
    'Answers are illegal': lambda code, rows, said: 1 - rows.format_share_p.mean(),
    'NaN': lambda code, rows, said: code
}
# what tells the first command from the second
BOUNDS = {
    'The reward stays flat': lambda bad, good: bad < 1e-4 < 1e-3 < good,
    'Every group has zero variance': lambda bad, good: bad == 0 < good,
    'The KL rises': lambda bad, good: bad > 4*good,
    'Out of memory': lambda bad, good: (bad, good) == (1, 0),
    'A step is slow': lambda bad, good: bad > 2*good,
    'Answers are illegal': lambda bad, good: bad > 0.4 > 0.25 > good,
    'NaN': lambda bad, good: (bad, good) == (1, 0)
}


def test_every_symptom_has_a_pair():
    assert list(PAIRS) == list(SHOWS) and all(len(pair) == 2 for pair in PAIRS.values())


@pytest.mark.slow
@pytest.mark.parametrize('title', SHOWS)
def test_the_second_command_removes_what_the_first_shows(title, tmp_path):
    if title == 'Out of memory' and torch.version.cuda: pytest.skip('CUDA takes more address space')
    results = [seen(line, tmp_path/name) for line, name in zip(PAIRS[title], ('bad', 'good'))]
    shown = [SHOWS[title](*result) for result in results]
    print(title, shown)
    assert BOUNDS[title](*shown), (shown, [said for *_, said in results])
