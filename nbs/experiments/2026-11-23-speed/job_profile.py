"""Where do the time and the memory of a whole run go? `python job_profile.py` makes the quarter of a run of job.py once, and
writes job_profile.csv. Linux only: the kernel counts the peak of a process anew when it is asked to."""
import contextlib
import csv
import functools
import sys
import tempfile
import time
from pathlib import Path
from job import QUARTER

HERE = Path(__file__).parent
found = {}      # part: [seconds, CPU-seconds, GB at most, GB afterwards]


def held(what):
    "GB of this process: VmRSS now, VmHWM at most."
    line = next(l for l in Path('/proc/self/status').read_text().splitlines() if l.startswith(what))
    return int(line.split()[1])*1024/1e9


@contextlib.contextmanager
def measured(part):
    Path('/proc/self/clear_refs').write_text('5')       # the peak is counted from here
    began, used = time.perf_counter(), time.process_time()
    try: yield
    finally:
        row = found.setdefault(part, [0., 0., 0., 0.])
        row[0] += time.perf_counter() - began
        row[1] += time.process_time() - used
        row[2:] = max(row[2], held('VmHWM')), held('VmRSS')


def watch(place, name, part):
    "Measure every call of a function under the name that `part` gives it."
    call = getattr(place, name)
    @functools.wraps(call)
    def watched(*how, **named):
        with measured(part(*how)): return call(*how, **named)
    setattr(place, name, watched)


def main():
    began, used = time.perf_counter(), time.process_time()
    with measured('imports'):
        from rookworld_nb.apps import cli
        from rookworld_nb.report import report
        from rookworld_nb.run import held_out, train
    watch(train, 'load_model', lambda *how: 'the model')
    watch(train, 'load_prompts', lambda *how: 'prompts, trained and held out')
    watch(held_out, 'evaluate_run', lambda *how: 'evaluation before' if how[4] == 0 else 'evaluation after')
    watch(held_out.HeldOut, 'check', lambda *how: 'check')
    watch(train, 'train_step', lambda *how: 'steps')
    watch(report, 'write_report', lambda *how: 'report')
    with tempfile.TemporaryDirectory() as place:
        sys.argv = ['rookworld_train', *QUARTER.split(), '--output_dir', f'{place}/run']
        with contextlib.suppress(SystemExit): cli.train_command()
    whole = [time.perf_counter() - began, time.process_time() - used, max(row[2] for row in found.values()), held('VmRSS')]
    rest = [w - sum(row[i] for row in found.values()) for i, w in enumerate(whole[:2])]
    with (HERE/'job_profile.csv').open('w') as f:
        out = csv.writer(f, lineterminator='\n')
        out.writerow('part,wall_s,cpu_s,peak_gb,after_gb'.split(','))
        out.writerows([part, *(round(x, 2) for x in row)] for part, row in found.items())
        out.writerow(['the rest', *(round(x, 2) for x in rest), '', ''])
        out.writerow(['all', *(round(x, 2) for x in whole)])


if __name__ == '__main__': main()
