"""Forty steps of the example of the bridges page, under TRL, with and without the hook that counts positions from the first real token.

    python trl_positions.py --seeds 0 1 --steps 40

One row a step goes to trl_positions.csv; the last row of a run (step 'after') has greedy answers to held-out rows, as the row (step 'before') of the start.
Rows that are there already are not made again."""
import argparse
import csv
import json
import os
import tempfile
from pathlib import Path
from unittest.mock import patch
import transformers
from rookworld_nb.apps import bridges
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.fast.generate import generate
from rookworld_nb.lm.loader import load_model
from rookworld_nb.reward.scoring import Scorer

HERE = Path(__file__).resolve().parent
COLUMNS = 'hook,seed,step,P,A,entropy,grad_norm'.split(',')


def example():
    "The cell of the page, up to where it trains."
    cells = json.loads((HERE.parent/'apps/07_bridges.ipynb').read_text('utf-8'))['cells']
    return next(s for c in cells if (s := ''.join(c['source'])).startswith('#| eval: false\nfrom transformers')).partition('trainer.train()')[0]


def held_out(model, tokenizer, n=200):
    "Mean reward of greedy answers to n held-out rows of each task."
    found = []
    for share in (0., 1.):
        rows = load_rows('positions', env_ratio=share, split='eval', limit=n)[:]
        scores = Scorer().score(rows, generate(model, tokenizer, [r.prompt() for r in rows], temperature=0).completions)
        found.append(round(sum(s.total for s in scores)/n, 4))
    return found


def trained(hook, seed, steps):
    "Rows of one run."
    source = example().replace('max_steps=2', f"max_steps={steps}, seed={seed}, save_strategy='no', disable_tqdm=True")
    with tempfile.TemporaryDirectory() as place, patch.object(bridges, 'right_positions', bridges.right_positions if hook else lambda model: model):
        os.chdir(place)
        exec(source, space := {})
        trainer = space['trainer']
        trainer.train()
        for row in trainer.state.log_history[:steps]:
            found = [row.get(name) for name in ('rewards/policy_reward/mean', 'rewards/env_reward/mean', 'entropy', 'grad_norm')]
            yield row['step'], *('' if value is None else round(value, 4) for value in found)     # a batch may have no prompt of a task
        trainer.save_model('trained')
        yield 'after', *held_out(*load_model('trained')), '', ''
        os.chdir(HERE)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1])
    parser.add_argument('--steps', type=int, default=40)
    parser.add_argument('--output', type=Path, default=HERE/'trl_positions.csv')
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    output = args.output.resolve()
    done = set()
    if output.exists():
        with open(output, encoding='utf-8') as f: done = {(r['hook'], r['seed']) for r in csv.DictReader(f) if r['step'] == 'after'}
    else: output.write_text(','.join(COLUMNS) + '\n' + ','.join(map(str, ['', '', 'before', *held_out(*load_model('nano')), '', ''])) + '\n', encoding='utf-8')
    for seed in args.seeds:
        for hook in (1, 0):
            if (str(hook), str(seed)) in done: continue
            rows = [[hook, seed, *row] for row in trained(hook, seed, args.steps)]
            with open(output, 'a', encoding='utf-8', newline='') as f: csv.writer(f, lineterminator='\n').writerows(rows)
