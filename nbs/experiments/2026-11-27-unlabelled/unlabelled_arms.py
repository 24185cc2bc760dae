"""Runs of rookworld_train side by side, each evaluated on the probes and on shipped rows: `python unlabelled_arms.py PLAN.toml OUT [--seconds S] [--small]`.

PLAN.toml has `[base]`, fields of a run that all arms share, and `[arms.NAME]`, what each changes. An arm trains until its last step or until S seconds have passed; then its newest
checkpoint answers greedily (with keep_last, each that was kept). OUT/NAME.json has steps, seconds and every measure; `start.json` those of the weights that all begin with. `--small` rehearses it with few steps and rows."""
import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path


def rows(small):
    from dataclasses import replace
    from rookworld_nb.chess.dataset import load_rows
    from rookworld_nb.measure.probes import probe_rows
    n = 3 if small else 100
    sizes = dict(ends=n, people=3*n, armies=2*n, games=n, clocks=n//2, policy=3*n)
    asked = [e for name, k in sizes.items() for e in probe_rows(name, k) if e.source != 'people, history 9']
    shipped = load_rows('positions', 0.2, 0, 'eval')
    return asked + [replace(e, source='shipped') for kind, k in dict(P=20*n, A=5*n).items() for e in shipped.of_kind(kind)[:k]]


def answers(model, device, small):
    from rookworld_nb.lm.loader import load_model
    from rookworld_nb.measure.evaluate import judge_rows
    judged = judge_rows(*load_model(model, device), rows(small), limits=dict(P=60, A=100))
    wanted = dict(A=['exact', 'fen_exact'], P=['coherence', 'legal_best', 'best_move', 'top5_overlap', 'eval_error'])
    return {f'{task} {metric} {source}': round(float(value), 4) for task, metrics in wanted.items() for metric in metrics
            for source, value in judged[judged.task == task].groupby('source')[metric].mean().dropna().items()}


def arm(name, config, out, seconds, small):
    import torch
    from rookworld_nb.config import TrainConfig
    from rookworld_nb.run.train import train
    torch.set_num_threads(1)
    began, run = time.time(), out/name
    def late(_, whole):
        if not whole and time.time() - began > seconds: raise TimeoutError
    try: train(TrainConfig(**config, output_dir=str(run)), watch=late)
    except TimeoutError: pass
    trained, steps = time.time() - began, [json.loads(line) for line in open(run/'metrics.jsonl')]
    told = dict(arm=name, steps=len(steps), seconds=round(trained), config=config, mean_step_s=sum(s['time_s'] for s in steps)/len(steps),
                mix={k: v for k, v in steps[-1].items() if k.startswith(('signal_', 'share_'))}, measured={})
    for kept in sorted((run/'checkpoints').glob('step-*'), key=lambda p: -int(p.name.split('-')[1]))[:max(1, config.get('keep_last', 1))]:    # the newest first
        told['measured'][kept.name] = answers(str(kept), config.get('device', 'cpu'), small)
        (out/f'{name}.json').write_text(json.dumps(told, indent=1) + '\n')
    print(name, told['steps'], told['seconds'], round(time.time() - began), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('plan', type=Path)
    parser.add_argument('out', type=Path)
    parser.add_argument('--seconds', type=float, default=1e9)
    parser.add_argument('--small', action='store_true')
    parser.add_argument('--arm')
    asked = parser.parse_args()
    plan = tomllib.loads(asked.plan.read_text())
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.arm == 'start': (asked.out/'start.json').write_text(json.dumps(answers(plan['base'].get('model', 'nano'), 'cpu', asked.small), indent=1) + '\n')
    elif asked.arm: arm(asked.arm, plan['base'] | plan['arms'][asked.arm] | (dict(max_steps=3, prompts_per_step=2, group_size=4, eval_prompts=4) if asked.small else {}), asked.out, asked.seconds, asked.small)
    else:
        environment = os.environ | dict(OMP_NUM_THREADS='1', OMP_WAIT_POLICY='PASSIVE')
        started = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], '--arm', name], env=environment, stdout=open(asked.out/f'{name}.log', 'w'), stderr=subprocess.STDOUT)
                   for name in ['start', *plan['arms']]]
        sys.exit(max(p.wait() for p in started))


if __name__ == '__main__': main()
