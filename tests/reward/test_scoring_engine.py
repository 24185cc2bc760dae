"""Rewards from Stockfish: what they pay, what they depend on, and what happens when it dies, hangs
or is missing. ENGINE_POSITIONS says how many positions (default 12)."""
import os
import random
import signal
import statistics
import threading
import time
import warnings
import chess
import pytest
from rookworld_nb.config import TrainConfig
from rookworld_nb.chess.dataset import env_example, load_rows
from rookworld_nb.chess.engine import EngineLost, EnginePool, find_engine
from rookworld_nb.chess.quick_rules import legal_moves
from rookworld_nb.reward.scoring import Scorer, make_scorer
from rookworld_nb.chess.tasks import PolicyAnswer

POSITIONS = max(9, int(os.environ.get('ENGINE_POSITIONS', 12)))
needs_stockfish = pytest.mark.skipif(find_engine() is None, reason='no Stockfish')


@pytest.fixture(scope='module')
def examples():
    "Shipped P rows."
    return list(load_rows('positions', env_ratio=0, limit=POSITIONS))


@pytest.fixture
def stockfish(tmp_path):
    """A script that writes down its process number and becomes Stockfish: `path` runs it, `hit`
    sends the running ones a signal."""
    script, started = tmp_path/'stockfish', tmp_path/'started'
    script.write_text(f'#!/bin/sh\necho $$ >> {started}\nexec {find_engine()}\n')
    script.chmod(0o755)
    started.touch()

    def hit(signum):
        alive = [int(pid) for pid in started.read_text().split() if is_running(int(pid))]
        for pid in alive: os.kill(pid, signum)
        return len(alive)
    return str(script), hit


def is_running(pid):
    try: os.kill(pid, 0)
    except ProcessLookupError: return False
    return True


def first_legal(example):
    """The trick: the first five legal moves in the order of the board, zero evals, the first as
    best."""
    legal = [m.uci() for m in chess.Board(example.fen).legal_moves][:5]
    return PolicyAnswer(tuple(legal), (0.0,)*len(legal), legal[0]).text()


def some_batch(examples):
    """Three answers a prompt: the row's own, another best move, first legal moves. Two A prompts
    among them."""
    batch, texts = [], []
    for e in examples:
        batch.append(e)
        other = sorted(legal_moves(e.fen) - {e.target.best})[:1] or [e.target.best]
        texts += [
            e.completion(),
            PolicyAnswer(e.target.moves, e.target.evals, other[0]).text(),
            first_legal(e)
        ]
    for uci in ('e2e4', 'e2e5'):
        a = env_example(chess.STARTING_FEN, uci)
        batch.append(a)
        texts += [a.completion(), a.completion().replace(' b ', ' w '), 'nothing']
    return batch, texts


@needs_stockfish
def test_the_engines_own_answer_is_exact_and_a_random_move_is_not(examples):
    with Scorer('engine', pool=EnginePool(workers=0)) as scorer:
        listed = scorer.pool.analyse([e.fen for e in examples])
        rng = random.Random(0)
        texts = []
        for e, own in zip(examples, listed):
            texts += ([
                PolicyAnswer(own.moves, own.evals, b).text()
                for b in (own.moves[0], rng.choice(sorted(legal_moves(e.fen))))
            ] + [first_legal(e)])
        totals = [s.total for s in scorer.score(examples, texts)]
    best, other, trick = totals[::3], totals[1::3], totals[2::3]
    print(
        f'\n{len(examples)} positions: the own best line {statistics.mean(best):.4f} (worst '
        f'{min(best):.4f}); own lists with a random legal B {statistics.mean(other):.4f}; '
        f'first legal moves, zero evals {statistics.mean(trick):.4f} (largest {max(trick):.4f})')
    assert min(best) == 1
    assert statistics.mean(other) <= statistics.mean(best) - 0.15
    assert statistics.mean(trick) <= (0.3 if len(examples) >= 500 else 0.4)


@needs_stockfish
def test_neither_order_nor_workers_matter(examples):
    batch, texts = some_batch(examples[:12])
    results = []
    for workers, seed in ((1, None), (2, None), (2, 1)):
        order = list(range(len(batch)))
        if seed is not None: random.Random(seed).shuffle(order)
        with Scorer('engine', pool=EnginePool(workers=workers)) as scorer:
            found = scorer.score([batch[i] for i in order],
                                 [t for i in order for t in texts[3*i:3*i + 3]])
        by_prompt = {i: found[3*k:3*k+3] for k, i in enumerate(order)}
        results.append([s for i in range(len(batch)) for s in by_prompt[i]])
    assert results[0] == results[1] == results[2]
    assert len({s.total for s in results[0]}) > 4


@needs_stockfish
def test_a_killed_engine_is_restarted_once_and_then_the_rows_give_the_marks(examples, stockfish):
    path, hit = stockfish
    halves = [some_batch(examples[:3]), some_batch(examples[3:6]), some_batch(examples[6:9])]
    with Scorer('engine', pool=EnginePool()) as scorer:
        undisturbed = [scorer.score(*half) for half in halves]
    with Scorer('engine', pool=EnginePool(path=path)) as scorer:
        found = [scorer.score(*halves[0])]
        assert scorer.facts() == dict(engine_restarts=0, engine_lost=False)
        assert hit(signal.SIGKILL) == 1
        found.append(scorer.score(*halves[1]))
        assert scorer.facts() == dict(engine_restarts=1, engine_lost=False)
        assert found == undisturbed[:2]
        assert hit(signal.SIGKILL) == 1
        with pytest.warns(
                UserWarning, match=
                'from now on P is scored with the labels of the rows, or by the rules where there are none: the engine .* was lost twice: its process ended'
        ):
            last = scorer.score(*halves[2])
        assert scorer.facts() == dict(engine_restarts=1, engine_lost=True)
        with warnings.catch_warnings():
            warnings.simplefilter('error')      # said once
            assert scorer.score(*halves[2]) == last == Scorer('auto').score(*halves[2])
        assert last != undisturbed[2]
    assert hit(signal.SIGKILL) == 0


@needs_stockfish
def test_killed_in_the_middle_of_a_search(examples, stockfish):
    "Two workers with long searches; whoever is alive is killed while they search."
    path, hit = stockfish
    fens = [e.fen for e in examples[:6]]
    with EnginePool(nodes=100_000, workers=2) as pool: undisturbed = pool.analyse(fens)
    with EnginePool(nodes=100_000, workers=2, path=path) as pool:
        pool.analyse(fens[:2])
        killer = threading.Timer(0.2, hit, (signal.SIGKILL,))
        killer.start()
        answers = pool.analyse(fens[2:4])
        killer.join()
        assert answers + pool.analyse(fens[4:]) == undisturbed[2:]
        assert 1 <= pool.restarts <= 2


@needs_stockfish
def test_a_worker_that_died_between_two_questions(examples):
    "The engine is lost, however often it is asked, and a scorer goes on without it."
    with EnginePool(workers=1) as pool:
        pool.analyse([examples[0].fen])
        pid, = pool._workers._processes
        os.kill(pid, signal.SIGKILL)
        pool._workers._processes[pid].join()
        for _ in range(2):
            with pytest.raises(EngineLost): pool.analyse([examples[1].fen])
        assert pool.lost
    pool = EnginePool(workers=1)
    pool.analyse([examples[0].fen])
    pid, = pool._workers._processes
    os.kill(pid, signal.SIGKILL)
    pool._workers._processes[pid].join()
    with Scorer('engine', pool=pool) as scorer, pytest.warns(UserWarning,
                                                             match='labels of the rows'):
        assert scorer.score([examples[1]], [examples[1].completion()])[0].total == 1


@needs_stockfish
def test_no_engine_stays_behind(examples, stockfish):
    """Neither after close, nor when the pool is left by an exception, nor with an engine that is
    stopped."""
    path, hit = stockfish
    with EnginePool(path=path, timeout=5) as pool:
        pool.analyse([examples[0].fen])
        hit(signal.SIGSTOP)
    with pytest.raises(KeyboardInterrupt), EnginePool(path=path, workers=2) as pool:
        pool.analyse([e.fen for e in examples])
        raise KeyboardInterrupt
    for _ in range(100):
        if hit(0) == 0: break
        time.sleep(0.1)
    assert hit(0) == 0


@needs_stockfish
def test_two_pools_share_a_cache(examples, tmp_path):
    "Each pool writes what the other then reads; a writer does not keep the file to itself."
    cache, fens = tmp_path/'cache.sqlite', [e.fen for e in examples[:6]]
    with EnginePool(cache=cache) as one, EnginePool(cache=cache) as two:
        first, second = one.analyse(fens[:3]), two.analyse(fens[3:])
        one._workers.shutdown()     # no engine any more: what follows comes from the file
        two._workers.shutdown()
        assert one.analyse(fens) == two.analyse(fens) == first + second


FAKE = '''#!/bin/sh
say() {{ n=0; for m in $1; do n=$((n+1)); echo info depth 1 multipv $n score $2 nodes 1000 pv $m; done; echo bestmove $m; }}
while read -r word rest; do
    case $word in
        uci) echo id name Fake 1; for o in Threads Hash MultiPV; do echo option name $o type spin default 1 min 1 max 500; done; echo uciok ;;
        isready) echo readyok ;;
        quit) exit ;;
        position) position=$rest ;;
        go) case $position in
                startpos) case $rest in *h2h3) say h2h3 'cp 0' ;; *) say 'e2e4 d2d4 g1f3 c2c4 b1c3' 'cp 20' ;; esac ;;
                *P1/5P2*) say 'd8h4 a7a6 b7b6 c7c6 d7d6' 'mate 1' ;;
                *) {go} ;;
            esac ;;
    esac
done
'''   # a shell is there at once, however busy the machine is: only a search meets the time limit; the probe is answered

E4 = 'rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1'

@pytest.fixture
def fake_engine(tmp_path, monkeypatch):
    "A UCI engine that is fine until it must search: of the probe, it knows the mate in one."
    monkeypatch.setattr('rookworld_nb.chess.engine._QUIET', {'rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2': 999.99})
    def make(go):
        script = tmp_path/'fake_engine'
        script.write_text(FAKE.format(go=go))
        script.chmod(0o755)
        return str(script)
    return make


GO = {
    'never answers': (':', 'no answer in 1 s'), 'dies': ('exit 3', 'its process ended'),
    'is stuck': ('exec sleep 1000', 'no answer in 1 s'),
    'answers nonsense': ('echo bestmove a1a1', 'no answer in 1 s')
}

@pytest.mark.parametrize('how', GO)
def test_an_engine_that_cannot_search_is_restarted_once_and_then_lost(how, fake_engine):
    go, said = GO[how]
    with EnginePool(path=fake_engine(go), timeout=1) as pool:
        with pytest.raises(EngineLost, match=f'fake_engine was lost twice: {said}'):
            pool.analyse([E4])
        assert pool.restarts == 1
        with pytest.raises(EngineLost, match='twice'): pool.values([(E4, 'e7e5')])
        assert pool.restarts == 1


def test_a_run_goes_on_with_the_rows_labels_when_the_engine_hangs(fake_engine):
    batch, texts = some_batch(load_rows('positions', env_ratio=0, limit=3))
    with make_scorer(TrainConfig(reward_source='engine', stockfish_path=fake_engine(':'),
                                 threads=1)) as scorer:
        with pytest.warns(UserWarning, match='from now on'): found = scorer.score(batch, texts)
        assert found == Scorer('auto', coherence=TrainConfig.coherence_share).score(batch, texts)
        assert scorer.facts() == dict(engine_restarts=1, engine_lost=True)


def test_a_missing_engine_is_refused_before_any_work():
    for ask in (lambda: EnginePool(path='/nowhere/stockfish'), lambda: make_scorer(
            TrainConfig(reward_source='engine', stockfish_path='/nowhere/stockfish'))):
        with pytest.raises(
                FileNotFoundError,
                match='no Stockfish found at /nowhere/stockfish: install it or set STOCKFISH_PATH'):
            ask()
    for source in ('auto', 'row', 'rules'):
        with make_scorer(
                TrainConfig(data='positions', reward_source=source,
                            stockfish_path='/nowhere/stockfish')) as scorer:
            assert scorer.facts() == {}


def test_a_program_that_is_no_engine_is_told_from_one(tmp_path):
    script = tmp_path/'hello'
    script.write_text('#!/bin/sh\necho hello\n')
    script.chmod(0o755)
    with pytest.raises(
            EngineLost,
            match='hello was lost twice: (its process ended|no answer to `uci` in 0.5 s)'):
        EnginePool(path=str(script), timeout=0.5)
