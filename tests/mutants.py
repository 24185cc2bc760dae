"""Does a lesson turn red when a line is wrong? Faults put by rule into the exported cells of the notebooks.

    python tests/mutants.py --n 600 --seed 0 --cache mutants.jsonl

A fault meets the cells of its own notebook first; if they stay green, the test files that import the module. What was
found is kept in the cache, so that a second run does what is new. The known tools (mutmut, cosmic-ray) see files and
not the cells of notebooks, hence this runner."""
import argparse
import ast
import contextlib
import csv
import ctypes
import functools
import importlib
import json
import linecache
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
from faults import declared, faults, short

TESTS = Path(__file__).resolve().parent
ROOT, NBS, EQUIVALENT = TESTS.parent, TESTS.parent/'nbs', TESTS/'mutants_equivalent.csv'
# rooms that show and order, and compute little
PAGES = {
    'index', '98_front_door', '99_house', '02_page', 'report/01_run_files', 'report/02_curves',
    'report/03_cards', 'report/04_report', 'apps/05_cli'
}
FLAGGED = re.compile(r'^#\|\s*(slow|gpu|net|engine|default_exp|eval:\s*false)', re.M)
MEMORY = 12 << 30   # bytes a fault may ask for
FORKING = threading.Lock()


@functools.cache
def cells(room):
    return [
        s for c in json.loads((NBS/f'{room}.ipynb').read_text())['cells']
        if c['cell_type'] == 'code' and not FLAGGED.search(s := ''.join(c['source']))
    ]
@functools.cache
def code_hash(source):
    "Of the code of a cell: comments and docstrings may change without a verdict becoming old."
    try: tree = ast.parse(source)
    except SyntaxError: return short(source)   # a cell with a magic
    for n in ast.walk(tree):
        if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(n) is not None:
            n.body = (n.body[1:] or [ast.Pass()])
    return short(ast.unparse(tree))


def is_exported(source): return bool(re.search(r'^#\|\s*exports?\s*$', source, re.M))


def notebooks():
    return [
        p.relative_to(NBS).with_suffix('').as_posix() for p in sorted(NBS.rglob('*.ipynb'))
        if not {'experiments', 'tutorials', '.ipynb_checkpoints'} & set(p.parts)
    ]


def all_rooms():
    return [r for r in notebooks() if r not in PAGES and any(map(is_exported, cells(r)))]


@functools.cache
def fields(): return declared(s for room in notebooks() for s in cells(room) if is_exported(s))


def in_turn(drawn):
    "One of each operator, then the second of each; the first of three is a sibling, while there are any."
    rank = Counter()
    order = {m.id: (rank.update([m.operator]), rank[m.operator])[1] for m in drawn}
    drawn = sorted(drawn, key=lambda m: order[m.id])   # stable
    siblings, others = ([m for m in drawn if (m.operator == 'sibling') == wanted] for wanted in (True, False))
    while siblings or others:
        yield from [siblings.pop(0)] if siblings else []
        yield from (others.pop(0) for _ in range(min(2, len(others))))


def sample(n, seed, rooms):
    """`n` faults, the same number from each room as far as it has them, the operators in turn; a
    larger n only adds."""
    queues = {}
    for room in rooms:
        drawn = sorted((m for i, s in enumerate(cells(room)) if is_exported(s)
                        for m in faults(s, room, i, fields())), key=lambda m: short(str(seed), m.id))
        queues[room] = [*in_turn(drawn)]
    picked = []
    for turn in range(max(map(len, queues.values()), default=0)):
        for room, queue in queues.items():
            if turn < len(queue) and len(picked) < n: picked.append(queue[turn])
    return picked


# Running them: a walker runs the cells of a room once; where a fault belongs, a child of it goes on
# with the fault.

def run_cells(sources, names, told=None):
    for i, s in enumerate(sources):
        if told is not None: os.write(told, f'{i}\n'.encode())
        file = f'<cell {short(s)}>'
        # a traceback shows the line, as in a notebook
        linecache.cache[file] = len(s), None, s.splitlines(True), file
        exec(compile(s, file, 'exec'), names)


def in_child(f, limit=None):
    """`f(pipe)` in a forked process that may compute for `limit` seconds and take eight times that:
    its exit code (minus the signal that ended it), seconds, what it told."""
    place, start = tempfile.mkdtemp(), time.time()
    FORKING.acquire()     # the child of another thread must not hold this pipe open
    out, told = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            FORKING.release()
            os.setsid()
            # Linux: when the parent ends, so does this
            with contextlib.suppress(AttributeError): ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            tempfile.tempdir = os.environ['TMPDIR'] = place
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            # a busy machine is no fault
            if limit: signal.setitimer(signal.ITIMER_PROF, limit); signal.alarm(int(8*limit))
            with open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                try: f(told)
                except BaseException as e:
                    os.write(told, f'{type(e).__name__}: {e}'.replace('\n', ' ')[:200].encode())
                    raise
            code = 0
        finally: os._exit(code)
    os.close(told)
    FORKING.release()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seconds = time.time() - start
    with contextlib.suppress(OSError): os.killpg(pid, signal.SIGKILL)   # what it had started
    with os.fdopen(out, 'rb') as f: said = f.read().decode(errors='replace').splitlines()
    for p in (place, f'{place}-kept'): shutil.rmtree(p, ignore_errors=True)
    return code, seconds, said


@contextlib.contextmanager
def spared(place):
    "Whatever is done to the files of a directory in here is undone."
    kept = Path(f'{place}-kept')
    place.rename(kept)   # not a copy: who has its files open keeps them
    try:
        shutil.copytree(kept, place, symlinks=True)
        yield
    finally:
        shutil.rmtree(place, ignore_errors=True)
        kept.rename(place)


def walk(room, todo, tell, limit=150, shared=True, whole=True):
    """Run a room once, and each fault of `todo` (cell number, source, name) from its cell on, for at most `limit` seconds of computing; `tell` hears every
    verdict. Not `whole`: as far as the last cell that a fault turned red, since no verdict needs the rest."""
    sources = cells(room)
    def walker(_):
        os.chdir((NBS/room).parent)
        sys.modules['__main__'] = main = types.ModuleType('__main__')
        green, last = 0, max((t[0] for t in todo), default=0)
        for i, s in enumerate(sources):
            if not whole and i > last: break
            for at, source, name in (t for t in todo if (t[0] if shared else 0) == i):
                rest = [*sources[i:at], source, *sources[at + 1:]]
                with spared(Path(tempfile.tempdir)):
                    code, seconds, said = in_child(lambda told: run_cells(rest, vars(main), told),
                                                   limit)
                at_red = max((int(l) for l in said if l.isdecimal()), default=0)
                red, last = rest[at_red], max(last, i + at_red)
                how = ('time' if code in (-signal.SIGALRM, -signal.SIGPROF) else
                       said[-1] if said and code == 1 else f'exit code {code}')
                tell(
                    dict(id=name, killed=bool(code), seconds=round(seconds, 2))
                    | (dict(how=how, red=code_hash(red)) if code else {}))
            start = time.process_time()
            run_cells([s], vars(main))
            green += time.process_time() - start
        tell(dict(room=room, green=True, seconds=round(green, 1)))
    code, _, said = in_child(walker)
    if code:   # by itself, or by what the faults left behind: no verdict proves anything
        tell(dict(room=room, green=False, how=(said or [f'exit code {code}'])[-1]))
        # each from the first cell on
        if shared and todo: walk(room, todo, tell, limit, False, whole)


def prepare():
    "Import once, for all children, what takes long."
    os.environ.update({
        k: v
        for k, v in dict(MPLBACKEND='Agg', HF_HUB_OFFLINE='1', IN_TEST='1').items()
        if k not in os.environ
    })
    import torch
    torch.set_num_threads(1)
    for name in ('grpo.grpo', 'chess.dataset', 'lm.loader', 'reward.reward_scorer', 'fast.generate'):
        importlib.import_module(f'rookworld_nb.{name}')
    # lessons that draw in place ask whether this is a notebook
    InteractiveShell.instance(config=Config(HistoryManager=dict(enabled=False)))


# The test files, for what the lessons leave alive: in a copy of the package where one module has
# the fault.

def module_of(room): return re.search(r'default_exp ([\w.]+)', (NBS/f'{room}.ipynb').read_text())[1]


@functools.cache
def test_files(room):
    "The test files that name the room's module."
    wing, _, name = module_of(room).rpartition('.')
    named = re.compile(
        rf'rookworld_nb\.{re.escape(module_of(room))}\b|from '
        rf'rookworld_nb{re.escape(wing and "." + wing)} import [^\n]*\b{name}\b|{room}\b'
    )
    own = lambda p: p.stem.startswith(f'test_{name}')   # first: the first red test ends a run
    return sorted((p for p in TESTS.rglob('test_*.py')
                   if p.name != 'test_mutants.py' and (own(p) or named.search(p.read_text()))),
                  key=lambda p: (not own(p), p))


def run_tests(files, room=None, before='', after='', limit=1200):
    """Run test files against the package, one cell of one module replaced: None, or the name of the
    test that turned red."""
    with tempfile.TemporaryDirectory() as place:
        package = Path(place)/'rookworld_nb'
        for p in (ROOT/'rookworld_nb').rglob('*'):
            if p.is_dir() or '__pycache__' in p.parts: continue
            link = package/p.relative_to(ROOT/'rookworld_nb')
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(p)
        if room:
            bare = lambda s: re.sub(r'^#\|.*\n', '', s, flags=re.M).strip()
            module = package/f'{module_of(room).replace(".", "/")}.py'
            text = module.read_text()
            if text.count(bare(before)) != 1:
                raise ValueError(
                    f'a cell of {room} stands {text.count(bare(before))} times in its module: export first'
                )
            module.unlink()
            module.write_text(text.replace(bare(before), bare(after)))
        process = subprocess.Popen(
            [
                sys.executable, '-m', 'pytest', '-x', '-q', '-p', 'no:cacheprovider',
                *map(str, files)
            ], cwd=place, text=True, start_new_session=True,
            env=os.environ | {'PYTHONPATH': place, 'TMPDIR': place, 'PYTHONDONTWRITEBYTECODE': '1'},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try: said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired: said = 'FAILED time'
        with contextlib.suppress(OSError): os.killpg(process.pid, signal.SIGKILL)
        red = re.findall(r'^(?:FAILED|ERROR) (\S+)', said, re.M)
        return (red[0].split('/')[-1] if red else
                None if process.returncode in (0, 5) else f'exit code {process.returncode}')


# The campaign.


def read(cache):
    return ([json.loads(line) for line in cache.read_text().splitlines()] if cache.exists() else [])


def known_verdicts(cache, mutants):
    """What the cache says about these faults and still holds: {id: row} of the lessons, the same of
    the test files."""
    lesson, tests, wanted, since = {}, {}, {m.id: m for m in mutants}, defaultdict(set)
    standing = {room: {code_hash(s) for s in cells(room)} for room in {m.room for m in mutants}}
    for row in read(cache):
        if 'green' in row:
            # a walk that ended red
            for id in since.pop(row['room'], ()): row['green'] or lesson.pop(id, None)
        elif (m := wanted.get(row['id'])) and row['key'] == key_of(m):
            if row['stage'] == 'tests' and row['suite'] == suite_of(m.room): tests[m.id] = row
            if row['stage'] == 'lesson' and (
                    row['killed'] and row['red'] in standing[m.room] | {code_hash(m.source)}
                    or row['lessons'] == lessons_of(m.room)):
                # a kill holds while the cell that turned red stands, a survival while no lesson
                # changes
                lesson[m.id] = row
                since[m.room].add(m.id)
    return lesson, tests


def key_of(m):
    return short(*(code_hash(m.source if i == m.cell else s) for i, s in enumerate(cells(m.room))
                   if is_exported(s)))
@functools.cache
def lessons_of(room): return short(*(code_hash(s) for s in cells(room) if not is_exported(s)))
@functools.cache
def suite_of(room): return short(*(p.read_text() for p in test_files(room)))


def equivalent():
    "{id: why this fault changes nothing that anybody could notice}, written by hand."
    with EQUIVALENT.open() as f: return {row['id']: row['reason'] for row in csv.DictReader(f)}


def campaign(mutants, cache, jobs=1, with_tests=True):
    """Find the verdicts that the cache does not hold yet: the lessons of all rooms, then the test
    files for what they leave."""
    def tell(**row):
        with cache.open('a') as f: f.write(json.dumps(row) + '\n')
    def learn(room):
        todo = {m.id: m for m in mutants if m.room == room and m.id not in lesson}

        def heard(row):
            tell(**row | (dict(stage='lesson', key=key_of(todo[row['id']]), lessons=lessons_of(room)
                               ) if 'id' in row else {}))

        if todo:
            walk(room, [(m.cell, m.source, m.id) for m in todo.values()], heard,
                 6*green[room] + 20 if green.get(room) else 150)
    def test(m):
        start = time.time()
        red = run_tests([p for p in test_files(m.room) if p.name not in broken], m.room, cells(m.room)[m.cell], m.source)
        tell(id=m.id, stage='tests', key=key_of(m), suite=suite_of(m.room), killed=bool(red),
             how=red, seconds=round(time.time() - start, 1))
    lesson, tests = known_verdicts(cache, mutants)
    green = {row['room']: row['seconds'] for row in read(cache) if row.get('green')}
    with ThreadPoolExecutor(jobs) as pool: list(pool.map(learn, dict.fromkeys(m.room for m in mutants)))
    lesson, tests = known_verdicts(cache, mutants)
    left = [
        m for m in mutants if with_tests and m.id in lesson and not lesson[m.id]['killed']
        and m.id not in tests and test_files(m.room)
    ]
    # red by themselves: their redness proves nothing
    broken = {p.name for p in {p for m in left for p in test_files(m.room)} if run_tests([p])}
    if broken: print('red without a fault:', *sorted(broken))
    with ThreadPoolExecutor(jobs) as pool: list(pool.map(test, left))


def report(mutants, cache, excused):
    "A table by room, and every survivor by name."
    lesson, tests = known_verdicts(cache, mutants)
    rows = defaultdict(Counter)
    alive = []
    for m in mutants:
        found, tested = lesson.get(m.id), tests.get(m.id)
        fate = ('equivalent' if m.id in excused else 'not run' if not found else
                'lesson' if found['killed'] else 'tests' if tested and tested['killed'] else
                'survived' if tested or not test_files(m.room) else 'survived the lesson')
        rows[m.room][fate] += 1
        if fate.startswith('survived'): alive.append(m)
    fates = ['lesson', 'tests', 'equivalent', 'survived', 'survived the lesson', 'not run']
    rows['all'] = sum(rows.values(), Counter())
    print('| ' + ' | '.join(['room', 'faults', *fates, 'killed']) + ' |\n' + '|---'*
          (len(fates) + 3) + '|')
    for room, c in rows.items():
        done = c.total() - c['equivalent'] - c['not run']
        print('| ' + ' | '.join(
            map(str, [
                room,
                c.total(), *(c[f] for f in fates), f'{(c["lesson"] + c["tests"])/max(done, 1):.0%}'
            ])) + ' |')
    if alive: print('\nSurvivors:', *alive, sep='\n')


def main():
    parser = argparse.ArgumentParser(
        description='Put faults into the exported cells and see which of them no test notices.')
    parser.add_argument('--n', type=int, default=600, help='faults, shared evenly among the rooms')
    parser.add_argument('--seed', type=int, default=0, help='which faults are drawn')
    parser.add_argument('--jobs', type=int, default=1, help='rooms, then test runs, at a time')
    parser.add_argument('--cache', type=Path, default=Path('mutants.jsonl'), help='file of the verdicts')
    parser.add_argument('--rooms', nargs='*',
                        help='notebooks, such as grpo/01_grpo; without it all that compute')
    parser.add_argument('--lessons', action='store_true', help='do without the test files')
    parser.add_argument('--report', action='store_true', help='run nothing, show what is known')
    a = parser.parse_args()
    mutants, excused = sample(a.n, a.seed, a.rooms or all_rooms()), equivalent()
    if not a.report:
        prepare()
        campaign([m for m in mutants if m.id not in excused], a.cache.resolve(), a.jobs,
                 not a.lessons)
    report(mutants, a.cache, excused)


if __name__ == '__main__': main()
