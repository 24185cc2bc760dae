"""rookworld_eval as a shell sees it, and Stockfish taking the exam: if it did not pass, the metrics
would be wrong."""
import json
from dataclasses import replace
import pandas as pd
import pytest
from rookworld_nb.chess.dataset import load_rows, parse_row
from rookworld_nb.config import EvalConfig
from rookworld_nb.chess.engine import EnginePool, find_engine
from rookworld_nb.chess.positions import position_hash, reserved_positions, split_of
from rookworld_nb.measure import exam
from rookworld_nb.measure.evaluate import judge_policy, summarize
from rookworld_nb.measure.measures import METRICS
from rookworld_nb.measure.probes import watch_rows
from rookworld_nb.measure.suites import SUITES, mate_example
from rookworld_nb.chess.tasks import PolicyAnswer, parse_prompt
from runs import call, call_alone, call_unread, make_model

PUBLISHED = [ # Black's best move is the worst of its candidates, White's is the best
    'P: 1b1k4/6p1/1P3pp1/2P1n3/4RP1r/8/2K5/4B3 b - - 1 60 M: e5d7 h4h2 h4g4 g6g5 h4h8 E: -2.76 '
    '3.6 4.08 -3.55 0.0 B: g6g5',
    'P: 8/7p/2p5/p2pBpb1/P2P3k/2PK3P/1n4B1/8 w - - 1 49 M: d3c2 d3e2 E: -5.28 -4.93 B: d3e2',
    'P: 8/8/R7/7p/P2K2k1/7r/8/8 w - - 0 56 M: a4a5 d4c4 a6g6 a6a8 d4c5 E: 0.0 0.0 0.0 0.0 0.0 B: d4c5'
]


def bad(tmp_path, case):
    "Arguments that cannot work, and a part of what is said about them."
    rows = tmp_path/'rows.txt'
    rows.write_text('\n'.join(PUBLISHED))
    if case == 'suite':
        return [
            '--suite', 'big'
        ], 'suite must be one of quick, full, fresh, first_moves, openings, mates, special, probes'
    if case == 'suite and data':
        return ['--suite', 'mates', '--data', rows], "data must be left out with suite 'mates'"
    if case == 'three models':
        return ['--model', 'c', '--compare', 'a', 'b'], '--compare a b names both models'
    if case == 'empty data':
        rows.write_text('')
        return ['--data', rows], 'has no rows'
    if case == 'no valid rows':
        rows.write_text('not a row\nnor this\n')
        return ['--data', rows], '2 of 2 rows cannot be read'
    if case == 'no puzzles':
        (tmp_path/'task.json').write_text('{"examples": []}')
        return ['--data', tmp_path/'task.json'], 'has no rows to evaluate'
    if case == 'other csv':
        (tmp_path/'rows.csv').write_text('a,b\n1,2\n')
        return ['--data', tmp_path/'rows.csv'], "no column 'fen' (positions): found a, b"
    if case == 'vocabulary': return ['--model', make_model(tmp_path/'m', vocab_size=100), '--data', rows], '100'
    if case == 'context':
        return ['--model', make_model(tmp_path/'m', n_positions=20), '--data',
                rows], 'longer than the 20 tokens that the model reads'
    if case == 'output':
        (tmp_path/'file').write_text('')
        return ['--data', rows, '--output', tmp_path/'file'/'out'], 'file'


CASES = [
    'suite', 'suite and data', 'three models', 'empty data', 'no valid rows', 'no puzzles',
    'other csv', 'vocabulary', 'context', 'output'
]

@pytest.mark.parametrize('case', CASES)
def test_bad_usage_is_one_line(case, tmp_path):
    args, said = bad(tmp_path, case)
    code, out, err = call('eval', *args, cwd=tmp_path)
    assert code == 2, err
    assert err.startswith('rookworld_eval: ') and err.count('\n') == 1 and said in err, err


PUZZLES = """PuzzleId,FEN,Moves
a,x,y
made1,6k1/5ppp/8/8/8/8/1r3PPP/3R2K1 b - - 0 1,b2a2 d1d8
made2,4k3/8/8/3q4/8/8/3R4/3RK3 b - - 0 1,e8e7
"""
SCHOLAR = '1. e4 e5 2. Qh5 Nc6 3. Bc4 Nf6 4.'
TASK = dict(examples=[dict(input=SCHOLAR, target='Qxe5+'), dict(input=SCHOLAR, target='Qxf7#'), 12])

@pytest.mark.parametrize('name', ['PUZZLES.CSV', 'task.json'])
def test_puzzles_that_cannot_be_read_are_bad_rows(name, tmp_path):
    "Counted and left out up to max_bad_rows, whatever the case of the suffix; what does nothing there is said."
    text = PUZZLES if name == 'PUZZLES.CSV' else json.dumps(TASK)
    (tmp_path/name).write_text(text)
    place = "puzzle 'a': " if name == 'PUZZLES.CSV' else 'example 0: no game in SAN with a mating move: '
    common = ('--data', name, '--threads', '1')
    code, _, err = call('eval', *common, '--max_bad_rows', '0.5', cwd=tmp_path)
    assert code == 2 and err.startswith(f'rookworld_eval: {name}: 2 of 3 rows cannot be read: ') and err.count('\n') == 1, err
    assert f'e.g. {place}' in err
    code, out, err = call('eval', *common, '--max_bad_rows', '1', '--fix_best', 'always', cwd=tmp_path)
    assert code == 0 and f'1 prompts of {name}' in out, err
    assert f'{name}: 2 of 3 rows left out: ' in err and place in err
    assert f'fix_best has no effect with puzzles, each of which names its best move: {name}\n' in err
    code, _, err = call('eval', *common, '--max_bad_rows', '1', '--prompts', '1', cwd=tmp_path)
    assert code == 0 and f'{name}: 1 of 2 rows left out: ' in err and 'fix_best' not in err, err


def test_nobody_reads_what_is_printed(tmp_path):
    "As `| head -1` leaves it: the results are written."
    (tmp_path/'rows.txt').write_text('\n'.join(PUBLISHED))
    assert call_unread('eval', '--model', make_model(tmp_path/'m'), '--data', 'rows.txt',
                       '--output', 'out.json', cwd=tmp_path) == (0, '')
    assert json.loads((tmp_path/'out.json').read_text())['metrics']


def test_compare_two_models(tmp_path):
    rows = tmp_path/'rows.txt'
    rows.write_text('\n'.join(PUBLISHED))
    code, out, err = call_alone('eval', '--compare', make_model(tmp_path/'a'),
                                make_model(tmp_path/'b'), '--data', rows, '--output',
                                tmp_path/'out', cwd=tmp_path)
    assert code == 0, err
    assert 'published best move: black, 1 rows, is the best of its candidates in 0.0% and the worst in 100.0%' in out
    found = json.loads((tmp_path/'out/eval.json').read_text())
    table = pd.DataFrame(found['metrics'])
    assert {'first_legal', 'random_legal', str(tmp_path/'a'), str(tmp_path/'b')} <= set(table.model)
    assert {'difference', 'low', 'high', 'p'} <= set(found['comparison'][0])
    assert list(pd.read_csv(tmp_path/'out/eval.csv').metric) == list(table.metric)
    page = (tmp_path/'out/eval.html').read_text()
    assert page.count('<article>') == 3 and '<script' not in page


def test_batches_and_threads_change_nothing(tmp_path):
    model, texts = make_model(tmp_path/'m'), []
    for i, (size, threads) in enumerate([(1, 1), (7, 2), (256, 1)]):
        code, out, err = call('eval', '--model', model, '--prompts', 12, '--batch_size', size,
                              '--threads', threads, '--output', tmp_path/f'{i}.csv', cwd=tmp_path)
        assert code == 0, err
        texts.append((tmp_path/f'{i}.csv').read_text())
    assert texts[0] == texts[1] == texts[2]


def test_suites_have_fingerprints():
    assert list(SUITES) == ['quick', 'full', 'fresh', 'first_moves', 'openings', 'mates', 'special']
    assert all(len(s.sha256) == 64 for s in SUITES.values())


def test_no_training_row_is_watched():
    watched, reserved = watch_rows(), reserved_positions()
    assert all(split_of(e.fen) == 'eval' or position_hash(e.fen) in reserved for e in watched)
    learned = set(load_rows('positions', split='train', cache=True).positions.tolist())
    assert not learned & (reserved | {position_hash(e.fen) for e in watched})


def test_the_engine_is_asked_about_the_rows(monkeypatch, tmp_path):
    "Its answers are compared with the model's: the same moves with their evaluations in the opposite order give another share."
    asked = []
    def labels(rows, nodes, path=None, **trivial):      # with one node, for a trivial answer, where there is Stockfish
        if not trivial: asked.append((nodes, [e.fen for e in rows if e.kind == 'P']))
        return {e.fen: PolicyAnswer(e.target.moves[::order], e.target.evals, e.target.moves[0]) for e in rows if e.kind == 'P'}
    monkeypatch.setattr(exam, 'engine_labels', labels)
    found = {}
    for order in (1, -1):
        table = exam.run_evaluation(EvalConfig(prompts=80, engine=True, nodes=7, threads=1))
        found[order] = table[(table.metric == 'best_move_engine') & (table.task == 'P') & (table.slice == 'all') & (table.decoding == 'greedy')].value.item()
    assert asked[0] == asked[1] and asked[0][0] == 7 and 10 < len(asked[0][1]) < 80
    assert found[1] > found[-1], found


@pytest.mark.skipif(not find_engine(), reason='needs Stockfish')
def test_stockfish_passes():
    rows = load_rows('positions', env_ratio=0, split='eval', limit=40)[:]
    published = [parse_row(text) for text in PUBLISHED]
    # the label defect
    rows = [
        replace(
            e, published_best=e.target.moves[e.target.evals.index(
                (max if e.colour == 'white' else min)(e.target.evals))]) for e in rows
    ]
    rows += [*published, mate_example('6k1/5ppp/8/8/8/8/5PPP/R2R2K1 w - - 0 1')]
    # as many as the labels were made with
    with EnginePool(nodes=1000) as pool:
        # all at once; the answers below come from its cache
        pool.analyse([e.fen for e in rows])
        def stockfish(prompt):
            found, = pool.analyse([fen := parse_prompt(prompt).fen])
            return PolicyAnswer(found.moves, found.evals, found.moves[0]).text(fen=fen)
        table = summarize(judge_policy(stockfish, rows)).set_index(['slice', 'metric']).value
    assert table['all',
                 'legal_best'] >= 0.99 and table['all',
                                                 'format_valid'] == 1 and table['all',
                                                                                'mate_in_one'] == 1
    assert table['all',
                 'top5_overlap'] > 0.8 and table['all',
                                                 'eval_error'] < 0.03 and table['all',
                                                                                'regret'] < 0.02
    for colour in ('white', 'black'): assert table[colour, 'best_move'] > 0.8
    # the defect shows, for Black and not for White
    assert table['black', 'best_move_published'] < 0.3 < 0.7 < table['white', 'best_move_published']
    assert {m.name for m in METRICS if m.task in ('', 'P')} == set(table['all'].index)
