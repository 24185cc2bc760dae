"""Engines that are not Stockfish, or that do not do what they are asked: every one labels, or one
true sentence says why not. ENGINE_POSITIONS says how many random positions Stockfish labels
(default 40)."""
import json
import os
import shutil
import sys
import time
import warnings
from itertools import islice
from unittest.mock import patch
import chess
import pandas as pd
import pytest
from rookworld_nb.chess import engine
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.engine import EngineLost, EnginePool, find_engine, label_fault, probe_engine, win_probability
from rookworld_nb.chess.positions import generate_positions
from runs import call

POSITIONS = int(os.environ.get('ENGINE_POSITIONS', 40))
needs_stockfish = pytest.mark.skipif(find_engine() is None, reason='no Stockfish')
FOOL = 'rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2'
QUIET = [
    'r1bqk2r/pppp1ppp/2n2n2/2b1p3/2B1P3/2NP1N2/PPP2PPP/R1BQK2R b KQkq - 0 5',
    '8/5pk1/6p1/7p/7P/6P1/5PK1/8 w - - 0 40',
    'r1bq1rk1/pp3ppp/2n1pn2/2bp4/8/2PBPN2/PP1N1PPP/R1BQ1RK1 w - - 2 9',
    '6k1/5ppp/8/3R4/8/1r4P1/5P1P/6K1 w - - 0 30'
]


# an engine of a few lines, with one defect

FAKE = '''#!{python}
import sys, time, chess
board, several, defects = chess.Board(), 1, {defects!r}
def worth(move):
    board.push(move)
    found = 99999 if board.is_checkmate() else sum((p.color != board.turn or -1)*(0, 100, 300, 300, 500, 900, 0)[p.piece_type] for p in board.piece_map().values())
    board.pop()
    return found
for line in sys.stdin:
    word, _, rest = line.strip().partition(' ')
    if word == 'uci':
        if 'no name' not in defects: print('id name Fake 1')
        if 'small hash' in defects: print('option name Hash type spin default 1 min 1 max 4')
        if 'one line' not in defects: print('option name MultiPV type spin default 1 min 1 max 500')
        print('uciok')
    if word == 'isready': print('readyok')
    if word == 'quit': break
    if word == 'setoption':
        if 'Threads' in rest or 'Hash' in rest and 'value 4' not in rest: sys.exit('this option is not mine')
        if 'MultiPV' in rest: several = int(rest.split()[-1])
    if word == 'position': board = chess.Board(rest.removeprefix('fen ').partition(' moves')[0]) if rest.startswith('fen') else chess.Board()
    if word == 'position':
        for uci in rest.partition('moves ')[2].split(): board.push_uci(uci)
    if word == 'go':
        words = rest.split()
        nodes = int(words[words.index('nodes') + 1]) if 'nodes' in words else 0
        if nodes and nodes < 500 and 'short' in defects: nodes = 0; lines = []
        else:
            only = set(words[words.index('searchmoves') + 1:]) if 'searchmoves' in words and 'no searchmoves' not in defects else None
            found = sorted((m for m in board.legal_moves if not only or m.uci() in only), key=worth, reverse='no mates' not in defects)
            if 'blind' in defects and 'd2d4' in [m.uci() for m in found]: time.sleep(1000)
            lines = found[:several]
        for n, m in enumerate(lines, 1):
            bound = ' lowerbound' if 'bounds' in defects or 'fifth bound' in defects and n == 5 and 'depth' not in words else ''
            value = worth(m)
            score = 'mate 1' if value == 99999 and 'no mates' not in defects else f'cp {{max(-9000, min(9000, value))}}'
            print(f'info depth 1 multipv {{n}} score {{score}}{{bound}} nodes {{2 if "few nodes" in defects else nodes}} pv {{m.uci()}}')
        print('bestmove', next(iter(board.legal_moves)).uci())
    sys.stdout.flush()
'''

@pytest.fixture
def fake(tmp_path):
    def make(*defects):
        (program := tmp_path/'fake').write_text(FAKE.format(python=sys.executable, defects=defects))
        program.chmod(0o755)
        return str(program)
    return make


TOLD = {
    (): '', ('no name', ): '', ('small hash', ): '',
    ('no searchmoves', ): 'does not search single moves: the move is played and the reply is searched',
    ('one line', ): 'gives no more than one line: every legal move is searched by itself, which takes much longer',
    ('few nodes', ): 'keeps no limit of nodes: depth 4 is asked for instead of 1,000 nodes',
    ('no mates', ): 'does not see a mate in one: do not expect good labels',
    ('one line', 'no searchmoves'): 'does not search single moves: the move is played and the '
    'reply is searched; it gives no more than one line: every '
    'legal move is searched by itself, which takes much longer'
}

@pytest.mark.parametrize('defects', TOLD, ids=lambda d: ' and '.join(d) or 'none')
def test_what_an_engine_cannot_do_is_told_and_it_labels(defects, fake, monkeypatch):
    monkeypatch.setattr('rookworld_nb.chess.engine._FAR', 1)    # its values are simple: see below
    with warnings.catch_warnings(record=True) as told, EnginePool(path=fake(*defects)) as pool:
        found, mate = pool.analyse([chess.STARTING_FEN, FOOL])
        values = pool.values([(FOOL, 'd8h4'), ('4k3/8/8/3q4/8/8/8/3RK3 w - - 0 1', 'd1d5'),
                              ('4k3/8/8/3q4/8/8/8/3RK3 w - - 0 1', 'd1d4')])
    name = 'fake' if 'no name' in defects else 'Fake 1'
    assert [str(w.message) for w in told] == [f'{name} {TOLD[defects]}']*bool(TOLD[defects])
    assert pool.skills.name == name and len(found.moves) == len(set(found.moves)) == 5
    assert (mate.moves[0], mate.evals[0]) == ('d8h4', 999.99)           # the rules know
    assert values[0] == 999.99 and (values[1] > values[2] or 'no mates' in defects)


def test_values_that_are_not_stockfishs_are_told(fake):
    with pytest.warns(
            UserWarning, match=
            r'^Fake 1 values twelve quiet positions 0\.\d\d of win probability away from Stockfish 15.1'
    ):
        EnginePool(path=fake()).close()


def test_a_bound_is_no_label(fake):
    "Where the fifth line has a bound at every node limit, depth 1 is asked for."
    with EnginePool(path=fake('fifth bound')) as pool:
        assert len(pool.analyse([chess.STARTING_FEN])[0].moves) == 5
    with pytest.raises(EngineLost,
                       match='Fake 1 cannot label .*: it gives no exact values for 5 of its moves'):
        EnginePool(path=fake('bounds'))


def test_too_few_nodes_end_in_a_whole_depth(fake):
    with EnginePool(200, path=fake('short')) as pool:
        assert len(pool.analyse([chess.STARTING_FEN])[0].moves) == 5


def test_no_answer_is_told_from_death_and_from_a_program_that_is_no_engine(fake, tmp_path):
    with pytest.raises(EngineLost, match='was lost twice: no answer in 1 s$'):
        EnginePool(path=fake('blind'), timeout=1)
    (silent := tmp_path/'silent').write_text('#!/bin/sh\nexec sleep 100\n')
    silent.chmod(0o755)
    with pytest.raises(
            EngineLost,
            match='was lost twice: no answer to `uci` in 0.5 s: is it started as a UCI engine'):
        EnginePool(path=str(silent), timeout=0.5)
    code, out, err = call('data', '--positions', 5, '--timeout', 0.5, '--stockfish_path', silent,
                          cwd=tmp_path)
    assert code == 1 and 'in 0.5 s' in err and not list(tmp_path.glob('*.parts')), err


@pytest.mark.parametrize('script, why', [
    ('exec sleep 100', 'no answer to `uci` in 0.5 s: is it started as a UCI engine?'),
    ('exit 3', 'its process ended'),
    ('while read line; do echo "Error (unknown command): $line"; done',
     'no answer to `uci` in 0.5 s: is it started as a UCI engine?')
])
def test_a_program_that_speaks_no_uci_is_one_sentence(script, why, tmp_path):
    "Such as MaxQi and Fairy-Max, which speak XBoard's language, and GNU Chess without its option."
    (program := tmp_path/'program').write_text(f'#!/bin/sh\n{script}\n')
    program.chmod(0o755)
    code, out, err = call('eval', '--model', 'nano', '--games', 2, '--opponent', program,
                          cwd=tmp_path,
                          before='import rookworld_nb.apps.match as m; m._SECONDS = 0.5')
    assert (code, out, err) == (2, '', f'rookworld_eval: {program} does not work as a chess engine: {why}\n')
    code, out, err = call('data', '--positions', 5, '--timeout', 0.5, '--stockfish_path', program,
                          cwd=tmp_path)
    assert (code, out, err) == (
        1, '',
        f'rookworld_data: failed with EngineLost: the engine {program} was lost twice: {why}\n')


def test_an_opponent_that_keeps_no_limit_of_nodes_gets_a_depth(fake, tmp_path):
    code, out, err = call('eval', '--model', 'nano', '--games', 2, '--opponent', fake('few nodes'),
                          '--max_plies', 8, '--nodes', 1000, cwd=tmp_path)
    assert code == 0 and 'keeps no limit of nodes: depth 4 is asked for instead of 1,000 nodes' in err, err


@pytest.mark.parametrize('command, engine', [('data --positions 2 --workers 1', '--stockfish_path'),
                                             ('eval --games 2 --max_plies 2', '--opponent')])
def test_a_command_warns_in_a_sentence(command, engine, fake, tmp_path):
    "Without the line of the code that warns."
    code, out, err = call(*command.split(), engine, fake('few nodes'), '--nodes', 1000, cwd=tmp_path)
    assert code == 0 and len(err.splitlines()) == 1 and 'Warning' not in err, err
    assert ' keeps no limit of nodes: depth 4 is asked for instead of 1,000 nodes' in err


# Stockfish

@needs_stockfish
def test_stockfish_needs_no_sentence():
    assert probe_engine(find_engine()).told(1000) == ''
    for nodes in (1, 30, 200, 100_000): assert probe_engine(find_engine(), nodes).told(nodes) == ''


@needs_stockfish
def test_no_label_contradicts_a_rule_and_few_nodes_suffice():
    "Positions in which moves end the game, and positions for which the nodes do not suffice."
    ending = [
        '4k3/8/5Q2/8/7R/8/8/2K5 w - - 0 1', '8/8/7p/4k3/5r2/K7/1p6/8 b - - 0 96',
        '8/8/8/8/1p1k4/3N4/3K4/8 w - - 0 64', '8/8/8/8/4b2k/1n6/1K6/8 w - - 0 51',
        'k7/8/8/8/8/8/1Q5Q/4K3 w - - 0 1', '4k3/8/8/8/8/8/8/R3K3 w - - 99 90',
        '8/8/4k3/8/8/4K3/8/8 w - - 0 1', FOOL,
        'q2k2q1/2nqn2b/1n1P1n1b/2rnr2Q/1NQ1QN1Q/3Q3B/2RQR2B/Q2K2Q1 w - - 0 1'
    ]
    fens = ending + [p.fen for p in generate_positions(POSITIONS, seed=5)]
    for nodes in (30, 200, 1000):
        with EnginePool(nodes) as pool: found = pool.analyse(fens)
        for a in found:
            board = chess.Board(a.fen)
            assert len(a.moves) == len(set(a.moves)) == min(5, board.legal_moves.count()) and list(
                a.evals) == sorted(a.evals, reverse=True)
            for uci, pawns in zip(a.moves, a.evals):
                (after := board.copy()).push_uci(uci)
                if outcome := after.outcome():
                    assert pawns == (0.0 if outcome.winner is None else 999.99), (nodes, a, uci)
    assert found[0].evals[0] > 9 and not set(found[0].moves) & {'h4d4', 'h4h7'
                                                                } and found[7].moves[0] == 'd8h4'


# the engines of the distribution

INSTALLED = {
    name: exe
    for name in ('fairy-stockfish', 'glaurung', 'toga2', 'ethereal-chess', 'gnuchess')
    if (exe := shutil.which(name) or shutil.which(f'/usr/games/{name}'))
}

@needs_stockfish
@pytest.mark.parametrize('name', INSTALLED)
def test_other_engines_label_label_files_and_play(name, tmp_path):
    (program :=
     tmp_path/name).write_text(f'#!/bin/sh\nexec {INSTALLED[name]}{" -u"*(name == "gnuchess")}\n')
    program.chmod(0o755)
    with EnginePool(100_000) as pool: truth = pool.analyse(QUIET)
    with warnings.catch_warnings(record=True) as told, EnginePool(path=str(program),
                                                                  timeout=60) as pool:
        found, values = pool.analyse(QUIET), pool.values([(chess.STARTING_FEN, m)
                                                          for m in ('a2a3', 'd2d4', 'f2f3')])
    limits, far_off = name in ('toga2', 'ethereal-chess', 'gnuchess'), name == 'fairy-stockfish'
    assert (bool(told), far_off) == (limits or far_off, pool.skills.off > 0.1), told
    far = [
        abs(win_probability(a.evals[0]) - win_probability(b.evals[0]))
        for a, b in zip(found, truth)
    ]
    # Fairy-Stockfish is the furthest, see the table of the engine page
    assert sum(far)/len(far) < 0.15, far
    assert values[1] > values[2] and len(set(values)) == 3
    code, out, err = call('data', '--positions', 12, '--workers', 1, '--timeout', 60,
                          '--stockfish_path', program, '--output', 'rows.parquet', cwd=tmp_path)
    assert code == 0 and len(pd.read_parquet(tmp_path/'rows.parquet')) == 12, err
    assert ('keeps no limit of nodes' in err, 'away from Stockfish 15.1'
            in err) == (limits, far_off), err
    code, out, err = call('eval', '--model', 'nano', '--games', 2, '--opponent', program,
                          '--max_plies', 8, '--nodes', 1000, '--output', 'out', cwd=tmp_path)
    assert code == 0 and ('keeps no limit of nodes' in err) == limits, err
    assert json.loads((tmp_path/'out/match.json').read_text())['result']['games'] == 2


def test_no_shipped_label_contradicts_a_rule():
    "All rows with few men, where moves end games, and some of the others."
    rows = load_rows('positions', env_ratio=0)[:]
    few = [r for r in rows if sum(c.isalpha() for c in r.fen.split()[0]) < 6]
    assert len(few) > 1000
    assert [(r.fen, fault) for r in few + rows[:500]
            if (fault := label_fault(r.fen, r.target.moves, r.target.evals))] == []


WRAPPED = '''#!/bin/sh
echo $$ >> {folder}/pids
{python} {engine} {folder}
'''
DEAF = '''
import os, sys, time
with open(sys.argv[1] + '/pids', 'a') as f: print(os.getpid(), file=f)
exec(open(sys.argv[1] + '/fake').read())
while True: time.sleep(0.1)     # goes on when nobody listens any more
'''

def alive(pid):
    try: return 'Z' not in open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0]
    except FileNotFoundError: return False


@pytest.mark.parametrize('how', ['label', 'match'])
def test_what_a_wrapper_started_ends_too(how, tmp_path):
    """GNU Chess 6.2.7 of Debian 12: `gnuchessu` is a script, and the program behind it turned round
    at full speed after the script was killed (python-chess 1.11.2 kills the process it started)."""
    (tmp_path/'fake').write_text(FAKE.format(python=sys.executable, defects=[]))
    (tmp_path/'deaf.py').write_text(DEAF)
    engine = tmp_path/'engine'
    engine.write_text(
        WRAPPED.format(folder=tmp_path, python=sys.executable, engine=tmp_path/'deaf.py'))
    engine.chmod(0o755)
    if how == 'label':
        with EnginePool(path=str(engine), nodes=1000) as pool: pool.analyse(QUIET[:2])
    else:
        assert call('eval', '--model', 'nano', '--games', 2, '--max_plies', 4, '--opponent', engine,
                    cwd=tmp_path)[0] == 0
    pids = (tmp_path/'pids').read_text().split()
    for _ in range(50):
        if not any(map(alive, pids)): break
        time.sleep(0.1)
    assert len(pids) >= 2 and not any(map(alive, pids))


def test_a_list_is_asked_once():
    "As an iterator is: the next block begins where the last one ended."
    with patch.object(engine, 'EnginePool') as pool:
        pool.return_value.__enter__.return_value.analyse = list
        assert [*islice(engine.analyse_positions(['a', 'b', 'c']), 9)] == ['a', 'b', 'c']
