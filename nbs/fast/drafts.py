"""What do true answers as drafts save in training? CPU-seconds of one thread, with and without, the same seeds, by turns.

    python drafts.py A 24        # `collect` of four A prompts, groups of eight, 24 times each
    python drafts.py default 24  # `collect` of eight prompts of both tasks
    python drafts.py run 3       # a run of 40 steps with all defaults, 3 times each

Every measurement is a row of drafts.csv: what, repeat, drafts (1: with), cpu_s, same_completions (of all), A reward."""
import csv
import json
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch
import torch
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.config import TrainConfig
from rookworld_nb.grpo import experience
from rookworld_nb.lm.loader import load_model
from rookworld_nb.run.train import train

COLUMNS = ['what', 'repeat', 'drafts', 'cpu_s', 'same', 'reward_a']


def timed(work, drafts):
    "CPU-seconds of `work()`, and what it returns."
    way = experience._truths
    with patch.object(experience, '_truths', way if drafts else lambda *_: None):
        t0 = time.process_time()
        found = work()
        return time.process_time() - t0, found


def groups(what):
    "For each repeat, a function that collects its groups and returns completions and the mean reward of A."
    model, tokenizer = load_model('nano')
    config = TrainConfig(data='positions', device='cpu', **dict(A=dict(env_ratio=1., prompts_per_step=4), default=dict(env_ratio=.5, prompts_per_step=8))[what])   # the defaults when this was measured; so too below
    source, repeat = experience.PromptSource(load_rows('positions', config.env_ratio, split='train', limit=4000)), 0
    while repeat := repeat + 1:
        counts = experience.task_counts(repeat, config.prompts_per_step, config.env_ratio)
        asked = [e for kind in 'PA' for e in source.take(kind, counts[kind])]
        def work():
            batch, _ = experience.collect(model, tokenizer, asked, config, repeat)
            return batch.rollouts.completions, torch.cat([r for e, r in zip(asked, batch.rewards) if e.kind == 'A']).mean().item()
        yield work


def runs():
    "For each repeat, a function that makes a run with this seed and returns its sampled completions and its last reward of A."
    seed = -1
    while (seed := seed + 1) >= 0:
        def work():
            with tempfile.TemporaryDirectory() as place:
                there = Path(train(TrainConfig(data='positions', output_dir=f'{place}/run', seed=seed, max_steps=40, prompts_per_step=8, learning_rate=5e-5, check_every=40, device='cpu', threads=1, env_ratio=.5, reward_source='auto', max_refills=2, kl_coef=.6)))
                rows = [json.loads(l) for l in (there/'metrics.jsonl').read_text().splitlines()]
                return [str(r['reward_mean']) for r in rows], rows[-1]['reward_a']
        yield work


def main(what, n):
    torch.set_num_threads(1)
    file, todo = Path(__file__).with_suffix('.csv'), runs() if what == 'run' else groups(what)
    if not file.exists(): file.write_text(','.join(COLUMNS) + '\n')
    if what != 'run': next(todo)()    # what is loaded once
    for repeat in range(n):
        work, found = next(todo), {}
        for drafts in ((0, 1) if repeat % 2 else (1, 0)): found[drafts] = timed(work, drafts)
        texts = [found[d][1][0] for d in (0, 1)]
        same = sum(a == b for a, b in zip(*texts))/len(texts[0])
        with file.open('a') as f:
            csv.writer(f, lineterminator='\n').writerows([what, repeat, d, round(found[d][0], 4), round(same, 4), round(found[d][1][1], 4)] for d in (0, 1))


if __name__ == '__main__':
    if len(sys.argv) < 3 or {'-h', '--help'} & {*sys.argv}: sys.exit(print(__doc__))
    main(sys.argv[1], int(sys.argv[2]))
