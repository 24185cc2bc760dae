"""What the tools around this project really do, where a good guess is wrong. Each test names the tool and the version that it saw, and is skipped with any other.
The page nbs/tutorials/tools.ipynb has a row for each. When a new version makes one fail, the row may say so."""
import functools
import importlib.metadata
import io
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path
import chess
import chess.engine
import chess.pgn
import pytest
import torch
from chess.engine import Cp, Limit, Mate, MateGiven, SimpleEngine
from rookworld_nb.apps import bridges
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.engine import EngineLost, EnginePool, _offered
from rookworld_nb.chess.own_positions import Flaw, check_possible, pgn_rows, read_fen
from rookworld_nb.lm.loader import load_model, save_model
from rookworld_nb.lm.tokenizer import load_tokenizer

PROGRAMS = {
    'Stockfish': ['stockfish'], 'Fairy-Stockfish': ['fairy-stockfish'], 'Glaurung': ['glaurung'],
    'Toga II': ['toga2'], 'Ethereal': ['ethereal-chess'], 'GNU Chess': ['gnuchess', '-u'],
    'Fairy-Max': ['fairymax'], 'sunfish': ['sunfish-uci'], 'pgn-extract': ['pgn-extract']
}
# d8h4 mates
FOOL = chess.Board('rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/PPPPP2P/RNBQKBNR b KQkq - 0 2')


# ---- the version that is installed

def program(tool):
    "The command that starts a program of the distribution; None where it is not installed."
    name, *more = PROGRAMS[tool]
    return (exe := shutil.which(name) or shutil.which(f'/usr/games/{name}')) and [exe, *more]


def begun(tool): return SimpleEngine.popen_uci(program(tool), timeout=20)


@functools.cache
def installed(tool):
    "The version that a tool says it has, or ''."
    if tool not in PROGRAMS:
        try: return importlib.metadata.version(tool)
        except importlib.metadata.PackageNotFoundError: return ''
    if not program(tool): return ''
    if tool == 'Fairy-Max': return 'any'      # it does not say
    if tool == 'pgn-extract':
        return subprocess.run([*program(tool), '--version'], capture_output=True, text=True).stderr
    with begun(tool) as engine: return engine.id['name']


def of(tool, version):
    "A test of one version of one tool."
    def mark(test):
        @functools.wraps(test)
        def only_there(*args, **more):
            if version not in (found := installed(tool)):
                pytest.skip(f'{tool} {version} is not installed{found and f", but {found}"}')
            return test(*args, **more)
        return only_there
    return mark


# ---- TRL and transformers

@pytest.fixture
def trained(tmp_path, monkeypatch):
    "One step of `GRPOTrainer` in two groups of two: the trainer, and what its loss was given."
    pytest.importorskip('trl', reason='needs the bench extra')
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer
    monkeypatch.chdir(tmp_path)
    save_model(*load_model('nano'), 'nano')
    def train(rewards, dropout=0., **how):
        model = AutoModelForCausalLM.from_pretrained('nano', resid_pdrop=dropout)
        config = GRPOConfig(output_dir='trl', max_completion_length=4, use_cpu=True, bf16=False,
                            report_to='none', max_steps=1, logging_steps=1,
                            per_device_train_batch_size=4, num_generations=2, save_strategy='no',
                            disable_tqdm=True, **how)
        trainer = GRPOTrainer(
            model=model, processing_class=bridges.transformers_tokenizer(load_tokenizer('chess')),
            reward_funcs=lambda completions, **columns: rewards, args=config,
            train_dataset=bridges.prompt_dataset(
                load_rows('positions', env_ratio=0., split='train', limit=8)))
        given, sampling = {}, []
        loss, generate = trainer._compute_loss, model.generate
        monkeypatch.setattr(trainer, '_compute_loss',
                            lambda model, inputs: given.update(inputs) or loss(model, inputs))
        monkeypatch.setattr(
            model, 'generate',
            lambda *args, **more: sampling.append(model.training) or generate(*args, **more))
        with warnings.catch_warnings(action='ignore'): trainer.train()
        return trainer, given['advantages'].tolist(), trainer.state.log_history[0], sampling
    return train


@of('trl', '1.16.0')
def test_trl_an_answer_without_a_reward_takes_its_neighbours_signal(trained):
    "Neither 0 nor left out: the other answer of a group of two has nothing to be compared with."
    _, advantages, *_ = trained([None, 1., 0., 1.])
    assert sorted(advantages) == [
        pytest.approx(-0.707, abs=1e-3), 0, 0,
        pytest.approx(0.707, abs=1e-3)
    ]


@of('trl', '1.16.0')
def test_trl_logs_the_spread_of_the_batch_and_learns_from_that_of_groups(trained):
    _, advantages, log, _ = trained([0., 0., 1., 1.])
    assert advantages == [0]*4 and log['reward_std'] == pytest.approx(
        0.57735, abs=1e-4) and log['frac_reward_zero_std'] == 1


@of('trl', '1.16.0')
def test_trl_samples_with_dropout(trained):
    "The model stays in training mode while it writes. What we export has no dropout."
    *_, sampling = trained([0., 1., 0., 1.], dropout=0.5)
    assert sampling and all(sampling)
    trainer, *_ = trained([0., 1., 0., 1.])
    assert [
        trainer.model.config.to_dict()[name] for name in ('resid_pdrop', 'embd_pdrop', 'attn_pdrop')
    ] == [0, 0, 0]


@of('trl', '1.16.0')
def test_trl_loads_its_reference_without_the_hooks_of_the_model(trained):
    "So the hook that gives positions has to be put on twice where beta is above 0."
    trainer, *_ = trained([0., 1., 0., 1.], beta=0.1)
    bridges.right_positions(trainer.model)
    assert trainer.ref_model is not None and not trainer.ref_model._forward_pre_hooks and trainer.model._forward_pre_hooks


@of('trl', '1.16.0')
def test_trl_defaults_that_a_comparison_writes_out(tmp_path):
    """GRPO in name: the loss is DAPO's, completions have 512 tokens, a CPU rounds to bfloat16,
    activations are computed twice, and there is no KL."""
    trl = pytest.importorskip('trl', reason='needs the bench extra')
    c = trl.GRPOConfig(output_dir=str(tmp_path), use_cpu=True)
    assert (c.loss_type, c.scale_rewards, c.disable_dropout, c.max_completion_length, c.beta,
            c.bf16, c.gradient_checkpointing) == ('dapo', 'group', False, 512, 0.0, True, True)


@pytest.fixture(scope='module')
def gpt2():
    transformers = pytest.importorskip('transformers', reason='needs the bench extra')
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                                bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        for p in model.parameters(): p += 0.2*torch.randn_like(p)
    return model


@of('transformers', '5.24.0')
@torch.no_grad()
def test_gpt2_counts_from_the_left_edge_but_not_in_generate(gpt2):
    "The same padded prompt: `generate` takes the positions from the mask, a plain call does not."
    ids = torch.randint(1, 50, (1, 6))
    padded, mask = torch.cat([torch.zeros(1, 4, dtype=torch.long), ids],
                             1), torch.tensor([[0]*4 + [1]*6])
    alone = gpt2(ids).logits[0, -1]
    assert (gpt2(padded, attention_mask=mask).logits[0, -1] - alone).abs().max() > 0.1
    assert torch.allclose(
        gpt2(padded, attention_mask=mask,
             position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits[0, -1], alone, atol=1e-4)
    written = gpt2.generate(padded, attention_mask=mask, max_new_tokens=1, do_sample=False,
                            output_logits=True, return_dict_in_generate=True, pad_token_id=0)
    assert torch.allclose(written.logits[0][0], alone, atol=1e-4)


@of('transformers', '5.24.0')
def test_gpt2_beyond_its_positions_is_an_index_error(gpt2):
    "In no word does it say which length is too long."
    with pytest.raises(IndexError) as found: gpt2(torch.ones(1, 17, dtype=torch.long))
    assert '16' not in str(found.value)


# ---- files

@of('safetensors', '0.8.0')
def test_safetensors_are_for_their_owner_alone(tmp_path):
    "Whatever the umask says; `open` obeys it."
    from safetensors.torch import save_file
    save_file({'x': torch.ones(1)}, tmp_path/'x.safetensors')
    (tmp_path/'x.txt').write_text('x')
    assert [
        stat.S_IMODE((tmp_path/name).stat().st_mode) & 0o077 for name in ('x.safetensors', 'x.txt')
    ] == [0, stat.S_IMODE((tmp_path/'x.txt').stat().st_mode) & 0o077]
    assert stat.S_IMODE((tmp_path/'x.txt').stat().st_mode) & 0o077


@of('tiktoken', '0.14.0')
def test_tiktoken_asks_the_network_for_its_vocabularies(monkeypatch):
    "The package brings none; ours does without."
    import tiktoken.load
    asked, read = [], tiktoken.load.read_file
    def refuse(where):
        if not where.startswith('https://'): return read(where)
        asked.append(where)
        raise ConnectionError('no network')
    monkeypatch.setattr('tiktoken.load.read_file', refuse)
    monkeypatch.setenv('TIKTOKEN_CACHE_DIR', '')
    monkeypatch.setattr('tiktoken.registry.ENCODINGS', {})
    with pytest.raises(ConnectionError): tiktoken.get_encoding('gpt2')
    assert asked
    assert load_tokenizer('gpt2').encode('Hello world') == [15496, 995]


# ---- Gymnasium

@of('gymnasium', '1.4.0')
def test_gymnasiums_checker_refuses_a_first_step_that_truncates():
    "So an illegal move, which A calls truncated, ends a game of ours as terminated."
    import gymnasium
    from gymnasium.utils.env_checker import check_env
    class Short(gymnasium.Env):
        action_space = observation_space = gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return 0, {}
        def step(self, action): return 0, 0., False, True, {}

    with pytest.raises(AssertionError,
                       match='truncates after 1 step'), warnings.catch_warnings(action='ignore'):
        check_env(Short())


# ---- python-chess

@of('chess', '1.11.2')
def test_python_chess_takes_impossible_positions():
    """A board without kings is a board; only `status` tells. A door that counts on an exception
    lets it in."""
    board = chess.Board('8/8/8/8/8/8/PPPP4/4K3 w - - 0 1')
    assert not board.is_valid() and list(board.legal_moves)
    with pytest.raises(ValueError, match='not a possible position'): check_possible(board)


@of('chess', '1.11.2')
def test_python_chess_reads_over_a_word_that_is_no_move():
    "It then takes Black's move for White's, and complains about that one."
    game = chess.pgn.read_game(io.StringIO('1. e4 e5 2. Qxh9 Nf6 3. Nc3'))
    assert [m.uci() for m in game.mainline_moves()] == ['e2e4', 'e7e5'] and len(
        game.errors) == 1 and 'Nf6' in str(game.errors[0]) and 'Qxh9' not in str(game.errors[0])
    *_, flaw = pgn_rows(['1. e4 e5 2. Qxh9 Nf6 3. Nc3'])
    assert str(flaw) == "game 1, move 2: illegal SAN 'Qxh9'"


@of('chess', '1.11.2')
def test_python_chess_takes_a_pass_for_a_move():
    "Without an error; the side to move is another from there on."
    game = chess.pgn.read_game(io.StringIO('1. e4 -- 2. d4 d5 *'))
    assert [m.uci()
            for m in game.mainline_moves()] == ['e2e4', '0000', 'd2d4', 'd7d5'] and not game.errors
    assert [str(r) for r in pgn_rows(['1. e4 -- 2. d4 d5 *'])
            if isinstance(r, Flaw)] == ["game 1, move 1: a pass is no move: '--'"]


EPD = 'rnbqkbnr/pp1ppppp/8/2p5/4P3/8/PPPP1PPP/RNBQKBNR w KQkq c6'

@of('chess', '1.11.2')
def test_python_chess_refuses_a_position_for_a_name_without_quotes():
    "`bm` and the like are moves, and so is every operand without quotes."
    with pytest.raises(ValueError):
        chess.Board.from_epd(f'{EPD} c0 Kasparov, Garry-Karpov, Anatoly; c1 *;')
    assert read_fen(f'{EPD} c0 Kasparov, Garry-Karpov, Anatoly; c1 *;') == chess.Board(
        f'{EPD} 0 1').fen()


@of('chess', '1.11.2')
def test_python_chess_has_one_number_for_both_sides_of_a_mate():
    "Mated and mating on the board: `mate()` is 0 for both, and their order tells them apart."
    assert Mate(-0).mate() == MateGiven.mate() == 0 and Mate(-0) < Cp(0) < MateGiven


@of('chess', '1.11.2')
@pytest.mark.parametrize('said, expected', [('0000', chess.Move.null()), ('(none)', None)])
def test_python_chess_plays_a_pass_for_0000(said, expected, tmp_path):
    "Both words are used for `no move`; one of them arrives as a move that can be pushed."
    (engine := tmp_path/'engine').write_text(
        f"#!{sys.executable}\nimport sys\nfor line in sys.stdin:\n"
        f"    found = dict(uci='uciok', isready='readyok', go='bestmove "
        f"{said}').get(line.split()[0])\n    if found: print(found, flush=True)\n    if line == 'quit\\n': break\n"
    )
    engine.chmod(0o755)
    with SimpleEngine.popen_uci(str(engine), timeout=20) as running:
        assert running.play(FOOL, Limit(nodes=1)).move == expected


# ---- pgn-extract

def extracted(pgn, *how, tmp_path):
    (tmp_path/'in.pgn').write_text(pgn)
    return subprocess.run([*program('pgn-extract'), '-s', *how, tmp_path/'in.pgn'],
                          capture_output=True, text=True)


@of('pgn-extract', '19-04')
def test_pgn_extract_writes_names_without_quotes_and_en_passant_after_every_double_step(tmp_path):
    done = extracted(
        '[Event "x"]\n[White "Kasparov, Garry"]\n[Black "Karpov"]\n[Result "*"]\n\n1. e4 c5 *\n',
        '-Wepd', tmp_path=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line]
    assert [line.split()[3]
            for line in lines] == ['-', 'e3', 'c6'] and all('c0 Kasparov, Garry-Karpov ' in line
                                                            for line in lines)
    for line in lines:
        with pytest.raises(ValueError): chess.Board.from_epd(line)
    assert [read_fen(line).split()[3] for line in lines] == ['-']*3


@of('pgn-extract', '19-04')
def test_pgn_extract_drops_a_game_with_a_pass_and_ends_well(tmp_path):
    games = '[Event "a"]\n[Result "*"]\n\n1. e4 -- 2. d4 d5 *\n\n[Event "b"]\n[Result "*"]\n\n1. e4 *\n'
    done = extracted(games, tmp_path=tmp_path)
    assert done.returncode == 0 and '[Event "b"]' in done.stdout and '[Event "a"]' not in done.stdout
    rows = list(pgn_rows(io.StringIO(games)))
    assert sum(isinstance(r, dict) for r in rows) == 4 and "a pass is no move" in str(
        next(r for r in rows if isinstance(r, Flaw)))


# ---- engines

def searched(tool, board, limit, options=(), **how):
    "Every line that a search of a new game prints."
    with begun(tool) as engine:
        engine.configure(
            {name: value
             for name, value in dict(options).items() if name in engine.options})
        with engine.analysis(board, limit, game=object(), **how) as search:
            found = []
            for info in search:
                found.append(dict(info))
                if info.get('nodes', 0) > 500_000: search.stop()
        return found


NO_BOOK = dict(OwnBook=False, Threads=1)


def most_nodes(tool):
    return max(
        info.get('nodes', 0) for info in searched(tool, chess.Board(), Limit(nodes=1000), NO_BOOK))


def named_first(tool):
    return {
        info['pv'][0].uci()
        for info in searched(tool, chess.Board(), Limit(
            depth=3), NO_BOOK, root_moves=[chess.Move.from_uci('h2h3')]) if info.get('pv')
    }


def mate_in_two_too_late(tool):
    return [
        info['score'].relative
        for info in searched(tool, chess.Board('6k1/8/5K2/8/8/8/8/Q7 w - - 99 100'), Limit(
            depth=8), NO_BOOK) if 'score' in info
    ][-1]


@of('Toga II', '3.0')
def test_toga_keeps_no_limit_of_nodes(): assert most_nodes('Toga II') > 100_000

@of('Toga II', '3.0')
def test_toga_searches_other_moves_than_it_is_told(): assert named_first('Toga II') != {'h2h3'}

@of('Toga II', '3.0')
def test_toga_has_no_threads():
    "So setting them, as for any other engine, would end in an error."
    with begun('Toga II') as engine:
        assert 'Threads' not in engine.options
        with pytest.raises(chess.engine.EngineError): engine.configure({'Threads': 1})

@of('GNU Chess', '6.2.7')
def test_gnuchess_keeps_no_limit_of_nodes(): assert most_nodes('GNU Chess') > 100_000

@of('GNU Chess', '6.2.7')
def test_gnuchess_searches_other_moves_than_it_is_told():
    assert named_first('GNU Chess') != {'h2h3'}

@of('GNU Chess', '6.2.7')
def test_gnuchess_has_one_line_and_a_book():
    with begun('GNU Chess') as engine:
        assert 'MultiPV' not in engine.options and 'Threads' not in engine.options and engine.options[
            'OwnBook'].default is True

@of('Ethereal', '12.00')
@pytest.mark.parametrize('nodes', [1000, 100_000])
def test_ethereal_takes_any_limit_of_nodes_for_depth_one(nodes):
    "And misses a mate in one."
    found = [info for info in searched('Ethereal', FOOL, Limit(nodes=nodes)) if info.get('pv')]
    assert {info['depth']
            for info in found
            } == {1} and found[-1]['nodes'] < 10 and found[-1]['pv'][0].uci() != 'd8h4'

@of('Ethereal', '12.00')
def test_ethereal_searches_other_moves_than_it_is_told(): assert named_first('Ethereal') != {'h2h3'}

@of('Glaurung', '2.2')
def test_glaurung_mates_after_the_draw(): assert mate_in_two_too_late('Glaurung') == Mate(2)

@of('Glaurung', '2.2')
def test_glaurung_has_a_book_that_is_on():
    with begun('Glaurung') as engine: assert engine.options['OwnBook'].default is True

@of('Fairy-Stockfish', '11.1')
def test_fairy_stockfish_values_the_side_to_move_too_high():
    "A contempt of .24 pawns is on; the pool turns it off, and says how far its values are."
    def value(**options):
        return [
            info['score'].relative.score()
            for info in searched('Fairy-Stockfish', chess.Board(), Limit(depth=10), options
                                 | {'Threads': 1}) if 'score' in info
        ][-1]
    assert value() - value(Contempt=0) > 20
    with pytest.warns(UserWarning, match='of win probability away from Stockfish 15.1'):
        EnginePool(1000, path=program('Fairy-Stockfish')[0]).close()

@of('Ethereal', '12.00')
def test_ethereal_values_the_side_to_move_too_high():
    "A penalty for draws is on, under a name of its own; the pool turns it off."
    with begun('Ethereal') as engine:
        assert engine.options['ContemptDrawPenalty'].default == 12
        found = _offered(engine.options)
    assert (found['ContemptDrawPenalty'], found['ContemptComplexity']) == (0, 0)

@of('Stockfish', '15.1')
def test_stockfish_counts_half_moves(): assert mate_in_two_too_late('Stockfish') == Cp(0)

@of('Stockfish', '15.1')
def test_stockfish_gives_a_bound_as_its_fifth_line():
    "The last line at the limit of nodes is not a value; the pool's label has none such."
    board = chess.Board('r1bqkb1r/4p1pp/n1pp3n/pp3p2/P7/N2P1PP1/RPPQP2P/2B1KBNR b Kkq - 1 8')
    with begun('Stockfish') as engine:
        fifth = engine.analyse(board, Limit(nodes=1000), multipv=5, game=object())[4]
    assert fifth['pv'][0].uci() == 'e7e5' and fifth['upperbound'] and fifth['score'].relative == Cp(
        10)
    with EnginePool(1000) as pool:
        assert dict(zip((found := pool.analyse([board.fen()])[0]).moves,
                        found.evals)).get('e7e5') != 0.1

@of('Stockfish', '15.1')
def test_stockfish_finishes_no_depth_with_few_nodes():
    "Five lines were asked for; at 30 nodes there are three, at 200 one is of another depth."
    with begun('Stockfish') as engine:
        few, more = (engine.analyse(chess.Board(), Limit(nodes=n), multipv=5, game=object())
                     for n in (30, 200))
    assert len(few) < 5 and len({info['depth'] for info in more}) == 2

@of('Stockfish', '15.1')
def test_stockfish_sees_a_stalemate_on_the_board_at_depth_five():
    "Before that, the stalemate is worth the queen and the rook."
    board, move = chess.Board('4k3/8/5Q2/8/7R/8/8/2K5 w - - 0 1'), chess.Move.from_uci('h4d4')
    with begun('Stockfish') as engine:
        found = [
            engine.analyse(board, Limit(depth=d), root_moves=[move],
                           game=object())['score'].relative for d in (1, 4, 5)
        ]
    assert found[0] == found[1] and found[0] > Cp(1000) and found[2] == Cp(0)

@of('Fairy-Max', 'any')
def test_fairymax_does_not_speak_uci():
    """It plays in XBoard's language; a match may call it by name, labels cannot come from it. MaxQi
    and ShaMax, of other games, come with it."""
    for name in 'fairymax maxqi shamax'.split():
        with pytest.raises(EngineLost,
                           match='no answer to `uci` in 1 s: is it started as a UCI engine'):
            EnginePool(path=str(Path(program('Fairy-Max')[0]).parent/name), timeout=1)

@of('sunfish', '2026')
def test_sunfish_has_no_exact_value():
    scored = [
        info for info in searched('sunfish', chess.Board(), Limit(depth=2)) if 'score' in info
    ]
    assert scored and all('lowerbound' in info or 'upperbound' in info for info in scored)
    with pytest.raises(EngineLost, match='gives no exact values for 1 of its moves'):
        EnginePool(path=program('sunfish')[0], timeout=20)
