"""What makes a trained `nano` better per step? One arm: `python continue_arms.py NAME MODEL STEPS OUT.csv [field=value ...]`.

Each arm goes on from the same weights for the same number of steps, the learning rate falling linearly to 0 from the first
step on, and is asked held-out rows in one pass, without sampling: an A answer counts as exact when every token of it is the
most likely one after the right ones before it, which is greedy decoding's answer; of P it asks the first candidate only.
Fields are those of `PretrainConfig`; `env_weight` multiplies the loss of A. STEPS 0 asks MODEL itself. Rows are added to OUT.csv."""
import csv
import math
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
import chess
import numpy as np
import torch
from rookworld_nb.apps.cli import parse_value
from rookworld_nb.config import PretrainConfig, describe
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.synthetic import generate_transitions, special_rows
from rookworld_nb.measure.measures import bootstrap
from rookworld_nb.measure.suites import held_out
from rookworld_nb.run.pretrain import pretrain_optimizer, starting_model, supervised_step
from rookworld_nb.run.targets import RowStream, TokenRows, data_shards, tokenize


def train_arm(config, steps, env_weight=1.0):
    "The model after so many steps; the mean loss of the last 200 of each task."
    model, tokenizer = starting_model(config)
    if not steps: return model.eval(), tokenizer, {}
    optimizer, losses = pretrain_optimizer(config, model, tokenizer), dict(P=[], A=[])
    peaks = [g['lr'] for g in optimizer.param_groups]
    with RowStream(config, data_shards(config.data), tokenizer.name) as stream:
        for step in range(steps):
            kind, batch = stream.batch(step)
            weight = env_weight if kind == 'A' else 1.0
            loss, _ = supervised_step(model, optimizer, replace(batch, weights=weight*batch.weights), peaks, (steps - step)/steps, config.grad_clip)
            losses[kind].append(loss/weight)
            if step % 100 == 99: print(step + 1, {k: round(sum(v[-50:])/50, 4) for k, v in losses.items()}, flush=True)
    return model.eval(), tokenizer, {k: sum(v[-200:])/len(v[-200:]) for k, v in losses.items()}


def questions(data, n):
    "Held-out rows by kind: random games as they are, three special kinds, positions of P."
    games = (e for e in generate_transitions(10*n, 'arms12', 'eval', ordinary=1.0) if held_out(e.fen))
    shards = data_shards(data)
    policy = [e for s in shards[::max(1, len(shards)//6)][:6] for e in load_rows(s, 0.0, 0, 'eval').of_kind('P')]
    return dict(games=list(islice(games, n)), **{k: list(special_rows(k, n//3, 'arms12', 'eval')) for k in ('illegal', 'mates', 'draws')}, P=policy[:n])


@torch.no_grad()
def measure(model, tokenizer, rows):
    "For each row its measures: of A exact and nats, of P legal, best and nats of the best move."
    found, tokens = [], TokenRows(tokenize(e, tokenizer) for e in rows)
    for at in range(0, len(rows), 100):
        batch = tokens.batch(torch.arange(at, min(at + 100, len(rows))))
        logits, ids, learned = model(batch.ids[:, :-1]), batch.ids[:, 1:], batch.learned[:, 1:]
        nats = -logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        for i, e in enumerate(rows[at:at + 100]):
            if e.kind == 'A':
                found.append(dict(exact=float((logits[i].argmax(-1) == ids[i])[learned[i]].all()), nats=float(nats[i][learned[i]].sum())))
            else:
                first = logits[i, int(tokens.prompt_lengths[at + i])]                  # after ` M:`
                move, best = tokenizer.decode([int(first.argmax())]), tokenizer.encode(e.target.best)[0]
                found.append(dict(legal=float(move in map(chess.Move.uci, chess.Board(e.fen).legal_moves)), best=float(int(first.argmax()) == best),
                                  nats=-float(first.log_softmax(-1)[best])))
    return found


def main(name, start, steps, out, **fields):
    env_weight = float(fields.pop('env_weight', 1))
    choices = {c.name: c for c in describe(PretrainConfig)}
    config = PretrainConfig(init=start, **{k: parse_value(choices[k], v) for k, v in fields.items()})
    torch.manual_seed(config.seed)
    model, tokenizer, losses = train_arm(config, int(steps), env_weight)
    rows = []
    for kind, asked in questions(config.data, 1500).items():
        judged = measure(model, tokenizer, asked)
        table = np.array([list(r.values()) for r in judged])
        for metric, value, low, high in zip(judged[0], table.mean(0), *bootstrap(table)):
            rows.append(dict(arm=name, steps=int(steps), kind=kind, metric=metric, value=round(value, 4), low=round(low, 4), high=round(high, 4), n=len(judged),
                             loss=round(losses.get('P' if kind == 'P' else 'A', math.nan), 4)))
    new = not Path(out).exists()
    with open(out, 'a', newline='') as f:
        writer = csv.DictWriter(f, list(rows[0]), lineterminator='\n')
        if new: writer.writeheader()
        writer.writerows(rows)
    print(*rows, sep='\n')


if __name__ == '__main__':
    if len(sys.argv) < 3 or {'-h', '--help'} & {*sys.argv}: sys.exit(print(__doc__))
    torch.set_num_threads(1)
    main(*sys.argv[1:5], **dict(a.split('=', 1) for a in sys.argv[5:]))
