"""The arms of the claim side by side on one card: does the gain go on with more work, and at what cost? `python unlabelled_card.py PLAN.toml OUT train` trains every arm and seed of the plan at the same time
and keeps the averaged weights at each budget, in OUT/models; `... measure` asks them the claim's questions, one CPU thread each, and writes OUT/*.json;
`... table` compares them with the start, with intervals over seeds and prompts, in OUT/table.csv."""
import argparse
import copy
import json
import os
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
import numpy as np
import pandas as pd
import torch
import unlabelled_claim as claim
from rookworld_nb.config import TrainConfig
from rookworld_nb.lm.device import set_numbers
from rookworld_nb.lm.loader import load_model, save_model
from rookworld_nb.run.targets import TokenRows, completion_loss


class Card:
    "What differs from an arm of the claim: device, size of a step, clock, and a constant rate."
    def __init__(self, plan, seed):
        super().__init__(plan, plan['rate'], seed)
        self.config = TrainConfig(**plan['config'], seed=seed, learning_rate=plan['rate'], data=self.config.data)
        self.model = self.model.to(self.config.device)
        set_numbers(self.model, self.config.dtype, self.config.compile)

    def lr(self): return self.rate*min(1, self.steps/10)

    def imitate(self, rows):
        rows = TokenRows(r for r in rows if len(r.prompt) + len(r.completion) <= self.model.config.n_positions)
        if not len(rows): return
        for group in self.optimizer.param_groups: group['lr'] = self.lr()
        self.optimizer.zero_grad()
        completion_loss(self.model, rows.batch(torch.arange(len(rows))).to(self.config.device)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip)
        self.optimizer.step()

    def train(self, out, name):
        self.prepare()
        average, began, told = copy.deepcopy(self.model).requires_grad_(False), time.monotonic(), []
        for budget in self.plan['budgets']:
            while time.monotonic() - began < budget:
                self.steps += 1
                self.step()
                torch._foreach_lerp_([*average.parameters()], [*self.model.parameters()], 1 - self.plan['average'])
            save_model(average, self.tokenizer, out/'models'/f'{name}-{self.seed}-{budget}', torch.bfloat16)
            told.append(dict(arm=name, seed=self.seed, budget=budget, steps=self.steps, seconds=round(time.monotonic() - began, 1)))
            (out/'models'/f'{name}-{self.seed}.json').write_text(json.dumps(told) + '\n')
            print(told[-1], flush=True)


def train_one(plan, out, name, seed):
    torch.set_num_threads(1)
    claim.BATCH = plan['config']['prompts_per_step']*plan['config']['group_size']
    type(name, (Card, claim.ARMS[name]), {})(plan, seed).train(out, name)


def measure_one(model, n):
    torch.set_num_threads(1)
    return claim.measured(*load_model(str(model)), n)


def table(out):
    runs = pd.DataFrame([json.loads(f.read_text()) for f in sorted(out.glob('*-*-*.json'))])
    start, rng, found = runs[runs.arm == 'start'].measured.iloc[0], np.random.default_rng(0), []
    for (arm, budget), part in runs[runs.arm != 'start'].groupby(['arm', 'budget']):
        for measure, before in start.items():
            change = np.array([r[measure] for r in part.measured]) - np.array(before)       # (seeds, prompts)
            k, n = change.shape
            draws = [np.nanmean(change[rng.integers(k, size=k)][:, rng.integers(n, size=n)]) for _ in range(2000)]
            each = np.nanmean(change, 1)
            found.append(dict(arm=arm, budget=budget, steps=part.steps.mean(), seeds=k, n=n, measure=measure, start=np.nanmean(before), after=np.nanmean(before) + np.nanmean(change),
                              low=np.quantile(draws, .025), high=np.quantile(draws, .975), least=each.min(), most=each.max()))
    pd.DataFrame(found).round(5).to_csv(out/'table.csv', index=False, lineterminator='\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('plan', type=Path)
    parser.add_argument('out', type=Path)
    parser.add_argument('what', choices=['train', 'measure', 'table', 'one'])
    parser.add_argument('run', nargs='*', help='one: arm, seed')
    told = parser.parse_args()
    plan, models = tomllib.loads(told.plan.read_text()), told.out/'models'
    models.mkdir(parents=True, exist_ok=True)
    if told.what == 'one': return train_one(plan, told.out, told.run[0], int(told.run[1]))
    if told.what == 'table': return table(told.out)
    if told.what == 'train':
        alone = os.environ | dict(OMP_NUM_THREADS='1')
        started = [subprocess.Popen([sys.executable, __file__, str(told.plan), str(told.out), 'one', arm, str(seed)], env=alone, stdout=open(models/f'{arm}-{seed}.log', 'w'), stderr=subprocess.STDOUT)
                   for arm in plan['arms'] for seed in plan['seeds']]
        sys.exit(max(p.wait() for p in started))
    runs = [dict(arm='start', seed=0, budget=0)] + [run for file in sorted(models.glob('*.json')) for run in json.loads(file.read_text())]
    runs = sorted(runs, key=lambda r: -r['budget'])       # the longest first, in case that time runs out
    with ProcessPoolExecutor(min(len(runs), os.cpu_count()), get_context('spawn')) as pool:
        asked = [(r, pool.submit(measure_one, 'nano' if r['arm'] == 'start' else models/f"{r['arm']}-{r['seed']}-{r['budget']}", plan['n'])) for r in runs]
        for run, found in asked: (told.out/f"{run['arm']}-{run['seed']}-{run['budget']}.json").write_text(json.dumps(run | dict(measured=found.result())) + '\n')


if __name__ == '__main__': main()
