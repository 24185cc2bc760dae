"""Which recipe makes `nano` better per CPU-second? One arm: `python pretrain_arms.py NAME SECONDS OUT.csv [field=value ...]`.

Each arm trains from random weights for the same CPU-seconds of one thread (steps only; making rows is not counted), with
linear warm-up over 100 steps and a linear decay over the last half of the budget, and is measured greedily on held-out rows
of the shipped positions. Fields are those of `PretrainConfig`; `layers` and `channels` change the shape, `order=shuffled`
keeps P's candidates as they come, `board=single` writes a board in 64 tokens instead of 32, `board=twice` reads the
board of a prompt a second time (both want `workers=0`). A row is added to OUT.csv."""
import csv
import functools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
import torch
import rookworld_nb.run.targets as blocks
from rookworld_nb.run.targets import RowStream, data_shards
from rookworld_nb.apps.cli import parse_value
from rookworld_nb.config import PretrainConfig, describe
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.measure.evaluate import judge_rows, summarize
from rookworld_nb.lm.model import PRESETS
from rookworld_nb.run.pretrain import pretrain_optimizer, starting_model, supervised_step
from rookworld_nb.lm.tokenizer import ChessTokenizer, load_tokenizer

SHOWN = dict(P=['format_valid', 'legal_best', 'best_move', 'top5_overlap', 'regret'],
             A=['fen_exact', 'squares_changed', 'fen_halfmove', 'recall_illegal'])


def single_squares():
    "From here on a board is 64 tokens: each square is the byte of its letter."
    encode, decode = ChessTokenizer.encode, ChessTokenizer.decode

    @functools.cache
    def tables():
        kinds = load_tokenizer('chess')._id
        apart = {i: [kinds['byte', ord(c)] for c in piece] for (kind, piece), i in kinds.items() if kind == 'pair'}
        return apart, {tuple(v): k for k, v in apart.items()}, {i for v in apart.values() for i in v}

    def together(ids):
        _, pairs, squares = tables()
        out, ids = [], list(ids)
        while ids:
            run = next((k for k, i in enumerate(ids) if i not in squares), len(ids)) // 2
            out += [pairs[ids[2*k], ids[2*k + 1]] for k in range(run)] + ids[2*run:2*run + 1]
            ids = ids[2*run + 1:]
        return out

    ChessTokenizer.encode = lambda self, text: [t for i in encode(self, text) for t in tables()[0].get(i, [i])]
    ChessTokenizer.decode = lambda self, ids: decode(self, together(ids))


def board_twice():
    "From here on the 32 tokens of a prompt's board come again after the five of its other fields."
    encode = ChessTokenizer.encode

    def again(self, text):
        ids = encode(self, text)
        return ids[:38] + ids[1:33] + ids[38:] if text[:3] in ('P: ', 'A: ') else ids
    ChessTokenizer.encode = again


BOARDS = dict(pairs=lambda: None, single=single_squares, twice=board_twice)


def train_arm(config, seconds, order='best'):
    "A model after so many CPU-seconds of steps; rows seen, mean loss of the last hundred steps of each task."
    if order == 'shuffled': blocks.best_first = lambda e: e
    torch.manual_seed(config.seed)
    model, tokenizer = starting_model(config)
    optimizer, spent, step, losses = pretrain_optimizer(config, model, tokenizer), 0.0, 0, dict(P=[], A=[])
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
    board = fields.pop('board', 'pairs')
    BOARDS[board]()
    if board != 'pairs': shape['n_positions'] = 256
    if 'n_embd' in shape: shape['n_head'] = shape['n_embd']//32
    PRESETS['arm'] = replace(PRESETS['nano'], **shape)
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
    if len(sys.argv) < 3 or {'-h', '--help'} & {*sys.argv}: sys.exit(print(__doc__))
    torch.set_num_threads(1)
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3], **dict(a.split('=', 1) for a in sys.argv[4:]))
