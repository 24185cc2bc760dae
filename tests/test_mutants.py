"""Faults and the campaign that puts them in: what each operator makes of a line, what it leaves
alone, and a campaign over a room with one lesson."""
import json
import tempfile
import pytest
import mutants
from faults import OPERATORS, declared, faults
from mutants import EQUIVALENT, campaign, equivalent, known_verdicts, sample

EXAMPLES = [('swap', 'f(a, b)', 'f(b, a)'), ('swap', 'x = a - b', 'x = b - a'),
            ('swap', 'low, high = f()', '(high, low) = f()'),
            ('swap', 'y = a if c else b', 'y = b if c else a'),
            ('neighbour', 'f(low=a, high=b)', 'f(low=b, high=a)'),
            ('flip', 'x = a < b', 'x = a >= b'), ('flip', 'x = a in b', 'x = a not in b'),
            ('flip', 'x = f(True)', 'x = f(False)'), ('flip', 'x = a and b', 'x = a or b'),
            ('edge', 'x = 0 < a <= 1', 'x = 0 <= a <= 1'),
            ('edge', 'x = 0 < a <= 1', 'x = 0 < a < 1'), ('undo', 'x = not a', 'x = a'),
            ('undo', 'x = y[~mask]', 'x = y[mask]'), ('undo', 'x = -a', 'x = a'),
            ('number', 'x = 3', 'x = 4'), ('number', 'x = 3', 'x = 2'),
            ('number', 'x = 0.5', 'x = 1.0'), ('arithmetic', 'x = a*b', 'x = a / b'),
            ('arithmetic', 'x += a', 'x -= a'), ('drop', 'x = y.detach()', 'x = y'),
            ('drop', 'with torch.no_grad(): f()', 'with torch.enable_grad(): f()'),
            ('drop', 'x = y*mask', 'x = y'),
            ('drop', 'x = [a for a in b if a]', 'x = [a for a in b]'),
            ('drop', 'x = a and b and c', 'x = a and c'), ('drop', 'x = a & b', 'x = b'),
            ('drop', '@torch.no_grad()\ndef f(): pass', '@torch.enable_grad()'),
            ('skip', 'f(a)', 'pass'), ('other', 'x = y.mean(1)', 'x = y.sum(1)'),
            ('other', 'x = max(a, b)', 'x = min(a, b)'), ('ends', 'x = y[0]', 'x = y[-1]'),
            ('ends', 'x = y[:n]', 'x = y[n:]'), ('ends', 'x = task.before', 'x = task.after'),
            ('sibling', 'def f(rows: list, asked: list): return len(rows)',
             'def f(rows: list, asked: list): return len(asked)'),
            ('sibling', 'def f(a, b):\n    x, y = g(a), g(b)\n    return x', 'return y'),
            ('sibling', 'def f(a):\n    b = g(a)\n    return b', 'return a'),
            ('sibling', 'def f(raw_reward, reward): return h(reward)',
             'def f(raw_reward, reward): return h(raw_reward)'),
            ('sibling', 'def f(a): return [x for x, y in a]', 'def f(a): return [y for x, y in a]'),
            ('sibling', 'def f(r): return r.seen - r.asked', 'def f(r): return r.asked - r.asked'),
            ('sibling', 'def f(r): return r["seen"] - r["asked"]', "def f(r): return r['asked'] - r[\"asked\"]"),
            ('sibling', 'x = y.mean()', 'x = y.max()'), ('sibling', 'x = f("last")', "x = f('mean')"),
            ('sibling', 'x = a + b', 'x = b'), ('sibling', 'x = [*a, *b]', 'x = [*a]'),
            ('sibling', 'x = f(x)', 'pass'), ('sibling', 'x, y = f(x), z', 'x, y = (x, z)'),
            ('sibling', 'def f(x):\n    x = g(x)\n    y = h(x)\n    return y', 'y = h(x); x = g(x)')]


@pytest.mark.parametrize('operator,line,fault', EXAMPLES)
def test_operator(operator, line, fault):
    assert (operator, fault) in {(m.operator, m.after) for m in faults(line)}


def test_every_operator_has_an_example(): assert {e[0] for e in EXAMPLES} == set(OPERATORS)


@pytest.mark.parametrize('source', [
    '"Not a docstring."', 'def f(x: Tensor[0]) -> Tensor[:1]: "Mean of the first, not the last."',
    'import os.path as low', 'raise ValueError(f"{a - 1}")', 'parse(help=first[0])',
    '@dataclass(frozen=True)\nclass A: pass', 'print(a, b)',
    'def _repr_html_(self): return self.first[0]', 'isinstance_ = isinstance(a, b)', 'f(a, a)',
    'x = max(a, b)', 'def f(a: int, b: str): return g(a, b)', 'x = f"{a - b}"', 'x = "a" + b',
    'def f(): return torch.cat(torch.inf)', 'x = y\nz = x',
])
def test_what_is_left_alone(source):
    assert [m for m in faults(source) if m.operator not in ("skip", "other")] == []


def test_all_but_one_place_stays():
    source = 'def f(a,   b):   # ü\n    c = "é" + g(a,   b)\n    return c   # a comment\n'
    assert [m.source for m in faults(source)
            if m.operator == 'swap'] == [source.replace('g(a,   b)', 'g(b, a)')]


def test_an_id_lasts():
    line, more = 'def f(a): return a[0] + a[0]\n', 'y = z[0]\n'
    ids = [m.id for m in faults(line, 'room')]
    assert len(set(ids)) == len(ids) and ids == [
        m.id for m in faults(more + line, 'room') if ':f:' in m.id
    ]


def test_a_larger_sample_only_adds():
    rooms = ['measure/01_measures', 'grpo/02_kl']
    small, large = sample(20, 0, rooms), sample(30, 0, rooms)
    assert large[:20] == small and len({m.id for m in large}) == 30 and small != sample(20, 1, rooms)
    assert [sum(m.room == r for m in small)
            for r in rooms] == [10, 10] and len({m.operator
                                                 for m in small}) > 7
    # a third of each room
    assert [sum(m.room == r and m.operator == 'sibling' for m in large) for r in rooms] == [5, 5]


def test_fields_of_two_types_are_no_siblings():
    cell = 'class A:\n    seen: int\n    names: list\n    asked: int\n'
    use = 'def f(r): return r.seen, r.names, r.asked'
    found = [m.after for m in faults(use, fields=declared([cell])) if m.operator == 'sibling']
    assert found == ['def f(r): return r.asked, r.names, r.asked', 'def f(r): return r.seen, r.names, r.seen']


def test_equivalents_are_named():
    assert EQUIVALENT.read_text().startswith('id,before,after,reason\n')
    assert all(reason for reason in equivalent().values())


CELL = "#| export\ndef distance(a, b): return abs(a - b)\ndef far(a, b, limit=3): return distance(a, b) > limit\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one room, one lesson and one test: a function that writes its lesson cells
    anew."""
    for name in ('nbs', 'rookworld_nb', 'tests'): (tmp_path/name).mkdir()
    for name, path in dict(ROOT=tmp_path, NBS=tmp_path/'nbs', TESTS=tmp_path/'tests').items():
        monkeypatch.setattr(mutants, name, path)
    (tmp_path/'rookworld_nb'/'__init__.py').write_text('')
    (tmp_path/'rookworld_nb'/'toy.py').write_text('# exported\n' + CELL.split('\n', 1)[1])
    (tmp_path/'tests'/'test_toy.py').write_text(
        'from rookworld_nb.toy import far\ndef test_far(): assert far(1, 9) and not far(1, 2)\n')
    def write(*lessons):
        sources = ['#| default_exp toy', CELL, *lessons]
        (tmp_path/'nbs'/'00_toy.ipynb').write_text(
            json.dumps(dict(cells=[dict(cell_type='code', source=[s]) for s in sources])))
        for f in (mutants.cells, mutants.lessons_of, mutants.suite_of, mutants.test_files):
            f.cache_clear()
        return sample(100, 0, ['00_toy'])
    yield write
    for f in (mutants.cells, mutants.lessons_of, mutants.suite_of, mutants.test_files):
        f.cache_clear()


def test_campaign(project, tmp_path):
    cache = tmp_path/'cache.jsonl'
    def run(*lessons, **choices):
        "Which faults live after the lesson, and after the tests."
        found = project(*lessons)
        campaign(found, cache, **choices)
        lesson, tests = known_verdicts(cache, found)
        return {m.after
                for m in found if not lesson[m.id]['killed']
                }, {m.after
                    for m in found if m.id in tests and not tests[m.id]['killed']}
    lives, _ = run('assert distance(1, 3) == 2', with_tests=False)
    assert 'def distance(a, b): return abs(a + b)' not in lives
    assert {
        'def distance(a, b): return abs(b - a)',
        'def far(a, b, limit=3): return distance(a, b) <= limit',
        'def far(a, b, limit=3): return distance(a, b) >= limit'
    } <= lives
    before = cache.read_text().count('\n')
    run('assert distance(1, 3) == 2', with_tests=False)
    assert cache.read_text().count('\n') == before                            # all is known
    # a new lesson: only what lived runs again, and then the tests
    fewer, last = run('assert distance(1, 3) == 2', 'assert not far(1, 4)')
    assert cache.read_text().count('"lesson"') == before - 1 + len(
        lives) and 'def far(a, b, limit=3): return distance(a, b) >= limit' not in fewer
    assert 'def distance(a, b): return abs(b - a)' in last and 'def far(a, b, limit=3): return distance(a, b) < limit' not in last


def test_a_fault_that_never_ends(project):
    project('assert distance(1, 3) == 2')
    with tempfile.TemporaryFile('w+') as f:
        mutants.walk('00_toy', [(0, 'while True: pass', 'loop'),
                                (0, CELL + 'import time; time.sleep(2)', 'waits'),
                                (0, 'import os; os.kill(os.getpid(), 9)', 'killed')],
                     lambda row: print(json.dumps(row), file=f, flush=True), limit=1)
        f.seek(0)
        rows = [json.loads(line) for line in f]
    # the machine may be busy: only work counts
    assert [row.get('how')
            for row in rows] == ['time', None, 'exit code -9', None] and rows[-1]['green']


def test_what_a_fault_does_to_files_is_undone(project):
    # the lesson clears up, with a fault as well
    project(
        "import pathlib, tempfile\nfolder = pathlib.Path(tempfile.mkdtemp())\n(folder/'kept').write_text('1')",
        "(folder/'kept').unlink()")
    with tempfile.TemporaryFile('w+') as f:
        mutants.walk('00_toy', [(2, "(folder/'kept').write_text('2')", 'other'),
                                (2, '(folder/"kept").rename(folder/"gone")', 'gone')],
                     lambda row: print(json.dumps(row), file=f, flush=True))
        f.seek(0)
        rows = [json.loads(line) for line in f]
    assert [row.get('killed') for row in rows] == [False, False, None] and rows[-1]['green']


def test_a_red_room_proves_nothing(project, tmp_path):
    found = project('assert distance(1, 3) == 3')
    campaign(found, tmp_path/'cache.jsonl', with_tests=False)
    assert known_verdicts(tmp_path/'cache.jsonl', found) == ({}, {})


@pytest.mark.parametrize('lessons, whole, green',
                         [(['assert distance(1, 3) == 2', 'assert False'], False, True),
                          (['assert distance(1, 3) == 2', 'assert False'], True, False),
                          (['assert distance(1, 3) == 3', 'pass'], False, False)],
                         ids=['not needed', 'whole', 'at the evidence'])
def test_a_walk_goes_as_far_as_its_evidence(project, lessons, whole, green):
    project(*lessons)
    with tempfile.TemporaryFile('w+') as f:
        mutants.walk('00_toy', [(0, CELL.replace('a - b', 'a + b'), 'sum')],
                     lambda row: print(json.dumps(row), file=f, flush=True), whole=whole)
        f.seek(0)
        rows = [json.loads(line) for line in f]
    assert rows[0]['killed'] and {row['green'] for row in rows if 'green' in row} == {green}
