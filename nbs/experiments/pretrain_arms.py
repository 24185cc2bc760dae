"""Which recipe makes `nano` better per CPU-second? One arm: `python pretrain_arms.py NAME SECONDS OUT.csv [field=value ...]`.

Each arm trains from random weights for the same CPU-seconds of one thread (steps only; making rows is not counted), with
linear warm-up over 100 steps and a linear decay over the last half of the budget, and is measured greedily on held-out rows
of the shipped positions. Fields are those of `PretrainConfig`; `layers` and `channels` change the shape, `order=shuffled`
keeps P's candidates as they come. A row is added to OUT.csv."""
import csv, json, sys, time
from dataclasses import replace
from pathlib import Path
import torch
import rookworld_nb.blocks as blocks
from rookworld_nb.blocks import RowStream, data_shards
from rookworld_nb.cli import parse_value
from rookworld_nb.config import PretrainConfig, describe
from rookworld_nb.dataset import load_rows
from rookworld_nb.evaluate import judge_rows, summarize
from rookworld_nb.model import PRESETS
from rookworld_nb.pretrain import make_optimizer, starting_model, supervised_step

SHOWN = dict(P=['format_valid', 'legal_best', 'best_move', 'top5_overlap', 'regret'],
             A=['fen_exact', 'squares_changed', 'fen_halfmove', 'recall_illegal'])


def train_arm(config, seconds, order='best'):
    "A model after so many CPU-seconds of steps; rows seen, mean loss of the last hundred steps of each task."
    if order == 'shuffled': blocks.best_first = lambda e: e
    torch.manual_seed(config.seed)
    model, tokenizer = starting_model(config)
    optimizer, spent, step, losses = make_optimizer(config, model), 0.0, 0, dict(P=[], A=[])
    peaks = [g['lr'] for g in optimizer.param_groups]
    with RowStream(config, data_shards(config.data), tokenizer.name) as stream:
        while spent < seconds:
            kind, batch = stream.batch(step)
            began = time.process_time()
            loss, _ = supervised_step(model, optimizer, batch, peaks, min((step + 1)/100, 1, 2*(1 - spent/seconds)), config.grad_clip)
            spent += time.process_time() - began
            losses[kind].append(loss)
            step += 1
            if step % 200 == 0: print(step, round(spent), {k: round(sum(v[-50:])/len(v[-50:]), 3) for k, v in losses.items() if v}, flush=True)
    return model.eval(), tokenizer, step*config.batch_size, {k: sum(v[-100:])/len(v[-100:]) for k, v in losses.items() if v}


def main(name, seconds, out, **fields):
    shape = {k: int(fields.pop(f)) for k, f in dict(n_layer='layers', n_embd='channels').items() if f in fields}
    order, held = fields.pop('order', 'best'), int(fields.pop('held', 1500))
    PRESETS['arm'] = replace(PRESETS['nano'], **shape)
    if 'n_embd' in shape: PRESETS['arm'] = replace(PRESETS['arm'], n_head=shape['n_embd']//32)
    choices = {c.name: c for c in describe(PretrainConfig)}
    config = PretrainConfig(preset='arm', **{k: parse_value(choices[k], v) for k, v in fields.items()})
    model, tokenizer, rows, losses = train_arm(config, seconds, order)
    found = []
    for kind, ratio in dict(P=0.0, A=1.0).items():
        if config.env_ratio == 1 - ratio and config.env_ratio in (0, 1): continue
        table = summarize(judge_rows(model, tokenizer, load_rows('positions', ratio, 0, 'eval', held)[:]))
        table = table[(table.slice == 'all') & (table.task == kind) & table.metric.isin(SHOWN[kind])]
        found += [dict(arm=name, seconds=seconds, rows=rows, loss=round(losses[kind], 4), task=kind, metric=r.metric, value=round(r.value, 4),
                       low=round(r.low, 4), high=round(r.high, 4), n=r.n) for r in table.itertuples()]
    new = not Path(out).exists()
    with open(out, 'a', newline='') as f:
        writer = csv.DictWriter(f, list(found[0]), lineterminator='\n')
        if new: writer.writeheader()
        writer.writerows(found)
    print(json.dumps(found))


if __name__ == '__main__':
    torch.set_num_threads(1)
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3], **dict(a.split('=', 1) for a in sys.argv[4:]))
