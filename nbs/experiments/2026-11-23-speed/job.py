"""What does a whole run cost, then and now? `python job.py DIR` runs the same jobs of `rookworld_train` with this package
and with DIR, a checkout of 25a7301, by turns, and writes job.csv."""
import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).resolve().parents[3]
# the defaults of 25 November, written out, with a quarter of the steps and of the evaluation
QUARTER = ('--data positions --max_steps 80 --prompts_per_step 8 --group_size 8 --env_ratio 0.5 --kl_coef 0.6 --check_every 40 '
           '--eval_prompts 500')
JOBS = {'a quarter of a run': QUARTER, 'one step': '--max_steps 1'}
# the command, with a clock around its evaluations
TIMED = '''
import importlib, sys, time
from rookworld_nb.apps.cli import train_command
try: room = importlib.import_module('rookworld_nb.run.held_out')
except ModuleNotFoundError: room = importlib.import_module('rookworld_nb.run.train')     # where it was in November
evaluate, seconds = room.evaluate_run, []
def timed(*how, **named):
    began = time.perf_counter()
    try: return evaluate(*how, **named)
    finally: seconds.append(time.perf_counter() - began)
room.evaluate_run, clock = timed, sys.argv.pop(1)
try: train_command()
finally: print(sum(seconds), file=open(clock, 'w'))
'''


def measured(job, package):
    "Seconds of a run, of them those of its steps and of its evaluations; its CPU-seconds; its GB."
    with tempfile.TemporaryDirectory() as place:
        run, clock = Path(place)/'run', Path(place)/'seconds.txt'
        command = [sys.executable, '-c', TIMED, str(clock), *JOBS[job].split(), '--model', str(ROOT/'rookworld_nb/assets/nano'), '--output_dir', str(run)]
        began = time.perf_counter()
        child = subprocess.Popen(command, cwd=package, env=os.environ | dict(PYTHONPATH=str(package)), stdout=subprocess.DEVNULL)
        _, code, used = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
        if code: raise SystemExit(f'{package}: exit code {code}')
        steps = sum(json.loads(line)['time_s'] for line in (run/'metrics.jsonl').read_text().splitlines())
        evaluations = float(clock.read_text())
    return [round(x, 2) for x in (seconds, steps, evaluations, used.ru_utime + used.ru_stime, used.ru_maxrss/1e6)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('before', type=Path, help='a checkout of 25a7301')
    parser.add_argument('--repeats', type=int, default=5)
    a = parser.parse_args()
    builds = {'25 November': a.before.resolve(), 'now': ROOT}
    with (HERE/'job.csv').open('w') as f:
        out = csv.writer(f, lineterminator='\n')
        out.writerow('job,build,repeat,wall_s,steps_s,evaluations_s,cpu_s,peak_gb'.split(','))
        for repeat in range(a.repeats):
            for build in [*builds][::1 if repeat % 2 else -1]:
                for job in JOBS:
                    out.writerow(row := [job, build, repeat, *measured(job, builds[build])])
                    f.flush()
                    print(*row, flush=True)


if __name__ == '__main__': main()
