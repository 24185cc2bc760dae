"""What rookworld_export writes, opened by `transformers`: equal logits, equal answers, the same
weights to the last bit."""
import copy
import importlib.resources
import json
import os
from dataclasses import replace
import pandas as pd
import pytest
import torch
import transformers
from huggingface_hub import metadata_load
from rookworld_nb.config import ExportConfig, TrainConfig
from rookworld_nb.apps import export
from rookworld_nb.apps.export import export_model
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.fast.generate import generate
from rookworld_nb.lm.loader import load_model, save_model
from rookworld_nb.lm.model import GPT, PRESETS
from rookworld_nb.lm.tokenizer import EOT, load_tokenizer
from rookworld_nb.run.train import train
from runs import call, call_alone, some_positions

START = 'rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1'
ENDING = '8/7p/2p5/p2pBpb1/P2P3k/2PK3P/1n4B1/8 w - - 1 49'
PROMPTS = [f'P: {START}', f'P: {ENDING}', f'A: {START}+e2e4+e2e4+', f'A: {ENDING}+d3e2+d3e2+']
EMBEDDED = importlib.resources.files('rookworld_nb')/'assets'/'positions.parquet'


# whose prompts and answers `AutoTokenizer` reads; 5000 for all that the page says
ROWS = int(os.environ.get('EXPORT_ROWS', 500))
FULL = os.environ.get('EXPORT_SHAPE') == '124M'   # GPT-2 small with all its layers


def random_model(tokenizer, preset, n_positions, **shape):
    torch.manual_seed(0)
    model = GPT(
        replace(PRESETS[preset], vocab_size=tokenizer.vocab_size, n_positions=n_positions,
                **shape)).eval()
    with torch.no_grad():
        for p in model.parameters(): p += 0.02*torch.randn_like(p)
    return model


def same_weights(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def assert_same_to_transformers(directory, model, tokenizer, **how):
    "Equal logits and equal greedy completions on the four prompts."
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ours = generate(
        model, tokenizer, PROMPTS, temperature=0,
        max_new_tokens=how.get('max_new_tokens',
                               theirs.generation_config.max_new_tokens)).completions
    # float32 rounds the logits of a sure model by more than 1e-5
    exact, exact_theirs = copy.deepcopy(model).double(), copy.deepcopy(theirs).double()
    for prompt, answer in zip(PROMPTS, ours):
        ids = torch.tensor([tokenizer.encode(prompt)])
        with torch.no_grad():
            torch.testing.assert_close(exact_theirs(ids).logits, exact(ids), atol=1e-9, rtol=1e-9)
        said = theirs.generate(ids, attention_mask=torch.ones_like(ids),
                               **how)[0, ids.shape[1]:].tolist()
        assert tokenizer.decode(said[:-1] if said[-1] == tokenizer.eot else said) == answer


def test_nano(tmp_path):
    "As transformers 5.24.0 opens it, without code of ours."
    out = export_model(ExportConfig(run='nano', output=str(tmp_path/'nano')))
    model, tokenizer = load_model('nano')
    assert same_weights(model, load_model(out)[0])
    assert_same_to_transformers(out, model, tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert (theirs.eos_token_id, theirs.pad_token_id, len(theirs), theirs.padding_side,
            theirs.model_max_length) == (tokenizer.eot, tokenizer.eot, tokenizer.vocab_size, 'left',
                                         192)
    for row in load_rows('positions', env_ratio=0.5, limit=ROWS):
        for text in (row.prompt(), row.completion()):
            ids = tokenizer.encode(text)
            assert theirs(text).input_ids == ids and theirs.decode(ids, skip_special_tokens=True) == text
    assert theirs.decode([*tokenizer.encode(PROMPTS[0]), tokenizer.eot],
                         skip_special_tokens=True) == PROMPTS[0]
    ask = transformers.pipeline('text-generation', model=str(out), dtype=torch.float32)
    answers = [
        found[0]['generated_text'] for found in ask(PROMPTS, return_full_text=False, batch_size=4)
    ]
    assert answers == generate(model, tokenizer, PROMPTS, temperature=0).completions


def test_bfloat16_rounds_once(tmp_path):
    tokenizer = load_tokenizer('chess')
    model = random_model(tokenizer, 'tiny', 192)
    save_model(model, tokenizer, tmp_path/'model')
    once = export_model(ExportConfig(run=str(tmp_path/'model'), output=str(tmp_path/'once'), dtype='bfloat16'))
    twice = export_model(ExportConfig(run=str(once), output=str(tmp_path/'twice'), dtype='bfloat16'))
    for p, q in zip(model.parameters(), load_model(once)[0].parameters(), strict=True):
        assert torch.equal(p.bfloat16().float(), q)
    assert (once/'model.safetensors').read_bytes() == (twice/'model.safetensors').read_bytes()


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    "Two steps of rookworld_train on a file."
    folder = tmp_path_factory.mktemp('run')
    return train(
        TrainConfig(data=some_positions(folder), output_dir=str(folder/'grpo'), max_steps=2,
                    prompts_per_step=2, group_size=2, eval_prompts=6, threads=1, device='cpu'))


def test_run(run, tmp_path):
    code, out, err = call_alone('export', run, 'mine', cwd=tmp_path)
    assert (code, out) == (0, 'Model: mine\n'), err
    model, tokenizer = load_model(run/'checkpoints'/'step-2')
    assert same_weights(model, load_model(tmp_path/'mine')[0])
    assert_same_to_transformers(tmp_path/'mine', model, tokenizer)


def test_card_of_a_run(run, tmp_path):
    card = (export_model(ExportConfig(run=str(run), output=str(tmp_path/'mine'), license='mit'))/
            'README.md')
    text, header = card.read_text(), metadata_load(card)
    assert header['license'] == 'mit' and header['library_name'] == 'transformers'
    assert 'rookworld_train --data positions.parquet --seed 0 --max_steps 2 --prompts_per_step 2 --group_size 2 --eval_prompts 6' in text
    assert 'sha256 `' in text and str(run.parent) not in text
    change = next(r for r in json.loads((run/'comparison.json').read_text())
                  if (r['decoding'], r['task'], r['metric'], r['slice']) == ('greedy', 'P',
                                                                             'reward', 'all'))
    line = next(line for line in text.splitlines() if line.startswith('| greedy | P | reward |'))
    assert f"| {change['difference']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}] |" in line
    results = {
        m['type']: m['value']
        for r in header['model-index'][0]['results'] if r['dataset']['config'] == 'P'
        for m in r['metrics']
    }
    assert results['reward'] == round(change['after'], 4)
    # a part of the prompts is no result
    assert '"check"' in (run/'eval.jsonl').read_text() and '| check |' not in text


def test_checkpoint_before_the_end_has_no_comparison(run, tmp_path):
    longer = tmp_path/'longer'
    longer.mkdir()
    for file in ('eval.jsonl', 'comparison.json', 'checkpoints'): os.symlink(run/file, longer/file)
    (longer/'config.json').write_text(
        replace(TrainConfig.from_json((run/'config.json').read_text()), max_steps=5).to_json())
    text = (export_model(ExportConfig(run=str(longer), output=str(tmp_path/'mine')))/
            'README.md').read_text()
    assert 'GRPO, 2 of 5 steps' in text and 'difference |' not in text


def test_gpt2_tokenizer(tmp_path):
    ours = load_tokenizer('gpt2')
    model = random_model(ours, 'tiny', 320)
    save_model(model, ours, tmp_path/'model')
    out = export_model(ExportConfig(run=str(tmp_path/'model'), output=str(tmp_path/'out')))
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    rows = pd.read_parquet(EMBEDDED.open('rb')).head(20)
    texts = ([f'P: {fen}' for fen in rows.fen] + [f'A: {fen}+e2e4+e2e4+{fen}+0.001+0+0' for fen in rows.fen])
    texts += [
        '', ' ', 'Hello world', 'a  b   c', '\n\n\t x', "it's we'll", 'é ü ß', '♔♕ 棋', '😀',
        'P: ' + ' '*89 + 'M: e2e4' + ' '*26 + 'E: -0.3 B: e2e4'
    ]
    assert len(texts) == 50
    for text in texts:
        assert theirs(text).input_ids == ours.encode(text)
        assert theirs.decode(ours.encode(text)) == text
    assert (theirs.eos_token_id, theirs.pad_token_id, len(theirs),
            theirs(EOT).input_ids) == (ours.eot, ours.eot, ours.vocab_size, [ours.eot])
    assert_same_to_transformers(out, model, ours)


@pytest.mark.slow
def test_gpt2_small_shape(tmp_path):
    ours = load_tokenizer('gpt2')
    model = random_model(ours, 'gpt2', 1024, **{} if FULL else dict(n_layer=2))
    assert sum(p.numel() for p in model.parameters()) == (124_439_808 if FULL else 53_561_088)
    save_model(model, ours, tmp_path/'model')
    out = export_model(ExportConfig(run=str(tmp_path/'model'), output=str(tmp_path/'out')))
    assert (out/'model.safetensors').read_bytes() == (tmp_path/'model'/
                                                      'model.safetensors').read_bytes()
    assert same_weights(model, load_model(out)[0])
    assert_same_to_transformers(out, model, ours, max_new_tokens=8)


@pytest.mark.parametrize('case', [
    'no checkpoint', 'not empty', 'no model', 'a file in the way', 'public alone'
])
def test_refusals_are_one_line(case, tmp_path):
    (tmp_path/'broken').mkdir()
    (tmp_path/'broken'/'config.json').write_text(TrainConfig().to_json())
    (tmp_path/'full').mkdir()
    (tmp_path/'full'/'note').write_text('mine')
    where = {'not empty': 'full', 'a file in the way': 'full/note/out'}.get(case, 'out')
    code, out, err = call(
        'export', *{'no checkpoint': ['broken'], 'no model': ['nowhere']}.get(case, ['nano']),
        where, *(['--public'] if case == 'public alone' else []), cwd=tmp_path)
    assert (code, out) == (2, ''), err
    assert err.startswith('rookworld_export: ') and err.count('\n') == 1, err
    assert [p.name
            for p in (tmp_path/'full').iterdir()] == ['note'] and not (tmp_path/'out').exists()


def test_push_without_network_keeps_the_export(tmp_path):
    code, out, err = call('export', 'nano', 'out', '--push', 'me/mine', cwd=tmp_path)
    assert (code, out) == (2, ''), err
    assert err.startswith('rookworld_export: out is written, but uploading it to me/mine failed: '
                          ) and err.count('\n') == 1, err
    assert (tmp_path/'out'/'README.md').is_file()


@pytest.mark.parametrize('file, text, said', [
    ('eval.jsonl', '{}', r'eval.jsonl: row 1 has no usable slice: {}'),
    ('eval.jsonl', '{"slice": "all", "task": "P", "step": 0}', r'eval.jsonl: row 1 has no usable metric: '),
    ('comparison.json', '[{"slice": "all"}]', r"comparison.json: row 1 has no usable task: {'slice': 'all'}: repair it"),
    ('comparison.json', '[1]', r'comparison.json: row 1 has no usable field: 1'),
    ('comparison.json', '{}', r'comparison.json must hold a JSON list, not a dict'),
    ('comparison.json', '['*100_000, r'comparison.json cannot be read: nested too deeply'),
])
def test_measurements_that_lack_a_field_are_refused(file, text, said, tmp_path):
    (tmp_path/'config.json').write_text(TrainConfig(max_steps=1).to_json())
    (tmp_path/file).write_text(text)
    with pytest.raises(ValueError, match=said): export._run_provenance(tmp_path, 1)
